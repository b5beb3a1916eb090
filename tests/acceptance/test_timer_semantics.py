"""The table of commands and states, from outside the process."""

import contextlib
import sqlite3
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.messages import ABSENT, cancel, in_seconds, iso, parse, schedule, with_payload
from tests.support.patience import PATIENCE_S
from tests.support.world import World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = 3600.0


def _firings(events: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Say of each event which timer it is of, for which due time, and which generation."""
    return [
        (event["payload"]["serviceCallId"], event["payload"]["dueAt"], event["payload"]["generation"])
        for event in events
    ]


async def _fire_marker(world: World) -> list[dict[str, Any]]:
    """Send a timer that is due now, wait until it has fired, and return all events so far."""
    due = in_seconds(0)
    await world.schedule("acme", "marker", due)
    await world.wait_for_row("acme", "marker", state="Reached")
    return await world.events()


# ScheduleTimer


async def test_a_first_schedule_inserts_generation_1_and_fires_once(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(0.5)

    await world.schedule("acme", "order-1", due, correlationId="request-7")
    events = await world.wait_for_events(1)
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert [event["payload"]["serviceCallId"] for event in events] == ["order-1"]
    assert events[0]["payload"]["dueAt"] == iso(due) == row["due_at"]
    assert events[0]["payload"]["generation"] == row["generation"] == 1
    assert events[0]["correlationId"] == row["correlation_id"] == "request-7"


async def test_a_first_schedule_is_kept_as_one_row(world: World) -> None:
    world.service().start_ready()
    due, before = in_seconds(FAR), in_seconds(0)

    sequence = await world.schedule("acme", "order-1", due, correlationId="request-7")
    row = await world.wait_for_row("acme", "order-1", state="Scheduled")

    assert world.rows() == [
        {
            "tenant_id": "acme",
            "service_call_id": "order-1",
            "state": "Scheduled",
            "due_at": iso(due),
            "generation": 1,
            "registered_at": row["registered_at"],
            "correlation_id": "request-7",
            "reached_at": None,
            "cancelled_at": None,
            "stream_created_us": row["stream_created_us"],
            "stream_sequence": sequence,
            "traceparent": None,
            "tracestate": None,
            "sink": 0,
            "callback_revision": 0,
            "expires_after_ms": None,
            "expired_at": None,
            "verdict": None,
            "fingerprint": None,
        }
    ]
    assert iso(before) <= row["registered_at"] <= iso(in_seconds(0))


async def test_a_reschedule_to_an_earlier_time_fires_then_as_the_next_generation(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR), correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", generation=1)
    due = in_seconds(0.3)

    await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", state="Reached")
    events = await world.events()

    assert _firings(events) == [("order-1", iso(due), 2)]
    assert events[0]["correlationId"] == "request-7"
    assert (row["registered_at"], row["due_at"]) == (before["registered_at"], iso(due))


async def test_a_reschedule_to_a_later_time_fires_then_and_not_before(world: World) -> None:
    world.service().start_ready()
    first, second = in_seconds(1.5), in_seconds(1.9)
    await world.schedule("acme", "order-1", first)
    before = await world.wait_for_row("acme", "order-1", generation=1)

    await world.schedule("acme", "order-1", second)
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert _firings(await world.events()) == [("order-1", iso(second), 2)]
    assert (row["registered_at"], row["due_at"]) == (before["registered_at"], iso(second))


async def test_a_reschedule_without_a_correlation_id_keeps_the_stored_one(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR), correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", generation=1)
    due = in_seconds(2 * FAR)

    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", generation=2)

    assert row == {**before, "due_at": iso(due), "generation": 2, "stream_sequence": sequence}


async def test_a_reschedule_with_a_correlation_id_replaces_the_stored_one(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(1)
    await world.schedule("acme", "order-1", in_seconds(FAR), correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", generation=1)

    await world.schedule("acme", "order-1", due, correlationId="request-8")
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert [event["correlationId"] for event in await world.events()] == ["request-8"]
    assert (row["correlation_id"], row["registered_at"]) == ("request-8", before["registered_at"])


async def test_the_same_due_time_again_is_no_new_generation(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", due, correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", generation=1)

    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", stream_sequence=sequence)

    assert row == {**before, "stream_sequence": sequence}


async def test_the_same_due_time_with_another_correlation_id_replaces_only_that(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", due, correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", generation=1)

    sequence = await world.schedule("acme", "order-1", due, correlationId="request-8")
    row = await world.wait_for_row("acme", "order-1", stream_sequence=sequence)

    assert row == {**before, "correlation_id": "request-8", "stream_sequence": sequence}


async def test_the_same_due_time_in_another_zone_is_no_new_generation(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", "2999-06-01T12:00:00Z")
    before = await world.wait_for_row("acme", "order-1", generation=1)

    sequence = await world.schedule("acme", "order-1", "2999-06-01T17:30:00.000+05:30")
    row = await world.wait_for_row("acme", "order-1", stream_sequence=sequence)

    assert row == {**before, "stream_sequence": sequence}


async def test_a_schedule_of_a_reached_timer_is_ignored_and_its_row_untouched(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", LONG_AGO, correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", state="Reached")

    await world.schedule("acme", "order-1", in_seconds(FAR), correlationId="request-8")
    await world.schedule("acme", "order-1", LONG_AGO + timedelta(days=1))
    events = await _fire_marker(world)

    assert world.row("acme", "order-1") == before
    assert _firings(events)[:-1] == [("order-1", iso(LONG_AGO), 1)]


async def test_a_cancelled_timer_is_scheduled_anew_as_the_next_generation(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR), correlationId="request-7")
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")
    await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled")
    due = in_seconds(0.3)

    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert _firings(await world.events()) == [("order-1", iso(due), 2)]
    assert row == {
        **before,
        "state": "Reached",
        "due_at": iso(due),
        "generation": 2,
        "reached_at": row["reached_at"],
        "stream_sequence": sequence,
        "traceparent": None,
        "tracestate": None,
    }


async def test_a_cancelled_timer_scheduled_for_the_same_time_is_the_next_generation_too(
    world: World,
) -> None:
    world.service().start_ready()
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", due)
    before = await world.wait_for_row("acme", "order-1", generation=1)
    await world.cancel("acme", "order-1")

    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", stream_sequence=sequence)

    assert row == {**before, "generation": 2, "stream_sequence": sequence}


async def test_a_reschedule_between_publishing_and_marking_is_not_lost(world: World) -> None:
    service = world.service().start_ready()
    first = in_seconds(1)
    await world.schedule("acme", "order-1", first)
    await world.wait_for_row("acme", "order-1", generation=1)

    with contextlib.closing(sqlite3.connect(world.db_path, isolation_level=None)) as blocker:
        # The first generation can be published but not marked, until the reschedule waits in front of it.
        blocker.execute("BEGIN IMMEDIATE")
        await world.wait_for_events(1)
        second = in_seconds(0)
        await world.schedule("acme", "order-1", second)
        service.wait_for_log("store.unavailable")
        blocker.execute("ROLLBACK")
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    # On a machine so slow that the mark was tried again before the command came in, only the first counts.
    firings = [("order-1", iso(first), 1), ("order-1", iso(second), 2)][: row["generation"]]
    assert _firings(await world.events()) == firings
    assert (row["due_at"], row["generation"]) == firings[-1][1:]


# CancelTimer


async def test_a_cancel_of_an_unknown_timer_is_remembered(world: World) -> None:
    world.service().start_ready()
    before = in_seconds(0)

    sequence = await world.cancel("acme", "order-1")
    row = await world.wait_for_row("acme", "order-1", state="Cancelled")

    assert world.rows() == [
        {
            "tenant_id": "acme",
            "service_call_id": "order-1",
            "state": "Cancelled",
            "due_at": None,
            "generation": 0,
            "registered_at": row["registered_at"],
            "correlation_id": None,
            "reached_at": None,
            "cancelled_at": row["registered_at"],
            "stream_created_us": row["stream_created_us"],
            "stream_sequence": sequence,
            "traceparent": None,
            "tracestate": None,
            "sink": 0,
            "callback_revision": 0,
            "expires_after_ms": None,
            "expired_at": None,
            "verdict": None,
            "fingerprint": None,
        }
    ]
    assert iso(before) <= row["registered_at"] <= iso(in_seconds(0))


async def test_a_timer_cancelled_before_it_was_known_can_be_scheduled_later(world: World) -> None:
    world.service().start_ready()
    await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled")

    await world.schedule("acme", "order-1", LONG_AGO)
    await world.wait_for_row("acme", "order-1", state="Reached")

    assert _firings(await world.events()) == [("order-1", iso(LONG_AGO), 1)]


async def test_a_cancelled_timer_never_fires(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(1)
    await world.schedule("acme", "order-1", due)
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")

    sequence = await world.cancel("acme", "order-1")
    row = await world.wait_for_row("acme", "order-1", state="Cancelled")
    await world.schedule("acme", "later", due + timedelta(milliseconds=200))
    events = await world.wait_for_events(1)

    assert row == {
        **before,
        "state": "Cancelled",
        "cancelled_at": row["cancelled_at"],
        "stream_sequence": sequence,
        "traceparent": None,
        "tracestate": None,
    }
    assert [call for call, _, _ in _firings(events)] == ["later"]
    assert world.row("acme", "order-1") == row


async def test_a_cancel_of_a_reached_timer_is_ignored_and_its_row_untouched(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", LONG_AGO)
    before = await world.wait_for_row("acme", "order-1", state="Reached")

    await world.cancel("acme", "order-1")
    await _fire_marker(world)

    assert world.row("acme", "order-1") == before


async def test_a_cancel_of_a_cancelled_timer_is_ignored(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.cancel("acme", "order-1")
    before = await world.wait_for_row("acme", "order-1", state="Cancelled")

    sequence = await world.cancel("acme", "order-1")
    await _fire_marker(world)

    assert world.row("acme", "order-1") == {**before, "stream_sequence": sequence}


# Due times


async def test_a_past_due_time_is_rounded_up_to_the_millisecond_and_fires_at_once(world: World) -> None:
    # The poll alone would be too late for the wait below.
    world.service(polling_interval=60_000).start_ready()
    kept = {
        "0001-01-01T00:00:00Z": "0001-01-01T00:00:00.000Z",
        "1969-07-20T20:17:40.123456-04:00": "1969-07-21T00:17:40.124Z",
        "2020-01-01T00:00:00Z": "2020-01-01T00:00:00.000Z",
        "2020-01-01T00:00:00.0001Z": "2020-01-01T00:00:00.001Z",
        "2020-06-01T12:00:00.5+05:30": "2020-06-01T06:30:00.500Z",
        "2020-12-31T23:59:59.999000001Z": "2021-01-01T00:00:00.000Z",
    }

    for given in kept:
        await world.schedule("acme", given, given)
    events = await world.wait_for_events(len(kept))
    await world.wait_until_all_reached(len(kept))

    assert sorted(_firings(events)) == sorted((given, due, 1) for given, due in kept.items())
    assert {row["service_call_id"]: row["due_at"] for row in world.rows()} == kept


async def test_a_coming_due_time_finer_than_a_millisecond_is_rounded_up(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(0.5)

    await world.schedule("acme", "order-1", iso(due).replace("Z", "0001Z"))
    events = await world.wait_for_events(1)

    rounded = due + timedelta(milliseconds=1)
    assert _firings(events) == [("order-1", iso(rounded), 1)]
    assert parse(events[0]["payload"]["reachedAt"]) >= rounded


async def test_a_due_time_in_the_far_future_is_kept_and_does_not_fire(world: World) -> None:
    world.service().start_ready()

    await world.schedule("acme", "order-1", "9999-12-31T23:59:59.999Z")
    row = await world.wait_for_row("acme", "order-1", state="Scheduled")
    events = await _fire_marker(world)

    assert row["due_at"] == "9999-12-31T23:59:59.999Z"
    assert [call for call, _, _ in _firings(events)] == ["marker"]


# Messages


async def test_an_event_has_exactly_the_fields_of_the_contract(world: World) -> None:
    world.service().start_ready()
    received = await world.client.subscribe(f"{world.prefix}.events.>")
    due = in_seconds(0.3)
    command = schedule("acme", "order-1", due, correlationId="request-7", causationId="click-9")

    await world.send(command)
    message = await received.next_msg(timeout=PATIENCE_S)
    (event,) = await world.wait_for_events(1)

    reached_at, event_id = event["payload"]["reachedAt"], uuid.UUID(event["id"])
    assert event == {
        "id": str(event_id),
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": event["timestampMs"],
        "aggregateId": "order-1",
        "correlationId": "request-7",
        "payload": {
            "_tag": "DueTimeReached",
            "tenantId": "acme",
            "serviceCallId": "order-1",
            "dueAt": iso(due),
            "reachedAt": iso(parse(reached_at)),
            "generation": 1,
        },
    }
    assert (event_id.version, event_id.variant) == (7, uuid.RFC_4122)
    assert event_id.int >> 80 == _epoch_ms(due)
    assert _epoch_ms(due) <= event["timestampMs"] <= _epoch_ms(in_seconds(0))
    assert message.subject == f"{world.prefix}.events.acme.DueTimeReached"
    assert (message.headers or {})["Nats-Msg-Id"] == event["id"] != command["id"]


async def test_an_event_without_a_correlation_id_has_no_such_field(world: World) -> None:
    world.service().start_ready()

    await world.schedule("acme", "order-1", LONG_AGO)
    (event,) = await world.wait_for_events(1)

    assert set(event) == {"id", "type", "tenantId", "timestampMs", "aggregateId", "payload"}


async def test_the_id_of_a_firing_before_1970_has_a_time_part_of_zero(world: World) -> None:
    world.service().start_ready()

    await world.schedule("acme", "order-1", "1969-12-31T23:59:59.999Z")
    (event,) = await world.wait_for_events(1)

    event_id = uuid.UUID(event["id"])
    assert (event_id.version, event_id.variant, event_id.int >> 80) == (7, uuid.RFC_4122, 0)


async def test_every_firing_has_an_id_of_its_own(world: World) -> None:
    world.service().start_ready()

    for tenant, call in [("acme", "order-1"), ("acme", "order-2"), ("umbrella", "order-1")]:
        await world.schedule(tenant, call, LONG_AGO)
        await world.schedule(tenant, f"{call}-moved", in_seconds(FAR))
        await world.schedule(tenant, f"{call}-moved", LONG_AGO)
    events = await world.wait_for_events(6)

    assert len({event["id"] for event in events}) == 6
    assert sorted(event["payload"]["generation"] for event in events) == [1, 1, 1, 2, 2, 2]


async def test_optional_fields_may_be_null_or_absent(world: World) -> None:
    world.service().start_ready()
    nulls = {"correlationId": None, "aggregateId": None, "causationId": None}
    no_fields = dict.fromkeys(nulls, ABSENT)

    await world.send(with_payload(schedule("acme", "order-1", LONG_AGO, **nulls), _tag=None))
    await world.send(with_payload(schedule("acme", "order-2", LONG_AGO, **no_fields), _tag=ABSENT))
    await world.send(with_payload(cancel("acme", "order-3", **nulls), _tag=None))
    await world.send(with_payload(cancel("acme", "order-4", **no_fields), _tag=ABSENT))
    await world.wait_for_row("acme", "order-4", state="Cancelled")
    events = await world.wait_for_events(2)

    assert {row["service_call_id"]: row["correlation_id"] for row in world.rows()} == {
        "order-1": None,
        "order-2": None,
        "order-3": None,
        "order-4": None,
    }
    assert sorted((event["aggregateId"], "correlationId" in event) for event in events) == [
        ("order-1", False),
        ("order-2", False),
    ]
    assert await world.letters() == []


async def test_unknown_fields_are_ignored(world: World) -> None:
    world.service().start_ready()
    news = {"schemaVersion": 9, "trace": {"sampled": True, "spans": [1, 2, None]}, "priority": "high"}

    await world.send(with_payload(schedule("acme", "order-1", LONG_AGO, **news), **news))
    await world.send(with_payload(cancel("acme", "order-2", **news), **news))
    await world.wait_for_row("acme", "order-2", state="Cancelled")
    (event,) = await world.wait_for_events(1)

    assert set(event) == {"id", "type", "tenantId", "timestampMs", "aggregateId", "payload"}
    assert set(event["payload"]) == {
        "_tag",
        "tenantId",
        "serviceCallId",
        "dueAt",
        "reachedAt",
        "generation",
    }
    assert await world.letters() == []


async def test_opaque_ids_come_back_as_they_were_given(world: World) -> None:
    world.service().start_ready()
    call = 'ünï/çödé:"quotes".*>\\{}🕰️' + "x" * 200
    correlation = "with spaces and ünïcödé " + "y" * 200

    await world.schedule("A-z_09", call, LONG_AGO, correlationId=correlation)
    (event,) = await world.wait_for_events(1, tenant="A-z_09")

    assert (event["tenantId"], event["aggregateId"], event["payload"]["serviceCallId"]) == (
        "A-z_09",
        call,
        call,
    )
    assert event["correlationId"] == correlation


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
