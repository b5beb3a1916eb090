"""Subjects and bytes into commands, events and letters into subjects and bytes."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import messages
from tests.support.timers import ACME, at, call, correlation, reached, scheduled_timer
from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters.codec import (
    decode_command,
    encode_dead_letter,
    encode_event,
    event_headers,
    timer_fields,
    timer_view,
)
from timer_service.domain.errors import CommandRefused, RefusalReason
from timer_service.domain.messages import CancelTimer, Command, Position, ScheduleTimer, TenantId, Trace
from timer_service.ports.command_source import Refusal

SUBJECTS = Subjects("timer")
PLACE = Position(1, 7)
DUE = messages.iso(at(60))
ALLOWED = "timer.commands.<tenantId>.<ScheduleTimer or CancelTimer>"


def decode(message: Any, subject: str = "timer.commands.acme.ScheduleTimer") -> Command:
    body = message if isinstance(message, bytes) else messages.encode(message)
    return decode_command(SUBJECTS, subject, body, PLACE)


def refusal(message: Any, subject: str = "timer.commands.acme.ScheduleTimer") -> tuple[RefusalReason, str]:
    with pytest.raises(CommandRefused) as caught:
        decode(message, subject)
    return caught.value.reason, caught.value.detail


# Subjects


def test_subjects_stand_under_the_prefix() -> None:
    subjects = Subjects("eu.timer")

    assert subjects.all_commands == "eu.timer.commands.>"
    assert subjects.all_events == "eu.timer.events.>"
    assert subjects.all_dead_letters == "eu.timer.deadletter.>"
    assert subjects.command("acme", "CancelTimer") == "eu.timer.commands.acme.CancelTimer"
    assert subjects.event("acme") == "eu.timer.events.acme.DueTimeReached"
    assert subjects.dead_letter("acme") == "eu.timer.deadletter.acme"
    assert subjects.dead_letter(None) == "eu.timer.deadletter._"


@pytest.mark.parametrize(
    ("subject", "tenant"),
    [
        ("timer.commands.acme.ScheduleTimer", "acme"),
        ("timer.commands.acme.what.ever", "acme"),
        ("timer.commands.acme", "acme"),
        ("timer.commands.ScheduleTimer", None),
        ("timer.commands.b@d.ScheduleTimer", None),
        ("timer.commands." + "x" * 65 + ".ScheduleTimer", None),
        ("timer.commands..ScheduleTimer", None),
    ],
)
def test_the_tenant_of_a_subject_is_its_first_token_where_that_is_one(
    subject: str, tenant: str | None
) -> None:
    assert SUBJECTS.tenant_of(subject) == tenant


# Commands


def test_a_schedule_timer_becomes_a_command_at_its_position() -> None:
    command = decode(messages.schedule("acme", "order-1", DUE, correlationId="request-1"))

    assert command == ScheduleTimer(ACME, call("order-1"), at(60), correlation("request-1"), PLACE)


def test_a_schedule_timer_without_a_correlation_has_none() -> None:
    command = decode(messages.schedule("acme", "order-1", DUE))

    assert command == ScheduleTimer(ACME, call("order-1"), at(60), None, PLACE)


def test_a_cancel_timer_becomes_a_command_at_its_position() -> None:
    command = decode(
        messages.cancel("acme", "order-1", correlationId="request-1"), "timer.commands.acme.CancelTimer"
    )

    assert command == CancelTimer(ACME, call("order-1"), PLACE)


def test_a_prefix_of_several_tokens_is_taken_off_the_subject() -> None:
    body = messages.encode(messages.cancel("acme", "order-1"))

    command = decode_command(Subjects("eu.timer"), "eu.timer.commands.acme.CancelTimer", body, PLACE)

    assert command == CancelTimer(ACME, call("order-1"), PLACE)


@pytest.mark.parametrize(
    "subject",
    [
        "timer.commands.acme",
        "timer.commands.acme.ScheduleTimer.now",
        "timer.commands.b@d.ScheduleTimer",
        "timer.commands." + "x" * 65 + ".ScheduleTimer",
        "timer.commands..ScheduleTimer",
        "other.commands.acme.ScheduleTimer",
    ],
)
def test_a_subject_of_another_form_is_refused_with_what_is_allowed(subject: str) -> None:
    assert refusal(messages.schedule("acme", "order-1", DUE), subject) == (
        RefusalReason.INVALID,
        f"subject: must be {ALLOWED}, with a tenantId of 1 to 64 of A-Z a-z 0-9 _ - (got {subject!r})",
    )


@pytest.mark.parametrize("kind", ["PauseTimer", "DueTimeReached", "scheduletimer"])
def test_a_subject_of_an_unknown_type_is_refused_whatever_the_body_says(kind: str) -> None:
    subject = f"timer.commands.acme.{kind}"

    assert refusal(messages.schedule("acme", "order-1", DUE), subject) == (
        RefusalReason.UNKNOWN_TYPE,
        f"subject: must be {ALLOWED} (got {subject!r})",
    )


@pytest.mark.parametrize("kind", ["PauseTimer", "DueTimeReached"])
def test_an_envelope_of_an_unknown_type_is_refused(kind: str) -> None:
    assert refusal(messages.schedule("acme", "order-1", DUE, type=kind)) == (
        RefusalReason.UNKNOWN_TYPE,
        f"type: must be one of ScheduleTimer, CancelTimer (got {kind!r})",
    )


def test_an_envelope_of_another_type_than_its_subject_is_refused() -> None:
    assert refusal(messages.cancel("acme", "order-1")) == (
        RefusalReason.INVALID,
        "type: must equal the subject's last token 'ScheduleTimer' (got 'CancelTimer')",
    )


def test_an_envelope_of_another_tenant_than_its_subject_is_refused() -> None:
    assert refusal(messages.schedule("globex", "order-1", DUE)) == (
        RefusalReason.TENANT_MISMATCH,
        "tenantId 'globex' must equal the tenant of the subject, 'acme'",
    )


def test_a_payload_of_another_tenant_than_its_subject_is_refused() -> None:
    message = messages.with_payload(messages.schedule("acme", "order-1", DUE), tenantId="globex")

    assert refusal(message) == (
        RefusalReason.TENANT_MISMATCH,
        "payload.tenantId 'globex' must equal the envelope's, 'acme'",
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", RefusalReason.NOT_JSON),
        (b"[]", RefusalReason.INVALID),
        (b" " * 65_537, RefusalReason.TOO_LARGE),
        (messages.encode({"stream": "TIMER_COMMANDS", "seq": 1}), RefusalReason.INVALID),
    ],
)
def test_every_wire_error_is_a_refusal_with_its_reason(body: bytes, reason: RefusalReason) -> None:
    assert refusal(body)[0] is reason


def test_the_detail_of_a_refusal_is_bounded() -> None:
    _, detail = refusal({}, "timer.commands." + "ä" * 10_000 + ".ScheduleTimer")

    assert len(detail) == 2_000


# Events


def test_an_event_is_written_with_its_id_and_the_time_it_was_handled() -> None:
    event = reached("order-1", 60, reached_s=60.042, generation=2, correlation="request-1")

    body = encode_event(event, str(event.id))

    assert json.loads(body) == {
        "id": str(event.id),
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": 1_767_268_860_042,
        "aggregateId": "order-1",
        "correlationId": "request-1",
        "payload": {
            "_tag": "DueTimeReached",
            "tenantId": "acme",
            "serviceCallId": "order-1",
            "dueAt": "2026-01-01T12:01:00.000Z",
            "reachedAt": "2026-01-01T12:01:00.042Z",
            "generation": 2,
        },
    }


def test_an_event_of_one_tenant_never_stands_on_the_subject_of_another() -> None:
    tenants = [TenantId("acme"), TenantId("Acme"), TenantId("acme-2")]

    assert len({SUBJECTS.event(tenant) for tenant in tenants}) == 3


# Dead letters


def letter(
    body: bytes, max_bytes: int = 1_000_000, *, detail: str = "broken", subject: str = "timer.commands.acme.X"
) -> bytes:
    return encode_dead_letter(
        Refusal(RefusalReason.INVALID, detail, subject, 7),
        stream="TIMER_COMMANDS",
        received_at=at(0.5),
        body=body,
        max_bytes=max_bytes,
    )


def test_a_letter_tells_what_was_wrong_where_and_with_what() -> None:
    body = '{"a": "ä\\u0000"}'.encode()

    assert json.loads(letter(body)) == {
        "reason": "invalid",
        "detail": "broken",
        "subject": "timer.commands.acme.X",
        "stream": "TIMER_COMMANDS",
        "sequence": 7,
        "receivedAt": "2026-01-01T12:00:00.500Z",
        "body": '{"a": "ä\\u0000"}',
        "bodyEncoding": "utf-8",
    }


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_letter_names_each_reason_by_its_word(reason: RefusalReason) -> None:
    written = encode_dead_letter(
        Refusal(reason, "x", "s", 1),
        stream="S",
        received_at=at(0),
        body=b"",
        max_bytes=999,
    )

    assert json.loads(written)["reason"] == reason.value


def test_the_reasons_are_the_words_of_the_contract() -> None:
    words = {reason.value for reason in RefusalReason}

    assert words == {"not_json", "invalid", "unknown_type", "tenant_mismatch", "too_large"}


@given(st.binary(max_size=300))
def test_a_letter_holds_the_original_bytes(body: bytes) -> None:
    written = json.loads(letter(body))

    assert "bodyTruncated" not in written
    if written["bodyEncoding"] == "utf-8":
        assert written["body"].encode() == body
    else:
        assert written["bodyEncoding"] == "base64"
        assert base64.b64decode(written["body"]) == body
        assert not _is_utf_8(body)


def _is_utf_8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_letter_that_just_fits_is_whole() -> None:
    body = b"x" * 30_000
    size = len(letter(body))

    assert json.loads(letter(body, size))["body"] == body.decode()
    assert json.loads(letter(body, size - 1))["bodyTruncated"] is True


LIMIT = 64_000
LARGE = {
    "plain": b"x",
    "control characters, six for one": b"\x01",
    "quotes, two for one": b'"',
    "two bytes a character": "ä".encode(),
    "three bytes a character": "€".encode(),
    "four bytes a character": "😀".encode(),
    "not UTF-8": b"\xff",
    "only the last byte is not UTF-8": b"x" * 199_999 + b"\xff",
}


@pytest.mark.parametrize("piece", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_a_body_too_large_for_a_letter_is_cut_to_what_fits(piece: bytes, shift: int) -> None:
    body = b"y" * shift + piece * (200_000 // len(piece))

    written = letter(body, LIMIT)

    assert len(written) <= LIMIT
    cut = json.loads(written)
    assert cut["bodyTruncated"] is True
    kept = base64.b64decode(cut["body"]) if cut["bodyEncoding"] == "base64" else cut["body"].encode()
    assert body.startswith(kept)
    assert len(kept) > 7_000


def test_a_cut_through_a_character_leaves_readable_text() -> None:
    encodings = {
        json.loads(letter(b"y" * shift + "😀".encode() * 50_000, LIMIT))["bodyEncoding"] for shift in range(4)
    }

    assert encodings == {"utf-8"}


def test_what_is_not_utf_8_stays_base64_when_cut() -> None:
    cut = json.loads(letter(b"\xff" * 200_000, LIMIT))

    assert cut["bodyEncoding"] == "base64"
    assert set(base64.b64decode(cut["body"])) == {0xFF}


# The broker's limits: a subject of 4,096 bytes, which need not be UTF-8, and a payload of 1 MiB.
LONGEST_SUBJECT = (b"timer.commands." + b"\xff" * 4_000).decode("utf-8", "backslashreplace")


def test_a_letter_fits_also_with_the_longest_subject_and_the_worst_body() -> None:
    _, detail = refusal({}, LONGEST_SUBJECT)

    written = letter(b"\x01" * 1_048_000, 1_047_552, detail=detail, subject=LONGEST_SUBJECT)

    assert len(written) <= 1_047_552
    assert json.loads(written)["bodyTruncated"] is True


def test_a_letter_to_a_broker_with_small_messages_still_says_what_was_wrong() -> None:
    written = letter(b"x" * 8_000, 4_096)

    assert len(written) <= 4_096
    cut = json.loads(written)
    assert (cut["reason"], cut["detail"], cut["bodyTruncated"]) == ("invalid", "broken", True)


# What callers and subscribers see


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (None, {}),
        (Trace("00-a-b-01", None), {"traceparent": "00-a-b-01"}),
        (Trace("00-a-b-01", "x=y"), {"traceparent": "00-a-b-01", "tracestate": "x=y"}),
    ],
)
def test_an_event_carries_its_id_and_the_trace_of_its_command(
    trace: Trace | None, expected: dict[str, str]
) -> None:
    event = replace(reached("order-1", 0), trace=trace)

    assert event_headers(event, "the id") == {"Nats-Msg-Id": "the id", **expected}


def test_the_fields_of_a_timer_are_those_of_its_view() -> None:
    timer = scheduled_timer("order-1", 60, correlation="request-1")
    full = replace(
        timer,
        reached_at=at(60),
        cancelled_at=at(61),
        expired_at=at(62),
        expires_after_ms=5,
        trace=Trace("00-1-2-01", None),
    )

    assert [timer_fields(each) for each in (timer, full)] == [
        wire.fields_of(timer_view(each)) for each in (timer, full)
    ]


def test_an_answer_shows_a_timer_without_what_is_not_set() -> None:
    view = timer_view(scheduled_timer("order-1", 60, correlation="request-1"))

    assert (
        wire.fields_of(view)
        == json.loads(wire.write_model(view))
        == {
            "tenantId": "acme",
            "serviceCallId": "order-1",
            "state": "Scheduled",
            "dueAt": "2026-01-01T12:01:00.000Z",
            "generation": 1,
            "registeredAt": "2026-01-01T12:00:00.000Z",
            "correlationId": "request-1",
        }
    )


def test_the_api_has_its_subjects_below_the_prefix() -> None:
    subjects = Subjects("timer")

    assert (subjects.api("acme", "get"), subjects.status, subjects.clock_accept) == (
        "timer.api.acme.get",
        "timer.status",
        "timer.clock.accept",
    )
