"""The short way from bytes to a command: whatever it reads, the careful reader reads in the same way."""

import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.hostile import NASTY_TIMES, NASTY_VALUES, hostile
from tests.support import messages
from tests.support.timers import ACME, at
from timer_client import wire
from timer_service.adapters import codec
from timer_service.adapters.plain_commands import read_plain_command
from timer_service.domain.messages import Command, Position, TenantId, Trace

PLACE = Position(1, 7)
TRACE = Trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)


def plainly(body: bytes, command_type: str = wire.SCHEDULE_TIMER) -> Command | None:
    return read_plain_command(body, ACME, command_type, PLACE, TRACE)


def carefully(body: bytes, command_type: str = wire.SCHEDULE_TIMER) -> Command | None:
    try:
        return codec.decode_carefully(body, ACME, command_type, PLACE, TRACE)
    except wire.WireError:
        return None


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255),
    st.sampled_from([value for value in NASTY_VALUES if isinstance(value, str)]),
)
TIMES = st.one_of(
    st.sampled_from(NASTY_TIMES),
    st.builds(
        lambda moment, minutes, timespec, zone: (
            moment.astimezone(timezone(timedelta(minutes=minutes)))
            .isoformat(timespec=timespec)
            .replace("+00:00", zone)
        ),
        st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)),
        st.sampled_from([0, 0, 0, 90, -720]),
        st.sampled_from(["milliseconds", "seconds", "microseconds", "minutes"]),
        st.sampled_from(["Z", "+00:00", "-00:00", "z"]),
    ),
)
IDS = st.one_of(st.uuids().map(str), st.uuids().map(lambda value: str(value).upper()), TEXTS)
TENANTS = st.sampled_from(["acme", "acme", "acme", "globex", "Acme", ""])
ANYTHING = st.one_of(st.sampled_from(NASTY_VALUES), st.floats(), st.integers(), TEXTS)
PAYLOADS = st.fixed_dictionaries(
    {"tenantId": TENANTS, "serviceCallId": TEXTS, "dueAt": TIMES},
    optional={"_tag": st.sampled_from([None, "ScheduleTimer", "CancelTimer", "x"])},
)
ENVELOPES = st.fixed_dictionaries(
    {
        "id": IDS,
        "type": st.sampled_from(["ScheduleTimer", "ScheduleTimer", "CancelTimer"]),
        "tenantId": TENANTS,
        "timestampMs": st.integers(-1, 253_402_300_800_000),
        "payload": PAYLOADS,
    },
    optional={
        "aggregateId": st.none() | TEXTS,
        "correlationId": st.none() | TEXTS,
        "causationId": st.none() | TEXTS,
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a command as senders write it, often with one thing changed, added, taken away or said twice."""
    envelope: dict[str, Any] = draw(ENVELOPES)
    part: dict[str, Any] = draw(st.sampled_from([envelope, envelope["payload"]]))
    change = draw(st.sampled_from(["nothing", "nothing", "value", "more", "less", "twice"]))
    name = draw(st.sampled_from(sorted(part)))
    if change == "value":
        part[name] = draw(ANYTHING)
    elif change == "more":
        part[draw(st.sampled_from(["delayMs", "ifAbsent", "expiresAfterMs", "new"]))] = draw(ANYTHING)
    elif change == "less":
        del part[name]
    text = json.dumps(envelope, ensure_ascii=draw(st.booleans()))
    if change == "twice":
        text = text.replace(f'"{name}":', f'"{name}": {json.dumps(draw(ANYTHING))}, "{name}":', 1)
    return text.encode("utf-8", "surrogatepass")


@given(body=bodies(), command_type=st.sampled_from(wire.COMMAND_TYPES))
def test_what_the_short_way_reads_the_careful_reader_reads_in_the_same_way(
    body: bytes, command_type: str
) -> None:
    plain = plainly(body, command_type)

    assert plain is None or plain == carefully(body, command_type)


def test_hostile_input_goes_the_short_way_often_enough() -> None:
    """Or the comparison would say nothing."""
    random = Random("plain")
    tried = [hostile(random, "envelope") for _ in range(2_000)]

    valid = [body for body in tried if carefully(body) is not None]
    plain = [body for body in valid if plainly(body) is not None]

    assert len(valid) > 100
    assert len(plain) > 20


@pytest.mark.parametrize(
    "due_at", ["2026-12-01T09:00:00.123Z", "2026-12-01T09:00:00Z", "2026-12-01T09:00:00+00:00"]
)
def test_a_schedule_as_clients_write_it_goes_the_short_way(due_at: str) -> None:
    body = messages.encode(messages.schedule("acme", "order-1", due_at, correlationId="trace 1"))

    assert plainly(body) == carefully(body) is not None


def test_an_id_beyond_ascii_goes_the_short_way() -> None:
    body = _with({"correlationId": "größe 1"}, serviceCallId="größe")

    assert plainly(body) == carefully(body) is not None


def test_what_our_client_writes_goes_the_short_way() -> None:
    written = {
        kind: wire.write_command(
            message_id=uuid.UUID(int=7),
            timestamp_ms=1,
            tenant_id=ACME,
            service_call_id="order-1",
            wanted=wanted,
            correlation_id="trace-1",
        )
        for kind, wanted in (
            (wire.SCHEDULE_TIMER, wire.Wanted.model_construct(due_at=at(60))),
            (wire.CANCEL_TIMER, None),
        )
    }

    for kind, body in written.items():
        assert plainly(body, kind) == carefully(body, kind) is not None


def _with(change: dict[str, Any], **payload: Any) -> bytes:
    return messages.encode(
        messages.with_payload(messages.schedule("acme", "order-1", at(60), **change), **payload)
    )


@pytest.mark.parametrize(
    "body",
    [
        _with({"new": 1}),
        _with({}, new=1),
        _with({}, dueAt="2026-12-01T10:00:00+01:00"),
        _with({}, dueAt="2026-12-01T09:00:00.123456Z"),
    ],
    ids=["a field that we do not know", "one in the payload", "another zone", "finer"],
)
def test_what_is_less_plain_is_left_to_the_careful_reader(body: bytes) -> None:
    assert plainly(body) is None
    assert carefully(body) is not None


@pytest.mark.parametrize(
    "body",
    [
        _with({}, dueAt="2026-12-01T24:00:00.000Z"),
        _with({}, dueAt="2026-02-30T00:00:00Z"),
        _with({}, dueAt=None),
        _with({"tenantId": "globex"}),
        _with({}, tenantId="globex"),
        _with({}, _tag="CancelTimer"),
        _with({"aggregateId": "x" * 70_000}),
        _with({}, serviceCallId="order\n"),
        b"{}",
        b"",
    ],
)
def test_the_short_way_reads_nothing_that_is_wrong(body: bytes) -> None:
    assert plainly(body) is None
    assert carefully(body) is None


def test_a_tenant_is_that_of_the_subject() -> None:
    body = _with({})

    assert read_plain_command(body, TenantId("globex"), wire.SCHEDULE_TIMER, PLACE, None) is None
