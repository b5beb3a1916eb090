"""What every command source and event sink promises; their ports say it in words."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.support import messages
from tests.support.lines import BATCH_SIZE, Line, Stored, until
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at, call, expired, reached
from timer_service.adapters.codec import encode_event
from timer_service.domain.errors import BusUnavailable, RefusalReason
from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    DueTimeReached,
    Position,
    ScheduleTimer,
)
from timer_service.ports.command_source import CommandBatch, Refusal
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.testing import ManualClock

CONFIRMED = PublishResult(Published.CONFIRMED)


async def send_schedule(line: Line, name: str, tenant: str = ACME) -> int:
    body = messages.encode(messages.schedule(tenant, name, at(60)))
    return await line.send(f"{line.prefix}.commands.{tenant}.ScheduleTimer", body)


async def send_rubbish(line: Line, body: bytes = b"rubbish", tail: str = "acme.ScheduleTimer") -> int:
    return await line.send(f"{line.prefix}.commands.{tail}", body)


async def receive(line: Line) -> CommandBatch:
    async with asyncio.timeout(PATIENCE_S):
        return await line.source.receive()


async def receive_commands(line: Line, count: int) -> list[CommandBatch]:
    """Receive batches until they hold this many commands together."""
    batches: list[CommandBatch] = []
    while sum(len(batch.commands) for batch in batches) < count:
        batches.append(await receive(line))
    return batches


@asynccontextmanager
async def consuming(line: Line) -> AsyncIterator[list[CommandBatch]]:
    """Take batches as the service does, all the while."""
    batches: list[CommandBatch] = []

    async def consume() -> None:
        while True:
            batch = await line.source.receive()
            await batch.acknowledge()
            await batch.dead_letter()
            batches.append(batch)

    task = asyncio.ensure_future(consume())
    try:
        yield batches
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(batches: list[CommandBatch]) -> list[str]:
    return [command.service_call_id for batch in batches for command in batch.commands]


async def until_unfinished(line: Line, sequences: list[int]) -> None:
    async def so() -> bool:
        return await line.unfinished() == sequences

    await until(so, f"the unfinished commands to be {sequences}")


# Receiving


async def test_commands_come_in_the_order_of_the_stream_with_their_positions(line: Line) -> None:
    envelope = messages.schedule("acme", "order-1", at(60), correlationId="request-1")
    first = await line.send(f"{line.prefix}.commands.acme.ScheduleTimer", messages.encode(envelope))
    second = await line.send(
        f"{line.prefix}.commands.globex.CancelTimer", messages.encode(messages.cancel("globex", "order-1"))
    )

    batches = await receive_commands(line, 2)

    created = await line.stream_created_us()
    expected: list[Command] = [
        ScheduleTimer(ACME, call("order-1"), at(60), CorrelationId("request-1"), Position(created, first)),
        CancelTimer(GLOBEX, call("order-1"), Position(created, second)),
    ]
    assert [command for batch in batches for command in batch.commands] == expected
    assert [batch.redelivered for batch in batches] == [0] * len(batches)


async def test_messages_come_in_batches_of_bounded_size_and_none_is_left_out(line: Line) -> None:
    sent = [f"order-{n:02}" for n in range(35)]
    for name in sent:
        await send_schedule(line, name)

    batches = await receive_commands(line, len(sent))

    assert names(batches) == sent
    assert max(len(batch.commands) for batch in batches) <= BATCH_SIZE
    assert len(batches) < len(sent)


async def test_receiving_waits_for_the_first_message(line: Line) -> None:
    receiving = asyncio.ensure_future(receive(line))
    done, _ = await asyncio.wait({receiving}, timeout=0.05)

    await send_schedule(line, "order-1")
    batch = await receiving

    assert done == set()
    assert names([batch]) == ["order-1"]


async def test_an_acknowledged_command_leaves_the_stream(line: Line) -> None:
    await send_schedule(line, "order-1")
    batch = await receive(line)

    await batch.acknowledge()

    await until_unfinished(line, [])


async def test_a_received_command_stays_in_the_stream_until_it_is_acknowledged(line: Line) -> None:
    sequence = await send_schedule(line, "order-1")

    await receive(line)

    assert await line.unfinished() == [sequence]


async def test_one_batch_is_acknowledged_without_the_next(line: Line) -> None:
    sequences = [await send_schedule(line, f"order-{n}") for n in range(BATCH_SIZE + 1)]
    batches = await receive_commands(line, len(sequences))
    assert len(batches) > 1

    await batches[0].acknowledge()

    await until_unfinished(line, sequences[len(batches[0].commands) :])


async def test_a_batch_of_any_size_is_acknowledged_whole(line: Line) -> None:
    for size in range(1, BATCH_SIZE + 1):
        sent = [f"order-{size}-{n}" for n in range(size)]
        for name in sent:
            await send_schedule(line, name)
        await line.until_at_hand(size)

        batch = await receive(line)
        await batch.acknowledge()

        assert names([batch]) == sent
        await until_unfinished(line, [])


async def test_acknowledging_again_is_harmless(line: Line) -> None:
    await send_schedule(line, "order-1")
    batch = await receive(line)
    await batch.acknowledge()

    await batch.acknowledge()

    await until_unfinished(line, [])
    await send_schedule(line, "order-2")
    assert names([await receive(line)]) == ["order-2"]


async def test_what_is_not_acknowledged_comes_again_and_says_so(impatient_line: Line) -> None:
    await send_schedule(impatient_line, "order-1")
    first = await receive(impatient_line)
    impatient_line.redeliver()

    again = await receive(impatient_line)

    assert list(again.commands) == list(first.commands)
    assert (first.redelivered, again.redelivered) == (0, 1)
    await again.acknowledge()
    await until_unfinished(impatient_line, [])


async def test_what_is_acknowledged_does_not_come_again(impatient_line: Line) -> None:
    await send_schedule(impatient_line, "kept")
    kept = await receive(impatient_line)
    await kept.acknowledge()
    await until_unfinished(impatient_line, [])
    await send_schedule(impatient_line, "lost")
    await receive(impatient_line)
    impatient_line.redeliver()

    again = await receive(impatient_line)

    assert (names([again]), again.redelivered) == (["lost"], 1)
    await again.acknowledge()


async def test_a_redelivered_delay_gives_the_same_due_time_whatever_the_senders_clock_says(
    impatient_line: Line, clock: ManualClock
) -> None:
    year_off = {"timestampMs": int((datetime.now(UTC) - timedelta(days=365)).timestamp() * 1000)}
    envelope = messages.schedule(ACME, "order-1", at(60), **year_off)
    body = messages.encode(messages.with_payload(envelope, dueAt=messages.ABSENT, delayMs=90_000))
    before = min(datetime.now(UTC), clock.now())
    await impatient_line.send(f"{impatient_line.prefix}.commands.{ACME}.ScheduleTimer", body)
    after = max(datetime.now(UTC), clock.now())
    [first] = (await receive(impatient_line)).commands

    impatient_line.redeliver()
    clock.advance(7)
    [again] = (await receive(impatient_line)).commands

    assert isinstance(first, ScheduleTimer)
    assert again == first
    stored_at = first.due_at - timedelta(seconds=90)
    assert stored_at.microsecond % 1000 == 0, "rounded up to the millisecond"
    assert before <= stored_at <= after + timedelta(seconds=1)


async def test_an_expiry_goes_out_on_a_subject_and_under_an_id_of_its_own(line: Line) -> None:
    event = expired("order-1", 60, expired_s=90, generation=2)

    assert await line.sink.publish([event, event]) == [CONFIRMED, CONFIRMED]

    [stored] = await line.events()
    assert stored.subject == f"{line.prefix}.events.acme.TimerExpired"
    assert stored.body == {
        "id": str(event.id),
        "type": "TimerExpired",
        "tenantId": "acme",
        "timestampMs": int(event.at.timestamp() * 1000),
        "aggregateId": "order-1",
        "payload": {
            "_tag": "TimerExpired",
            "tenantId": "acme",
            "serviceCallId": "order-1",
            "dueAt": messages.iso(event.due_at),
            "expiredAt": messages.iso(event.at),
            "generation": 2,
        },
    }
    assert event.id != reached("order-1", 60, generation=2).id


async def test_a_redelivery_does_not_double_what_still_waits_for_its_first(impatient_line: Line) -> None:
    await send_schedule(impatient_line, "unacknowledged")
    await receive(impatient_line)
    await send_schedule(impatient_line, "waiting")
    impatient_line.redeliver()

    batches: list[CommandBatch] = []
    while len(names(batches)) < 2:
        batches.append(await receive(impatient_line))
        await batches[-1].acknowledge()

    assert sorted(names(batches)) == ["unacknowledged", "waiting"]
    assert sum(batch.redelivered for batch in batches) == 1
    await until_unfinished(impatient_line, [])


async def test_commands_of_a_stream_made_anew_are_newer_than_all_before(line: Line) -> None:
    for n in range(3):
        await send_schedule(line, f"order-{n}")
    before = await receive_commands(line, 3)

    await line.recreate_commands()
    await send_schedule(line, "order-new")
    after = await receive(line)

    assert names([after]) == ["order-new"]
    assert after.commands[0].position.sequence == 1
    assert after.commands[0].position > max(c.position for batch in before for c in batch.commands)


async def test_acknowledging_a_command_of_the_old_stream_leaves_the_new_one_alone(line: Line) -> None:
    await send_schedule(line, "order-old")
    old = await receive(line)
    await line.recreate_commands()
    new = await send_schedule(line, "order-new")
    await receive(line)

    await old.acknowledge()

    # The next one goes the same way after it: once it is through, so is the other.
    await send_schedule(line, "order-next")
    await (await receive(line)).acknowledge()
    await until_unfinished(line, [new])


# Setting aside


async def test_a_refused_message_is_no_command_and_acknowledging_leaves_it(line: Line) -> None:
    bad = await send_rubbish(line)
    await send_schedule(line, "order-1")
    batches = await receive_commands(line, 1)

    for batch in batches:
        await batch.acknowledge()

    assert names(batches) == ["order-1"]
    await until_unfinished(line, [bad])


async def test_a_refused_message_gets_a_letter_and_leaves_the_stream(line: Line) -> None:
    sequence = await send_rubbish(line)
    batch = await receive(line)

    refusals = await batch.dead_letter()

    subject = f"{line.prefix}.commands.acme.ScheduleTimer"
    detail = "the body must be JSON in UTF-8: expected value at line 1 column 1"
    assert list(refusals) == [Refusal(RefusalReason.NOT_JSON, detail, subject, sequence)]
    await until_unfinished(line, [])
    letters = await line.letters()
    assert [(letter.subject, letter.body) for letter in letters] == [
        (
            f"{line.prefix}.deadletter.acme",
            {
                "reason": "not_json",
                "detail": detail,
                "subject": subject,
                "stream": line.stream,
                "sequence": sequence,
                "receivedAt": "2026-01-01T12:00:00.000Z",
                "body": "rubbish",
                "bodyEncoding": "utf-8",
            },
        )
    ]


@pytest.mark.parametrize(
    ("tail", "reason", "tenant"),
    [
        ("acme", "invalid", "acme"),
        ("acme.ScheduleTimer.now", "invalid", "acme"),
        ("acme.PauseTimer", "unknown_type", "acme"),
        ("b@d.ScheduleTimer", "invalid", "_"),
        ("globex.ScheduleTimer", "tenant_mismatch", "globex"),
    ],
)
async def test_a_message_on_a_subject_that_is_not_its_own_gets_a_letter(
    line: Line, tail: str, reason: str, tenant: str
) -> None:
    body = messages.encode(messages.schedule("acme", "order-1", at(60)))
    await send_rubbish(line, body, tail)
    batch = await receive(line)

    await batch.dead_letter()

    await until_unfinished(line, [])
    letters = await line.letters()
    assert [(letter.subject, letter.body["reason"]) for letter in letters] == [
        (f"{line.prefix}.deadletter.{tenant}", reason)
    ]
    assert letters[0].body["body"] == body.decode()


async def test_a_body_as_large_as_the_broker_takes_still_gets_its_letter(line: Line) -> None:
    await send_rubbish(line, b"\x01" * 1_000_000)
    await send_schedule(line, "order-1")
    batches = await receive_commands(line, 1)

    for batch in batches:
        await batch.acknowledge()
        await batch.dead_letter()

    assert names(batches) == ["order-1"]
    await until_unfinished(line, [])
    (letter,) = await line.letters()
    assert (letter.body["reason"], letter.body["bodyTruncated"]) == ("too_large", True)
    assert set(letter.body["body"]) == {"\x01"}


async def test_a_batch_without_a_refused_message_writes_no_letter(line: Line) -> None:
    await send_schedule(line, "order-1")
    batch = await receive(line)

    assert list(await batch.dead_letter()) == []
    assert await line.letters() == []
    assert len(await line.unfinished()) == 1


async def test_a_refused_message_that_comes_again_gets_no_second_letter(impatient_line: Line) -> None:
    await send_rubbish(impatient_line)
    first = await receive(impatient_line)
    impatient_line.redeliver()
    again = await receive(impatient_line)

    await first.dead_letter()
    await again.dead_letter()

    assert (first.redelivered, again.redelivered) == (0, 1)
    await until_unfinished(impatient_line, [])
    assert len(await impatient_line.letters()) == 1


async def test_a_refused_message_is_reported_once_however_often_it_comes(impatient_line: Line) -> None:
    await impatient_line.fill_letters()
    await send_rubbish(impatient_line)
    first = await (await receive(impatient_line)).dead_letter()
    impatient_line.redeliver()
    again = await (await receive(impatient_line)).dead_letter()

    assert (len(first), list(again)) == (1, [])


async def test_a_letter_that_cannot_be_written_now_is_written_later_and_once(impatient_line: Line) -> None:
    await send_rubbish(impatient_line)
    batch = await receive(impatient_line)
    await impatient_line.cut()
    await until_away(impatient_line)

    await batch.dead_letter()
    await impatient_line.mend()
    impatient_line.redeliver()
    await (await receive(impatient_line)).dead_letter()

    await until_unfinished(impatient_line, [])
    assert len(await impatient_line.letters()) == 1


async def test_while_no_letter_can_be_written_commands_come_in_and_are_acknowledged(line: Line) -> None:
    await line.fill_letters()
    bad = [await send_rubbish(line) for _ in range(3 * BATCH_SIZE)]
    await send_schedule(line, "order-1", GLOBEX)

    async with consuming(line) as batches:
        await until_unfinished(line, bad)

    assert names(batches) == ["order-1"]
    assert await line.letters() == []


async def test_once_letters_can_be_written_again_each_is_written_once(line: Line) -> None:
    await line.fill_letters()
    bad = [await send_rubbish(line, b"rubbish %d" % n) for n in range(3 * BATCH_SIZE)]

    async with consuming(line) as batches:
        await send_schedule(line, "order-1")
        await until_unfinished(line, bad)
        await line.empty_letters()
        line.redeliver()
        await until_unfinished(line, [])

    assert names(batches) == ["order-1"]
    assert sorted(letter.body["sequence"] for letter in await line.letters()) == bad


# Publishing


def stored(line: Line, event: DueTimeReached) -> Stored:
    return Stored(
        f"{line.prefix}.events.{event.tenant_id}.DueTimeReached",
        str(event.id),
        messages.decode(encode_event(event, str(event.id))),
    )


async def test_published_events_are_confirmed_and_stored_in_order_under_their_ids(line: Line) -> None:
    events = [
        reached("order-1", 1, reached_s=2, correlation="request-1"),
        reached("order-1", 1, reached_s=2, tenant=GLOBEX),
        reached("order-2", 1, reached_s=2, generation=7),
    ]

    results = await line.sink.publish(events)

    assert results == [CONFIRMED] * 3
    assert await line.events() == [stored(line, event) for event in events]


async def test_publishing_nothing_is_over_at_once(line: Line) -> None:
    async with asyncio.timeout(PATIENCE_S):
        results = await line.sink.publish([])

    assert results == []
    assert await line.events() == []


async def test_a_firing_published_again_is_confirmed_and_stored_once(line: Line) -> None:
    first, again = reached("order-1", 1, reached_s=2), reached("order-1", 1, reached_s=9)
    await line.sink.publish([first])

    results = await line.sink.publish([again, reached("order-2", 1)])

    assert results == [CONFIRMED] * 2
    assert await line.events() == [stored(line, first), stored(line, reached("order-2", 1))]


async def test_one_firing_twice_in_a_batch_is_stored_once(line: Line) -> None:
    event = reached("order-1", 1)

    results = await line.sink.publish([event, event])

    assert results == [CONFIRMED] * 2
    assert await line.events() == [stored(line, event)]


async def test_a_batch_larger_than_any_buffer_is_confirmed_whole(line: Line) -> None:
    events = [reached(f"order-{n:04}", 1) for n in range(500)]

    results = await line.sink.publish(events)

    assert results == [CONFIRMED] * 500
    assert [event.message_id for event in await line.events()] == [str(event.id) for event in events]


async def test_events_at_the_ends_of_time_are_stored(line: Line) -> None:
    ends = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)]
    events = [DueTimeReached(ACME, call("order-1"), due_at, at(0), 1, None) for due_at in ends]

    results = await line.sink.publish(events)

    assert results == [CONFIRMED] * 2
    assert [event.body["payload"]["dueAt"] for event in await line.events()] == [
        "0001-01-01T00:00:00.000Z",
        "9999-12-31T23:59:59.999Z",
    ]


async def test_a_full_event_stream_is_told_apart_from_an_event_that_is_rejected(line: Line) -> None:
    await line.fill_events()

    [result] = await line.sink.publish([reached("a", 1)])

    assert result.outcome is Published.STREAM_REFUSED
    assert "maximum" in result.detail
    assert await line.events() == []


async def test_a_rejected_event_does_not_stop_the_others(line: Line) -> None:
    await line.reject("globex")
    events = [reached("a", 1), reached("b", 1, tenant=GLOBEX), reached("c", 1, tenant="initech")]

    results = await line.sink.publish(events)

    assert [result.outcome for result in results] == [
        Published.CONFIRMED,
        Published.REJECTED,
        Published.CONFIRMED,
    ]
    assert results[1].detail
    assert await line.events() == [stored(line, events[0]), stored(line, events[2])]


async def test_rejected_events_do_not_delay_commands(line: Line) -> None:
    await line.reject("globex")
    sent = [f"order-{n}" for n in range(5)]

    for name in sent:
        await line.sink.publish([reached("b", 1, tenant=GLOBEX)])
        await send_schedule(line, name)
    batches = await receive_commands(line, len(sent))

    assert names(batches) == sent
    assert sum(batch.redelivered for batch in batches) == 0


# Without a broker


async def until_away(line: Line) -> None:
    """Publish until the bus knows that its broker is away."""

    async def away() -> bool:
        try:
            results = await line.sink.publish([reached("probe", 1)])
        except BusUnavailable:
            return True
        assert {result.outcome for result in results} == {Published.DISCONNECTED}
        return False

    await until(away, "the bus to notice that the broker is away")


async def test_without_a_broker_publishing_says_so_and_sends_nothing(line: Line) -> None:
    await line.cut()
    await until_away(line)

    with pytest.raises(BusUnavailable):
        await line.sink.publish([reached("order-1", 1)])

    await line.mend()
    assert await line.events() == []


async def test_publishing_works_again_once_the_broker_is_back(line: Line) -> None:
    await line.cut()
    await until_away(line)
    await line.mend()

    results = await line.sink.publish([reached("order-1", 1)])

    assert results == [CONFIRMED]
    assert await line.events() == [stored(line, reached("order-1", 1))]


async def test_commands_come_again_once_the_broker_is_back(line: Line) -> None:
    await line.cut()
    await until_away(line)
    sequence = await send_schedule(line, "order-1")
    await line.mend()

    batch = await receive(line)

    assert (names([batch]), batch.commands[0].position.sequence) == (["order-1"], sequence)


async def test_a_command_received_before_an_outage_can_be_acknowledged_after_it(line: Line) -> None:
    await send_schedule(line, "order-1")
    batch = await receive(line)
    await line.cut()
    await until_away(line)
    await line.mend()

    await batch.acknowledge()

    await until_unfinished(line, [])


async def test_acknowledging_while_the_broker_is_away_does_no_harm(impatient_line: Line) -> None:
    await send_schedule(impatient_line, "order-1")
    batch = await receive(impatient_line)
    await impatient_line.cut()
    await until_away(impatient_line)

    await batch.acknowledge()

    await impatient_line.mend()


# Cancelling


async def test_a_cancelled_receive_takes_nothing_with_it(line: Line) -> None:
    receiving = asyncio.ensure_future(line.source.receive())
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)

    await send_schedule(line, "order-1")
    batch = await receive(line)

    assert (names([batch]), batch.redelivered) == (["order-1"], 0)


async def test_receiving_can_be_cancelled_at_any_moment_without_a_loss(line: Line) -> None:
    sent = [f"order-{n:02}" for n in range(40)]
    for name in sent:
        await send_schedule(line, name)
    batches: list[CommandBatch] = []

    async with asyncio.timeout(PATIENCE_S):
        attempt = 0
        while len(names(batches)) < len(sent):
            attempt += 1
            receiving = asyncio.ensure_future(line.source.receive())
            for _ in range(attempt % 5):
                await asyncio.sleep(0)
            receiving.cancel()
            (result,) = await asyncio.gather(receiving, return_exceptions=True)
            if not isinstance(result, BaseException):
                batches.append(result)

    assert names(batches) == sent
    assert sum(batch.redelivered for batch in batches) == 0
