"""Schedule, cancel, watch, get and list timers; ask how the service is."""

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from timer_client import OperatorClient, Reached, TimerClient, wire
from timer_client.connection import new_id
from timer_service.adapters.system import local_now
from timer_service.cli.conversation import converse, say, tell
from timer_service.cli.exits import EXIT_USAGE, complain
from timer_service.cli.tables import add_row
from timer_service.printable import printable, printable_json


def schedule(options: argparse.Namespace) -> int:
    """Publish ScheduleTimer."""
    try:
        due_at = options.at or wire.parse_time((local_now() + options.after).isoformat())
    except OverflowError:
        return complain(EXIT_USAGE, "--in: the due time must be before the year 10000")
    timer_id = str(new_id()) if options.id is None else options.id

    async def send(client: TimerClient) -> None:
        accepted = await client.schedule(
            options.tenant, timer_id, due_at, correlation_id=options.correlation_id
        )
        tell(
            options,
            f"{options.tenant}/{timer_id} is due at {wire.format_time(due_at)} ({_from_now(due_at)})",
            {
                "tenantId": options.tenant,
                "serviceCallId": timer_id,
                "dueAt": wire.format_time(due_at),
                "commandId": accepted.command_id,
                "stream": accepted.stream,
                "sequence": accepted.sequence,
            },
        )

    return converse(options, TimerClient, send)


def cancel(options: argparse.Namespace) -> int:
    """Publish CancelTimer."""

    async def send(client: TimerClient) -> None:
        accepted = await client.cancel(options.tenant, options.id)
        tell(
            options,
            f"cancellation of {options.tenant}/{options.id} requested",
            {
                "tenantId": options.tenant,
                "serviceCallId": options.id,
                "commandId": accepted.command_id,
                "stream": accepted.stream,
                "sequence": accepted.sequence,
            },
        )

    return converse(options, TimerClient, send)


def watch(options: argparse.Namespace) -> int:
    """Print events as they come."""
    if options.tenant is not None and not wire.is_tenant_id(options.tenant):
        return complain(EXIT_USAGE, f"--tenant must be {wire.TENANT_RULE} (got {options.tenant!r})")

    async def follow(client: TimerClient) -> None:
        def ready() -> None:
            if not options.json:
                print("watching; Ctrl-C ends it", file=sys.stderr, flush=True)

        seen = 0
        async for reached in client.watch(options.tenant, subscribed=ready):
            say(_as_json(reached) if options.json else printable(_as_line(reached)))
            seen += 1
            if options.count is not None and seen >= options.count:
                return

    return converse(options, TimerClient, follow, for_ever=True)


def get(options: argparse.Namespace) -> int:
    """Show one timer."""

    async def ask(client: TimerClient) -> None:
        timer = await client.get(options.tenant, options.id)
        say(printable_json(timer) if options.json else _as_block(timer))

    return converse(options, TimerClient, ask)


def list_timers(options: argparse.Namespace) -> int:
    """List a tenant's timers, page by page."""
    request = {
        "state": options.state,
        "correlationId": options.correlation_id,
        "dueFrom": wire.format_time(options.due_from) if options.due_from else None,
        "dueBefore": wire.format_time(options.due_before) if options.due_before else None,
    }

    async def ask(client: TimerClient) -> None:
        found = [timer async for timer in client.list_timers(options.tenant, options.limit, **request)]
        if options.json:
            say("\n".join(map(printable_json, found)))
            return
        table = Table("id", "state", "due", "generation", "correlation")
        for timer in found:
            add_row(
                table,
                timer["serviceCallId"],
                timer["state"],
                timer.get("dueAt", ""),
                str(timer["generation"]),
                timer.get("correlationId", ""),
            )
        Console().print(table)
        if len(found) == options.limit:
            print(f"the first {options.limit}; --limit shows more", file=sys.stderr)

    return converse(options, TimerClient, ask)


def status(options: argparse.Namespace) -> int:
    """Show how each instance of the service is."""

    async def ask(client: OperatorClient) -> None:
        instances = await client.status()
        if options.json:
            say("\n".join(map(printable_json, instances)))
        else:
            say("\n\n".join(map(_as_block, instances)))

    return converse(options, OperatorClient, ask)


def accept_clock_step(options: argparse.Namespace) -> int:
    """Confirm that the wall clocks of all instances are right."""

    async def confirm(client: OperatorClient) -> None:
        for answer in await client.accept_clock_step():
            step_s = answer["acceptedStepSeconds"]
            text = f"accepted a step of {step_s:g} s" if step_s else "no step was held back"
            tell(options, f"{answer['instance']}: {text}", answer)

    return converse(options, OperatorClient, confirm)


def _as_block(facts: dict[str, Any]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {printable(_plain(value))}" for name, value in facts.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {text}" for name, text in value.items()) or "none"
    return "-" if value is None else str(value)


def _as_json(reached: Reached) -> str:
    return printable_json({**json.loads(reached.body), "latenessMs": reached.lateness_ms})


def _as_line(reached: Reached) -> str:
    payload, correlation = reached.payload, reached.envelope.correlation_id
    line = (
        f"{wire.format_time(datetime.fromtimestamp(reached.received_ms / 1000, UTC))}  "
        f"{payload.tenant_id}/{payload.service_call_id}  "
        f"due {wire.format_time(payload.due_at)}  {reached.lateness_ms:+d} ms  "
        f"generation {payload.generation}"
    )
    return f"{line}  correlation {correlation}" if correlation else line


def _from_now(moment: datetime) -> str:
    seconds = (moment - local_now()).total_seconds()
    return f"in {seconds:.1f} s" if seconds > 0 else "past: fires at once"
