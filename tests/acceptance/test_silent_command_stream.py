"""The command stream does not answer, while the event stream works: timers wait for the limit, then fire."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.http import fetch_json
from tests.support.messages import in_seconds
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess
from tests.support.world import World

LIMIT = timedelta(seconds=1)

SILENT = """authorization { users: [
  { user: service, password: secret, permissions: { publish: {
    deny: ["$JS.API.STREAM.INFO.TIMER_COMMANDS", "$JS.API.STREAM.MSG.GET.TIMER_COMMANDS"] } } }
  { user: test, password: secret }
] }"""
"""The broker takes commands and hands them out, but tells the service nothing of the stream."""


def _silence(world: World) -> None:
    world.broker.reconfigure(SILENT)
    world.broker.reload()


def _answer_again(world: World) -> None:
    world.broker.reconfigure("")
    world.broker.reload()


async def _silent_service(world: World) -> tuple[TimerServiceProcess, int]:
    """Start a service and silence the stream once it is connected; return it with its port."""
    port = free_port()
    service = world.service(catch_up=f"{LIMIT.seconds}s", http_port=port).start_ready()
    _silence(world)
    await asyncio.to_thread(
        service.wait_for_log, "broker.error", where=lambda line: "stream.info" in line["detail"].lower()
    )
    return service, port


async def _cancel_in_time(world: World, service: TimerServiceProcess) -> str:
    """Cancel a timer before it is due, while the service is stopped over its due time; return which."""
    for seconds in (2, 10, PATIENCE_S):
        call, due = f"cancelled-{seconds}", in_seconds(seconds)
        await world.schedule("acme", call, due)
        await world.wait_until_consumed()
        os.kill(service.pid, signal.SIGSTOP)
        await world.cancel("acme", call)
        left_s = (due - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(max(0.0, left_s))
        os.kill(service.pid, signal.SIGCONT)
        if left_s > 0:
            return call
    raise AssertionError("the broker takes no cancel in time")


def _waited(event: dict[str, Any]) -> timedelta:
    payload = event["payload"]
    return datetime.fromisoformat(payload["reachedAt"]) - datetime.fromisoformat(payload["dueAt"])


async def test_due_timers_wait_for_the_limit_and_it_is_said_once(world: World) -> None:
    service, port = await _silent_service(world)
    await world.schedule("acme", "order-1", in_seconds(0))
    service.wait_for_log("command_stream.given_up")
    _, report = fetch_json(port, "/readyz")
    await world.schedule("acme", "order-2", in_seconds(0))
    events = await world.wait_for_events(2)

    assert service.terminate() == 0
    assert [event["payload"]["serviceCallId"] for event in events] == ["order-1", "order-2"]
    assert all(_waited(event) >= LIMIT for event in events), events
    assert [line["level"] for line in service.events("command_stream.given_up")] == ["warning"]
    assert "the command stream does not answer" in report["warnings"]["command stream"]


async def test_once_it_answers_again_a_cancel_that_was_in_time_counts(world: World) -> None:
    service, port = await _silent_service(world)
    await world.schedule("acme", "order-1", in_seconds(0))
    await world.wait_for_events(1)

    _answer_again(world)
    service.wait_for_log("command_stream.recovered")
    cancelled = await _cancel_in_time(world, service)
    await world.wait_until_consumed()
    await world.schedule("acme", "order-2", in_seconds(0))
    await world.wait_for_row("acme", "order-2", state="Reached")

    fired = [event["payload"]["serviceCallId"] for event in await world.events()]
    assert cancelled not in fired
    await world.wait_for_row("acme", cancelled, state="Cancelled")
    assert len(service.events("command_stream.recovered")) == 1
    assert "warnings" not in fetch_json(port, "/readyz")[1]
