"""Schedule, cancel, watch, get and list timers."""

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import get_args

import uuid6
from rich.table import Table

from timer_client import Expired, OperatorClient, Reached, Timers, wire
from timer_service.adapters.system import local_now
from timer_service.cli.arguments import (
    Commands,
    add_client_arguments,
    add_timer_arguments,
    count,
    moment,
    span,
    tenant,
)
from timer_service.cli.conversation import converse
from timer_service.cli.output import add_row, as_block, print_table, say, tell
from timer_service.printable import printable, printable_json


def add_commands(commands: Commands) -> None:
    """Add what schedules, cancels and shows timers."""
    _add_schedule(commands)

    parser = commands.add_parser("cancel", help="cancel a timer")
    add_timer_arguments(parser)
    parser.set_defaults(handler=cancel)

    parser = commands.add_parser(
        "watch", help="print each DueTimeReached and TimerExpired as it arrives, with its lateness"
    )
    parser.add_argument("--tenant", type=tenant, help="only this tenant's events")
    parser.add_argument("--count", type=count, metavar="N", help="stop after N events")
    add_client_arguments(parser)
    parser.set_defaults(handler=watch)

    parser = commands.add_parser("get", help="show one timer")
    add_timer_arguments(parser)
    parser.set_defaults(handler=get)

    parser = commands.add_parser("explain", help="explain why a timer is in its state, and what is wrong")
    add_timer_arguments(parser)
    parser.set_defaults(handler=explain)

    parser = commands.add_parser("list", help="list a tenant's timers by due time")
    parser.add_argument("--tenant", required=True, help="the timers' owner")
    parser.add_argument("--state", choices=get_args(wire.StateText), help="only timers in this state")
    parser.add_argument("--correlation-id", help="only timers with this correlation id")
    parser.add_argument("--due-from", type=moment, metavar="TIME", help="only timers due then or later")
    parser.add_argument("--due-before", type=moment, metavar="TIME", help="only timers due earlier")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most N (%(default)s)")
    add_client_arguments(parser)
    parser.set_defaults(handler=list_timers)


def _add_schedule(commands: Commands) -> None:
    parser = commands.add_parser("schedule", help="schedule or move a timer")
    parser.add_argument("--tenant", required=True, help="the timer's owner")
    parser.add_argument("--id", help="the timer's id (a new UUIDv7 if left out)")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument(
        "--in",
        dest="after",
        type=span,
        metavar="DURATION",
        help="due this long after the broker stored it, such as 10s or 1h30m",
    )
    when.add_argument(
        "--at", type=moment, metavar="TIME", help="due at this time, such as 2026-12-01T09:00:00+01:00"
    )
    parser.add_argument("--correlation-id", help="passed on to the event")
    parser.add_argument("--if-absent", action="store_true", help="leave a timer that exists as it is")
    parser.add_argument(
        "--expires-after",
        type=span,
        metavar="DURATION",
        help="if it could only fire later than this after its due time, it expires instead",
    )
    add_client_arguments(parser)
    parser.set_defaults(handler=schedule)


def schedule(options: argparse.Namespace) -> int:
    """Publish ScheduleTimer."""
    timer_id = str(uuid6.uuid7()) if options.id is None else options.id

    async def send(client: Timers) -> None:
        accepted = await client.schedule(
            timer_id,
            options.after if options.at is None else options.at,
            correlation_id=options.correlation_id,
            if_absent=options.if_absent,
            expires_after=options.expires_after,
        )
        due = _told(options.after) if options.at is None else _from_now(options.at)
        unless = ", unless there is such a timer" if options.if_absent else ""
        tell(
            options,
            f"{options.tenant}/{timer_id} is due {due}{unless}",
            {
                "tenantId": options.tenant,
                "serviceCallId": timer_id,
                **(
                    {"dueAt": wire.format_time(options.at)} if options.at else {"delayMs": _ms(options.after)}
                ),
                "commandId": accepted.command_id,
                "stream": accepted.stream,
                "sequence": accepted.sequence,
            },
        )

    return converse(options, _of_tenant(options), send)


def cancel(options: argparse.Namespace) -> int:
    """Publish CancelTimer."""

    async def send(client: Timers) -> None:
        accepted = await client.cancel(options.id)
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

    return converse(options, _of_tenant(options), send)


def watch(options: argparse.Namespace) -> int:
    """Print events as they arrive."""

    async def follow(client: OperatorClient) -> None:
        def ready() -> None:
            if not options.json:
                print("watching; stop with Ctrl-C", file=sys.stderr, flush=True)

        seen = 0
        async for event in client.watch_all(options.tenant, subscribed=ready):
            say(_as_json(event) if options.json else printable(_as_line(event)))
            seen += 1
            if options.count is not None and seen >= options.count:
                return

    return converse(options, OperatorClient, follow, reconnect=True)


def get(options: argparse.Namespace) -> int:
    """Show one timer."""

    async def ask(client: Timers) -> None:
        fields = wire.fields_of(await client.get(options.id))
        say(printable_json(fields) if options.json else as_block(fields))

    return converse(options, _of_tenant(options), ask)


def explain(options: argparse.Namespace) -> int:
    """Say why a timer is as it is."""

    async def ask(client: Timers) -> None:
        found = await client.explain(options.id)
        if options.json:
            say(printable_json(wire.fields_of(found)))
            return
        say(printable(found.text))
        for unknown in found.unknown or ():
            print(f"not known: {printable(unknown)}", file=sys.stderr)

    return converse(options, _of_tenant(options), ask)


def list_timers(options: argparse.Namespace) -> int:
    """List a tenant's timers, page by page."""

    async def ask(client: Timers) -> None:
        timers = client.list(
            limit=options.limit,
            state=options.state,
            correlation_id=options.correlation_id,
            due_from=options.due_from,
            due_before=options.due_before,
        )
        found = [timer async for timer in timers]
        if options.json:
            say("\n".join(printable_json(wire.fields_of(timer)) for timer in found))
            return
        table = Table("id", "state", "due", "generation", "correlation")
        for timer in found:
            add_row(
                table,
                timer.service_call_id,
                timer.state,
                "" if timer.due_at is None else wire.format_time(timer.due_at),
                str(timer.generation),
                timer.correlation_id or "",
            )
        print_table(table)
        if len(found) == options.limit:
            print(f"the first {options.limit}; see more with --limit", file=sys.stderr)

    return converse(options, _of_tenant(options), ask)


def _of_tenant(options: argparse.Namespace) -> Callable[..., Timers]:
    return partial(Timers, tenant=options.tenant)


def _as_json(event: Reached | Expired) -> str:
    return printable_json({**json.loads(event.body), "latenessMs": event.lateness_ms})


def _as_line(event: Reached | Expired) -> str:
    payload, correlation = event.payload, event.envelope.correlation_id
    line = (
        f"{wire.format_time(datetime.fromtimestamp(event.received_ms / 1000, UTC))}  "
        f"{payload.tenant_id}/{payload.service_call_id}  "
        f"due {wire.format_time(payload.due_at)}  {event.lateness_ms:+d} ms  "
        f"generation {payload.generation}"
    )
    if isinstance(event, Expired):
        line += "  expired"
    return f"{line}  correlation {correlation}" if correlation else line


def _told(after: timedelta) -> str:
    return f"in {after.total_seconds():.1f} s"


def _from_now(due_at: datetime) -> str:
    after = due_at - local_now()
    told = _told(after) if after > timedelta() else "in the past: fires at once"
    return f"at {wire.format_time(due_at)} ({told})"


def _ms(span: timedelta) -> int:
    return -(-span // timedelta(milliseconds=1))
