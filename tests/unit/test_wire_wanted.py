"""What a caller may say of a timer beside its name: when, whether, for how long."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import messages
from timer_client import wire

TEN_YEARS_MS = 315_576_000_000
STORED = datetime(2026, 12, 1, 9, tzinfo=UTC)


def command(**fields: Any) -> bytes:
    envelope = messages.schedule("acme", "order-42", "2026-12-01T09:00:00Z")
    return messages.encode(messages.with_payload(envelope, **fields))


def read(**fields: Any) -> wire.Wanted:
    payload = wire.read_payload(wire.read_envelope(command(**fields)))
    assert isinstance(payload, wire.ScheduleTimerPayload)
    return payload


def refusals(**fields: Any) -> tuple[str, str]:
    """Return how a command and how a request with these fields is refused."""
    body = {"serviceCallId": "order-42", "dueAt": "2026-12-01T09:00:00Z", **fields}
    present = {name: value for name, value in body.items() if value is not messages.ABSENT}
    with pytest.raises(wire.WireError) as refused:
        read(**fields)
    with pytest.raises(wire.WireError) as refused_request:
        wire.read_request(wire.ScheduleRequest, messages.encode(present))
    assert refused.value.kind == refused_request.value.kind == "invalid"
    return refused.value.detail, refused_request.value.detail


def after(delay_ms: int) -> wire.Wanted:
    return read(dueAt=messages.ABSENT, delayMs=delay_ms)


def test_nothing_but_a_due_time_means_what_it_always_did() -> None:
    wanted = read()

    assert wanted.due_from(datetime(1999, 1, 1, tzinfo=UTC)) == datetime(2026, 12, 1, 9, tzinfo=UTC)
    assert (wanted.if_absent, wanted.expires_after_ms) == (None, None)


@pytest.mark.parametrize("delay_ms", [0, 1, 86_400_000, TEN_YEARS_MS])
def test_a_delay_counts_from_the_given_moment(delay_ms: int) -> None:
    assert after(delay_ms).due_from(STORED) == STORED + timedelta(milliseconds=delay_ms)


@pytest.mark.parametrize(("finer_us", "due_ms"), [(0, 5), (1, 6), (999, 6), (1000, 6), (1001, 7)])
def test_a_due_time_is_rounded_up_to_the_millisecond(finer_us: int, due_ms: int) -> None:
    moment = STORED + timedelta(microseconds=finer_us)

    assert after(5).due_from(moment) == STORED + timedelta(milliseconds=due_ms)


def test_a_delay_beyond_the_year_9999_is_refused() -> None:
    with pytest.raises(wire.WireError, match=r"delayMs: the due time must be .* the years 0001 to 9999"):
        after(TEN_YEARS_MS).due_from(datetime(9995, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"dueAt": messages.ABSENT}, "neither"),
        ({"dueAt": None}, "neither"),
        ({"dueAt": None, "delayMs": None}, "neither"),
        ({"delayMs": 0}, "both"),
    ],
)
def test_exactly_one_of_due_time_and_delay_is_allowed(fields: dict[str, Any], got: str) -> None:
    rule = f"must have exactly one of dueAt and delayMs (got {got})"

    assert refusals(**fields) == (f"payload: {rule}", f"the body {rule}")


@pytest.mark.parametrize("field", ["delayMs", "expiresAfterMs"])
@pytest.mark.parametrize("value", [-1, TEN_YEARS_MS + 1, 1.0, 1.5, "1000", True, [], 10**40])
def test_a_span_is_a_whole_number_of_milliseconds_up_to_ten_years(field: str, value: object) -> None:
    fields = {field: value, **({"dueAt": messages.ABSENT} if field == "delayMs" else {})}
    rule = f"{field}: must be a whole number of milliseconds from 0 to {TEN_YEARS_MS}"

    detail, request_detail = refusals(**fields)

    assert detail.startswith(f"payload.{rule} (got ")
    assert request_detail.startswith(f"{rule} (got ")


@pytest.mark.parametrize("value", [1, 0, "true", "yes", []])
def test_if_absent_is_true_or_false(value: object) -> None:
    assert refusals(ifAbsent=value)[0] == f"payload.ifAbsent: must be true or false (got {value!r})"


@pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False), (None, None)])
def test_null_and_false_mean_that_an_existing_timer_is_moved(value: object, expected: bool | None) -> None:
    assert read(ifAbsent=value).if_absent is expected


def test_what_is_wanted_is_written_as_it_is_read() -> None:
    wanted = wire.Wanted.model_validate({"delayMs": 5, "ifAbsent": True, "expiresAfterMs": 7})

    body = wire.write_command(
        message_id=messages.new_id(),
        timestamp_ms=7,
        tenant_id="acme",
        service_call_id="order-42",
        wanted=wanted,
        correlation_id=None,
    )

    read_again = wire.read_payload(wire.read_envelope(body))
    assert isinstance(read_again, wire.ScheduleTimerPayload)
    assert wire.fields_of(read_again).items() >= wire.fields_of(wanted).items()


def test_an_expiry_is_written_as_it_is_read() -> None:
    at = datetime(2026, 12, 1, 10, tzinfo=UTC)

    body = wire.write_event(
        wire.TIMER_EXPIRED,
        message_id=str(messages.new_id()),
        timestamp_ms=1,
        tenant_id="acme",
        service_call_id="order-42",
        due_at=STORED,
        at=at,
        generation=3,
        correlation_id=None,
    )

    payload = wire.read_payload(wire.read_envelope(body))
    assert isinstance(payload, wire.TimerExpiredPayload)
    assert (payload.tag, payload.due_at, payload.expired_at, payload.generation) == (
        "TimerExpired",
        STORED,
        at,
        3,
    )


@pytest.mark.parametrize("state", ["Expired", "Snoozed"])
def test_an_answer_with_a_state_or_outcome_of_a_newer_service_is_read(state: str) -> None:
    view = {
        "tenantId": "acme",
        "serviceCallId": "order-42",
        "state": state,
        "generation": 1,
        "registeredAt": "2026-12-01T09:00:00.000Z",
    }

    answer = wire.read_value(wire.ScheduleAnswer, {"outcome": f"already_{state.lower()}", "timer": view})

    assert (answer.outcome, answer.timer.state) == (f"already_{state.lower()}", state)
