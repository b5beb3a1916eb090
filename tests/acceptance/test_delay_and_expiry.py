"""Delays, schedules that count only if absent, and timers that expire: the real service on a real broker."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support import messages
from tests.support.messages import ABSENT, in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.world import World

SENDERS = 1_000


def relative(name: str, delay_ms: int, **fields: Any) -> dict[str, Any]:
    """Return a ScheduleTimer with a delay, from a sender whose clock is a year behind."""
    year_ago_ms = int((datetime.now(UTC) - timedelta(days=365)).timestamp() * 1000)
    envelope = messages.schedule("acme", name, in_seconds(0), timestampMs=year_ago_ms)
    return messages.with_payload(envelope, dueAt=ABSENT, delayMs=delay_ms, **fields)


def expiring(name: str, due: datetime, expires_after_ms: int) -> dict[str, Any]:
    return messages.with_payload(messages.schedule("acme", name, due), expiresAfterMs=expires_after_ms)


async def stored_at(world: World, sequence: int) -> datetime:
    """Return when the broker stored a command that is still there, rounded up to the millisecond."""
    message = await world.jetstream.get_msg(world.commands_stream, sequence)
    assert message.time is not None
    return message.time + timedelta(microseconds=-message.time.microsecond % 1000)


async def kinds(world: World) -> list[tuple[str, str]]:
    return [(event["type"], event["payload"]["serviceCallId"]) for event in await world.events()]


async def test_a_delayed_and_redelivered_command_of_a_sender_a_year_off_is_due_when_it_should(
    world: World,
) -> None:
    assert world.service().start_ready().terminate() == 0
    sequence = await world.send(relative("order-1", 3_600_000))
    due_at = await stored_at(world, sequence) + timedelta(hours=1)
    commands = await world.jetstream.pull_subscribe_bind("timer-service", stream=world.commands_stream)
    (taken,) = await commands.fetch(1, timeout=PATIENCE_S)
    await taken.nak()

    service = world.service().start_ready()
    row = await world.wait_for_row("acme", "order-1", state="Scheduled")

    assert service.wait_for_log("commands.applied")["redelivered"] == 1
    assert row["due_at"] == iso(due_at)


async def test_of_1000_racing_senders_the_first_in_the_stream_sets_the_one_due_time(world: World) -> None:
    service = world.service().start_ready()

    sequences = await asyncio.gather(
        *(world.send(relative("order-1", 3_600_000 + n, ifAbsent=True)) for n in range(SENDERS))
    )
    await world.wait_until_consumed()

    winner = sequences.index(min(sequences))
    row = await world.wait_for_row("acme", "order-1", state="Scheduled")
    assert (row["generation"], row["stream_sequence"]) == (1, min(sequences))
    registered_at = messages.parse(row["registered_at"])
    delay = messages.parse(row["due_at"]) - registered_at
    assert abs(delay - timedelta(milliseconds=3_600_000 + winner)) < timedelta(seconds=PATIENCE_S)
    assert service.terminate() == 0


async def test_down_for_longer_than_it_is_of_use_a_timer_expires_once_and_never_fires(world: World) -> None:
    assert world.service().start_ready().terminate() == 0
    await world.send(expiring("late", in_seconds(-60), 1_000))
    await world.send(expiring("in-time", in_seconds(-60), 86_400_000))

    service = world.service().start_ready()
    await world.wait_for_row("acme", "late", state="Expired")
    await world.wait_for_row("acme", "in-time", state="Reached")
    assert service.terminate() == 0
    world.service().start_ready()
    await world.send(expiring("marker", in_seconds(0), 86_400_000))
    await world.wait_for_row("acme", "marker", state="Reached")

    assert sorted(await kinds(world)) == [
        ("DueTimeReached", "in-time"),
        ("DueTimeReached", "marker"),
        ("TimerExpired", "late"),
    ]


async def test_nothing_changes_an_expired_timer(world: World) -> None:
    service = world.service().start_ready()
    await world.send(expiring("order-1", in_seconds(-60), 1_000))
    expired = await world.wait_for_row("acme", "order-1", state="Expired")

    await world.schedule("acme", "order-1", in_seconds(3600))
    await world.cancel("acme", "order-1")
    await world.wait_until_consumed()

    assert world.row("acme", "order-1") == expired
    assert service.wait_for_log("commands.applied", where=lambda line: "already_expired" in line)
