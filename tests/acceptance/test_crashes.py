"""Nothing is lost and nothing doubled, whichever process dies and whenever."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js.api import StreamConfig

from tests.support.messages import in_seconds
from tests.support.process import TimerServiceProcess
from tests.support.world import World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = 3600.0

Signal = Callable[[TimerServiceProcess], int]
either_signal = pytest.mark.parametrize(
    "signal", [TimerServiceProcess.terminate, TimerServiceProcess.interrupt], ids=["SIGTERM", "SIGINT"]
)


@contextlib.contextmanager
def _write_lock(world: World) -> Iterator[None]:
    """Hold the file's write lock: the service can read it and publish, but neither keep nor mark."""
    with contextlib.closing(sqlite3.connect(world.db_path, isolation_level=None)) as link:
        link.execute("BEGIN IMMEDIATE")
        yield
        link.execute("ROLLBACK")


def _spread(count: int, first_s: float, last_s: float) -> dict[str, datetime]:
    """Return this many timers, due one after the other between two moments."""
    step = (last_s - first_s) / count
    return {f"order-{number:04}": in_seconds(first_s + number * step) for number in range(count)}


async def _schedule_all(world: World, due: dict[str, datetime]) -> None:
    await asyncio.gather(*(world.schedule("acme", call, due_at) for call, due_at in due.items()))


async def _schedule_and_keep(world: World, due: dict[str, datetime]) -> None:
    """Schedule timers and wait until each has its row."""
    await _schedule_all(world, due)

    async def kept() -> bool:
        return len(world.rows()) == len(due)

    await world.until(kept, f"{len(due)} rows")


async def _once_each(world: World, calls: Iterable[str]) -> None:
    """Fail unless the stream holds exactly one event for each timer, once all of them are marked."""
    expected = sorted(calls)
    await world.wait_until_all_reached(len(expected))
    await world.wait_for_broker()
    events = await world.events()
    assert sorted(event["payload"]["serviceCallId"] for event in events) == expected
    assert len(set(await world.stored_ids())) == len(expected)


def _end(service: TimerServiceProcess, signal: Signal) -> tuple[int, bool]:
    """Send the signal; return the exit code, and whether the service said that it closed all it had."""
    code = signal(service)
    return code, service.events("service.stopped") != []


# kill -9 of the service


async def test_kill_9_with_hundreds_of_timers_pending_loses_and_doubles_nothing(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(400, 1, 2.5)
    await _schedule_and_keep(world, due)

    for fired in (50, 200):
        await world.wait_for_event_count(fired)
        service.kill()
        service.restart()

    await _once_each(world, due)


async def test_kill_9_between_publishing_and_marking_leaves_one_event(world: World) -> None:
    service = world.service().start_ready()
    due = dict.fromkeys((f"order-{number}" for number in range(100)), in_seconds(1.5))
    await _schedule_and_keep(world, due)

    with _write_lock(world):
        await world.wait_for_event_count(100)
        service.kill()
    states = {row["state"] for row in world.rows()}
    service.restart()
    fired_again = service.wait_for_log("batch.fired")["timers"]

    assert (states, fired_again) == ({"Scheduled"}, 100)
    await _once_each(world, due)


async def test_an_event_published_again_after_the_brokers_window_has_the_same_id(world: World) -> None:
    await world.jetstream.add_stream(
        StreamConfig(name=world.events_stream, subjects=[f"{world.prefix}.events.>"], duplicate_window=0.1)
    )
    service = world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(1))
    await world.wait_for_row("acme", "order-1", state="Scheduled")

    with _write_lock(world):
        await world.wait_for_event_count(1)
        service.kill()
    service.restart()
    await world.wait_for_row("acme", "order-1", state="Reached")

    first, second = [{**event, "timestampMs": 0} for event in await world.events()]
    assert _without_reached_at(first) == _without_reached_at(second)


def _without_reached_at(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "payload": {**event["payload"], "reachedAt": ""}}


async def test_kill_9_while_commands_pour_in_loses_and_doubles_nothing(world: World) -> None:
    service = world.service(ack_wait=1_000, batch_size=20).start_ready()
    due = dict.fromkeys((f"order-{number:04}" for number in range(1_000)), LONG_AGO)
    pouring = asyncio.ensure_future(_schedule_all(world, due))

    for kept in (50, 300):
        await _rows(world, kept)
        service.kill()
        service.restart()
    await pouring

    await _once_each(world, due)
    assert {row["generation"] for row in world.rows()} == {1}


async def _rows(world: World, count: int) -> None:
    async def there() -> bool:
        return len(world.rows()) >= count

    await world.until(there, f"{count} rows")


async def test_kill_9_between_commit_and_acknowledgement_loses_and_doubles_nothing(
    world: World,
) -> None:
    service = world.service(ack_wait=1_000).start_ready()
    due = {f"order-{number:03}": LONG_AGO for number in range(99)} | {"order-far": in_seconds(FAR)}

    with _write_lock(world):
        await _schedule_all(world, due)

        async def delivered() -> bool:
            info = await world.jetstream.consumer_info(world.commands_stream, "timer-service")
            return bool(info.num_ack_pending == 100)

        await world.until(delivered, "all commands to be delivered")
        world.broker.kill()
        service.wait_for_log("broker.unavailable")
    # Now it can commit but no longer acknowledge.
    await _rows(world, 100)
    service.kill()
    before = world.rows()
    world.broker.start()
    service.restart()
    await world.wait_for_broker()
    await world.wait_for_event_count(99)

    async def delivered_again() -> bool:
        applied = service.events("commands.applied")
        again = sum(line.get("superseded", 0) + line.get("already_reached", 0) for line in applied)
        return bool(again >= 100)

    await world.until(delivered_again, "every command to be delivered again")
    far = [row for row in before if row["service_call_id"] == "order-far"]
    assert [row["state"] for row in before] == ["Scheduled"] * 100
    assert [world.row("acme", "order-far")] == far
    assert {row["generation"] for row in world.rows()} == {1}
    fired = sorted(event["payload"]["serviceCallId"] for event in await world.events())
    assert fired == sorted(set(due) - {"order-far"})


# The broker dies, freezes, or is not there yet


async def test_a_broker_killed_while_timers_come_due_loses_and_doubles_nothing(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(400, 1, 2.5)
    await _schedule_and_keep(world, due)

    for outage, fired in enumerate((50, 200), start=1):
        await world.wait_for_event_count(fired)
        world.broker.kill()
        service.wait_for_log("broker.unavailable", count=outage)
        world.broker.start()
        service.wait_for_log("broker.connected", count=outage + 1)
        await world.wait_for_broker()

    await _once_each(world, due)
    assert service.is_running


async def test_a_broker_away_past_many_due_times_gets_them_all_when_it_is_back(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(200, 0.8, 1.2)
    await _schedule_and_keep(world, due)
    world.broker.kill()

    async def overdue() -> bool:
        return in_seconds(0) > max(due.values())

    await world.until(overdue, "every timer to be overdue")
    states = {row["state"] for row in world.rows()}
    world.broker.start()

    await _once_each(world, due)
    assert states == {"Scheduled"}
    assert len(service.events("broker.unavailable")) == 1, "an outage is told once, not with every try"


async def test_a_service_started_before_its_broker_waits_for_it(world: World) -> None:
    world.broker.stop()
    service = world.service().start()
    service.wait_for_log("broker.unavailable")

    world.broker.start()
    service.wait_for_log("broker.connected")
    await world.wait_for_broker()
    await world.schedule("acme", "order-1", LONG_AGO)

    await _once_each(world, ["order-1"])


async def test_commands_published_while_the_service_is_down_survive_a_broker_restart(
    world: World,
) -> None:
    service = world.service().start_ready()
    service.terminate()
    due = _spread(100, -1, 0)
    await _schedule_all(world, due)

    world.broker.kill()
    world.broker.start()
    service.restart()

    await _once_each(world, due)


async def test_a_frozen_broker_gets_every_event_once_when_it_thaws(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(100, 1, 1.5)
    await _schedule_and_keep(world, due)

    world.broker.freeze()
    service.wait_for_log("broker.unavailable")
    world.broker.thaw()

    await _once_each(world, due)


# Orderly ends


@either_signal
async def test_a_signal_ends_an_idle_service_with_code_0(world: World, signal: Signal) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")

    ended = _end(service, signal)

    assert ended == (0, True)
    assert len(service.events("service.stopped")) == 1
    assert world.rows() == [before]


@either_signal
async def test_a_signal_while_hundreds_of_timers_fire_loses_and_doubles_nothing(
    world: World, signal: Signal
) -> None:
    service = world.service(batch_size=5).start_ready()
    due = _spread(400, 1, 2.2)
    await _schedule_and_keep(world, due)
    await world.wait_for_event_count(100)

    ended = _end(service, signal)
    fired = sorted(event["payload"]["serviceCallId"] for event in await world.events())
    marked = sorted(row["service_call_id"] for row in world.rows("WHERE state = 'Reached'"))
    service.restart()

    assert ended == (0, True)
    assert marked == fired, "the batch in hand must be finished"
    assert len(fired) < len(due)
    await _once_each(world, due)


async def test_a_signal_between_publishing_and_marking_lets_the_batch_finish(world: World) -> None:
    service = world.service().start_ready()
    due = dict.fromkeys((f"order-{number}" for number in range(20)), in_seconds(1))
    await _schedule_and_keep(world, due)

    with _write_lock(world):
        await world.wait_for_event_count(20)
        ending = asyncio.ensure_future(asyncio.to_thread(_end, service, TimerServiceProcess.terminate))
        await asyncio.to_thread(service.wait_for_log, "service.stopping")
    ended = await ending

    assert ended == (0, True)
    assert [row["state"] for row in world.rows()] == ["Reached"] * 20


async def test_a_signal_while_commands_pour_in_loses_and_doubles_nothing(world: World) -> None:
    service = world.service(ack_wait=1_000, batch_size=20).start_ready()
    due = dict.fromkeys((f"order-{number:04}" for number in range(1_000)), LONG_AGO)
    pouring = asyncio.ensure_future(_schedule_all(world, due))
    await _rows(world, 100)

    ended = _end(service, TimerServiceProcess.terminate)
    service.restart()
    await pouring

    assert ended == (0, True)
    await _once_each(world, due)
    assert {row["generation"] for row in world.rows()} == {1}


async def test_a_signal_while_the_broker_is_away_ends_with_code_0(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(100, 1, 1.2)
    await _schedule_and_keep(world, due)
    world.broker.kill()
    service.wait_for_log("broker.unavailable")

    ended = _end(service, TimerServiceProcess.interrupt)
    world.broker.start()
    service.restart()

    assert ended == (0, True)
    await _once_each(world, due)


async def test_a_signal_before_the_broker_was_ever_there_ends_with_code_0(world: World) -> None:
    world.broker.stop()
    service = world.service().start()
    service.wait_for_log("broker.unavailable")

    ended = _end(service, TimerServiceProcess.terminate)

    assert ended == (0, True)


async def test_a_signal_while_the_broker_is_frozen_ends_with_code_0(world: World) -> None:
    service = world.service().start_ready()
    due = _spread(100, 1, 1.2)
    await _schedule_and_keep(world, due)
    world.broker.freeze()

    async def overdue() -> bool:
        return in_seconds(0) > max(due.values()) + timedelta(milliseconds=200)

    await world.until(overdue, "the service to wait for the broker's answers")
    ended = _end(service, TimerServiceProcess.terminate)
    world.broker.thaw()
    service.restart()

    assert ended == (0, True)
    await _once_each(world, due)


async def test_a_signal_while_the_file_is_locked_ends_with_code_0(world: World) -> None:
    service = world.service().start_ready()
    due = dict.fromkeys((f"order-{number}" for number in range(20)), in_seconds(1))
    await _schedule_and_keep(world, due)

    with _write_lock(world):
        await world.wait_for_event_count(20)
        ended = _end(service, TimerServiceProcess.terminate)
    service.restart()

    assert ended == (0, True)
    await _once_each(world, due)
