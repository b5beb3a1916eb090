"""Messages on the wire: strict about what we know, tolerant of what we do not."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import messages
from tests.support.messages import ABSENT
from timer_client import wire

DUE = "2026-12-01T09:00:00Z"
ID = "0192f0c1-2345-7abc-8def-0123456789ab"


def envelope(**changes: Any) -> dict[str, Any]:
    """Return a ScheduleTimer that breaks no rule, but for the changes."""
    return messages.schedule(
        "acme", "order-42", DUE, **{"id": ID, "timestampMs": 1_767_268_800_000, **changes}
    )


def payload(**changes: Any) -> dict[str, Any]:
    return messages.with_payload(envelope(), **changes)


def read(message: Any) -> tuple[wire.Envelope, wire.CancelTimerPayload]:
    body = message if isinstance(message, bytes) else messages.encode(message)
    read_envelope = wire.read_envelope(body)
    return read_envelope, wire.read_payload(read_envelope)


def refusal(message: Any) -> tuple[str, str]:
    """Return the reason and the detail with which a message is refused."""
    with pytest.raises(wire.WireError) as caught:
        read(message)
    assert str(caught.value) == caught.value.detail
    return caught.value.kind, caught.value.detail


# What is accepted


def test_a_schedule_timer_is_read_whole() -> None:
    message = envelope(correlationId="request-1", causationId="message-0")

    found, inside = read(message)

    assert found == wire.Envelope(
        id=ID,
        type="ScheduleTimer",
        tenantId="acme",
        timestampMs=1_767_268_800_000,
        payload=message["payload"],
        aggregateId="order-42",
        correlationId="request-1",
        causationId="message-0",
    )
    assert isinstance(inside, wire.ScheduleTimerPayload)
    assert (inside.tag, inside.tenant_id, inside.service_call_id, inside.due_at) == (
        "ScheduleTimer",
        "acme",
        "order-42",
        datetime(2026, 12, 1, 9, tzinfo=UTC),
    )


def test_a_cancel_timer_is_read_whole() -> None:
    found, inside = read(messages.cancel("acme", "order-42"))

    assert found.type == "CancelTimer"
    assert inside == wire.CancelTimerPayload(_tag="CancelTimer", tenantId="acme", serviceCallId="order-42")
    assert type(inside) is wire.CancelTimerPayload


@pytest.mark.parametrize("nothing", [ABSENT, None], ids=["absent", "null"])
def test_an_optional_field_may_be_absent_and_null_means_absent(nothing: object) -> None:
    message = messages.with_payload(
        envelope(aggregateId=nothing, correlationId=nothing, causationId=nothing), _tag=nothing
    )

    found, inside = read(message)

    assert (found.aggregate_id, found.correlation_id, found.causation_id, inside.tag) == (None,) * 4


def test_unknown_fields_are_ignored_wherever_they_stand() -> None:
    message = messages.with_payload(
        envelope(priority=3, tenantID="globex"), note={"deep": [1, None]}, due_at=1
    )

    found, inside = read(message)

    assert found.tenant_id == "acme"
    assert inside == read(envelope())[1]


def test_a_field_is_known_by_its_name_on_the_wire_only() -> None:
    message = {**envelope(tenantId=ABSENT), "tenant_id": "acme"}

    assert refusal(message) == ("invalid", "tenantId: is required")


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "9F1C2D3E-4B5A-4C6D-8E7F-0A1B2C3D4E5F",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
)
def test_a_uuid_of_any_version_is_an_id(text: str) -> None:
    assert read(envelope(id=text))[0].id == text


@pytest.mark.parametrize("text", ["a", "A-z_09", "_", "-", "x" * 64])
def test_a_tenant_is_up_to_64_of_the_allowed_characters_and_its_case_is_kept(text: str) -> None:
    found, inside = read(messages.schedule(text, "order-42", DUE))

    assert (found.tenant_id, inside.tenant_id) == (text, text)
    assert wire.is_tenant_id(text)


@pytest.mark.parametrize(
    "text", ["a", "Order/42?#%", "x" * 255, "😀" * 255, "ä", "a.b.*.>", "'\"\\", "\u200b", "null", "7"]
)
def test_a_service_call_id_is_any_255_visible_characters_and_is_kept(text: str) -> None:
    assert read(payload(serviceCallId=text))[1].service_call_id == text
    assert wire.is_service_call_id(text)


@pytest.mark.parametrize("text", ["a", "with blanks", " ", "x" * 255, "😀" * 255, "\u2028", "\u00a0"])
def test_a_correlation_id_may_hold_blanks(text: str) -> None:
    assert read(envelope(correlationId=text))[0].correlation_id == text
    assert wire.is_correlation_id(text)


@pytest.mark.parametrize("moment", [0, 253_402_300_799_999])
def test_a_timestamp_is_a_whole_number_of_milliseconds_since_1970(moment: int) -> None:
    assert read(envelope(timestampMs=moment))[0].timestamp_ms == moment


def test_a_pair_of_surrogates_is_one_character() -> None:
    body = messages.encode(payload(serviceCallId="MARK")).replace(b"MARK", rb"\ud83d\ude00")

    assert read(body)[1].service_call_id == "😀"


# What is refused, and what is said about it

CONTROL = ["\x00", "\x01", "\x1f", "\x7f", "\x80", "\x85", "\x9f", "\n", "\t"]
UUID_TEXT = "must be a UUID such as 0192f0c1-2345-7abc-8def-0123456789ab"
TENANT_TEXT = "must be 1 to 64 of A-Z a-z 0-9 _ -"
CALL_TEXT = "must be 1 to 255 characters, no whitespace or control characters"
CORRELATION_TEXT = "must be 1 to 255 characters, no control characters"


@pytest.mark.parametrize("field", ["id", "type", "tenantId", "timestampMs", "payload"])
def test_a_missing_envelope_field_is_named(field: str) -> None:
    assert refusal(envelope(**{field: ABSENT})) == ("invalid", f"{field}: is required")


@pytest.mark.parametrize("field", ["tenantId", "serviceCallId"])
def test_a_missing_payload_field_is_named(field: str) -> None:
    assert refusal(payload(**{field: ABSENT})) == ("invalid", f"payload.{field}: is required")


@pytest.mark.parametrize("field", ["id", "type", "tenantId", "timestampMs", "payload"])
def test_null_is_no_value_for_a_required_envelope_field(field: str) -> None:
    kind, detail = refusal(envelope(**{field: None}))

    assert kind == "invalid"
    assert detail.startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["tenantId", "serviceCallId"])
def test_null_is_no_value_for_a_required_payload_field(field: str) -> None:
    kind, detail = refusal(payload(**{field: None}))

    assert kind == "invalid"
    assert detail.startswith(f"payload.{field}: must be ")
    assert detail.endswith("(got None)")


def test_every_broken_field_is_named() -> None:
    kind, detail = refusal({"tenantId": "a b"})

    assert kind == "invalid"
    assert detail == (
        f"id: is required; type: is required; tenantId: {TENANT_TEXT} (got 'a b'); "
        "timestampMs: is required; payload: is required"
    )


@pytest.mark.parametrize(
    "value",
    [
        "",
        "42",
        "0192f0c123457abc8def0123456789ab",
        "{0192f0c1-2345-7abc-8def-0123456789ab}",
        ID + "\n",
        f" {ID}",
        "0192f0c1-2345-7abc-8def-0123456789ag",
        "urn:uuid:" + ID,
        42,
        ["a"],
        {},
        True,
    ],
)
def test_an_id_that_is_no_uuid_is_refused(value: object) -> None:
    assert refusal(envelope(id=value)) == ("invalid", f"id: {UUID_TEXT} (got {value!a})")


@pytest.mark.parametrize(
    "value", ["", "x" * 65, "a.b", "a*", ">", "a b", "ä", "acme\n", "a/b", *CONTROL, 7, [], {}, False]
)
def test_a_tenant_that_is_no_subject_token_is_refused(value: object) -> None:
    assert refusal(envelope(tenantId=value)) == ("invalid", f"tenantId: {TENANT_TEXT} (got {value!a})")
    assert refusal(payload(tenantId=value)) == (
        "invalid",
        f"payload.tenantId: {TENANT_TEXT} (got {value!a})",
    )


@pytest.mark.parametrize(
    "value", ["", " ", "a b", "a\u00a0b", "\u2003", "\u2028", "\u3000", *CONTROL, 7, [], {}, True]
)
def test_a_service_call_id_with_blanks_or_control_characters_is_refused(value: object) -> None:
    assert refusal(payload(serviceCallId=value)) == (
        "invalid",
        f"payload.serviceCallId: {CALL_TEXT} (got {value!a})",
    )


@pytest.mark.parametrize("value", ["", *CONTROL, 7, [], {}, True])
def test_a_correlation_id_with_control_characters_is_refused(value: object) -> None:
    assert refusal(envelope(correlationId=value)) == (
        "invalid",
        f"correlationId: {CORRELATION_TEXT} (got {value!a})",
    )


def test_an_id_of_256_characters_is_refused_and_quoted_in_part() -> None:
    long = "x" * 256

    assert refusal(payload(serviceCallId=long)) == (
        "invalid",
        f"payload.serviceCallId: {CALL_TEXT} (got '{'x' * 79}…)",
    )
    assert refusal(envelope(correlationId=long)) == (
        "invalid",
        f"correlationId: {CORRELATION_TEXT} (got '{'x' * 79}…)",
    )


@pytest.mark.parametrize("text", [*CONTROL, "\ud800", ""])
def test_no_kind_of_id_holds_a_control_character_or_a_lone_surrogate(text: str) -> None:
    checks = (wire.is_tenant_id, wire.is_service_call_id, wire.is_correlation_id)

    assert [check(text) for check in checks] == [False, False, False]


@pytest.mark.parametrize("value", [1_796_115_600_000, 1.5, True, [], {}, ["2026-12-01T09:00:00Z"]])
def test_a_due_time_that_is_no_text_is_refused(value: object) -> None:
    assert refusal(payload(dueAt=value)) == (
        "invalid",
        f"payload.dueAt: must be {wire.TIME_RULE} (got {value!a})",
    )


def test_a_due_time_without_a_zone_is_refused_with_what_is_allowed() -> None:
    assert refusal(payload(dueAt="2026-12-01T09:00:00")) == (
        "invalid",
        f"payload.dueAt: must be {wire.TIME_RULE} (got '2026-12-01T09:00:00')",
    )


def test_an_impossible_due_time_is_refused_with_what_is_wrong_about_it() -> None:
    kind, detail = refusal(payload(dueAt="2026-02-30T09:00:00Z"))

    assert kind == "invalid"
    assert detail.startswith(f"payload.dueAt: must be {wire.TIME_RULE}: day is out of range")
    assert detail.endswith("(got '2026-02-30T09:00:00Z')")


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (-1, "greater than or equal to 0"),
        (253_402_300_800_000, "less than or equal to 253402300799999"),
        (1.0, "a valid integer"),
        (1.5, "a valid integer"),
        ("1", "a valid integer"),
        (True, "a valid integer"),
        ([], "a valid integer"),
    ],
)
def test_a_timestamp_that_is_no_such_number_is_refused(value: object, rule: str) -> None:
    assert refusal(envelope(timestampMs=value)) == (
        "invalid",
        f"timestampMs: Input should be {rule} (got {value!r})",
    )


def test_a_number_of_thousands_of_digits_is_refused_and_quoted_in_part() -> None:
    kind, detail = refusal(envelope(timestampMs=10**4200))

    assert kind == "invalid"
    assert detail.endswith(f"(got 1{'0' * 79}…)")


@pytest.mark.parametrize("value", [[], "{}", 7, True])
def test_a_payload_that_is_no_object_is_refused(value: object) -> None:
    kind, detail = refusal(envelope(payload=value))

    assert kind == "invalid"
    assert detail.startswith("payload: ")
    assert detail.endswith(f"(got {value!a})")


@pytest.mark.parametrize("field", ["type", "aggregateId", "causationId"])
@pytest.mark.parametrize("value", [7, [], {}, True])
def test_a_text_field_that_is_no_text_is_refused(field: str, value: object) -> None:
    assert refusal(envelope(**{field: value})) == (
        "invalid",
        f"{field}: Input should be a valid string (got {value!a})",
    )


@pytest.mark.parametrize("tag", ["CancelTimer", "scheduletimer", ""])
def test_a_tag_that_is_not_the_type_is_refused(tag: str) -> None:
    assert refusal(payload(_tag=tag)) == (
        "invalid",
        f"payload._tag: must equal the type 'ScheduleTimer', or be absent (got {tag!r})",
    )


def test_a_tag_that_is_no_text_is_refused() -> None:
    assert refusal(payload(_tag=7)) == (
        "invalid",
        "payload._tag: Input should be a valid string (got 7)",
    )


@pytest.mark.parametrize("name", ["", "scheduleTimer", "ScheduleTimer ", "PauseTimer"])
def test_a_type_that_we_do_not_know_is_refused_with_those_we_do(name: str) -> None:
    message = messages.with_payload(envelope(type=name), _tag=name)

    assert refusal(message) == (
        "unknown_type",
        f"type: must be one of ScheduleTimer, CancelTimer (got {name!r})",
    )


def test_a_payload_of_another_tenant_than_the_envelope_is_refused() -> None:
    assert refusal(payload(tenantId="globex")) == (
        "tenant_mismatch",
        "payload.tenantId 'globex' must equal the envelope's, 'acme'",
    )


def test_tenants_that_differ_in_case_are_two_tenants() -> None:
    assert refusal(payload(tenantId="Acme"))[0] == "tenant_mismatch"


# JSON itself


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"not json",
        b"{",
        b'{"a":1}{"b":2}',
        b"{'a':1}",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\x01"}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":' + b"9" * 5_000 + b"}",
    ],
    ids=repr,
)
def test_what_is_not_json_in_utf_8_is_refused(body: bytes) -> None:
    kind, detail = refusal(body)

    assert kind == "not_json"
    assert detail.startswith("the body must be JSON in UTF-8: ")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_nan_and_infinity_are_refused_also_where_we_would_not_look(number: bytes) -> None:
    body = messages.encode(envelope(unknown="MARK")).replace(b'"MARK"', number)

    assert refusal(body)[0] == "not_json"


@pytest.mark.parametrize("escape", [rb"\udc00", rb"\ud800", rb"\ud800x", rb"\ud800\ud800", rb"\ud800\n"])
@pytest.mark.parametrize("field", ["serviceCallId", "unknown"])
def test_a_lone_surrogate_is_invalid_and_never_repaired(field: str, escape: bytes) -> None:
    body = messages.encode(payload(**{field: "MARK"})).replace(b"MARK", escape)

    kind, detail = refusal(body)

    assert kind == "invalid"
    assert "surrogate" in detail


@pytest.mark.parametrize("value", [[], "text", 7, None, True, 1.5])
def test_a_body_that_is_no_object_is_refused(value: object) -> None:
    assert refusal(messages.encode(value)) == (
        "invalid",
        f"the body must be a JSON object (got {value!a})",
    )


TOO_DEEP = ("invalid", "the body must not be nested deeper than 32 levels")


def nested(levels: int) -> object:
    """Return lists and objects in turn, this many levels deep."""
    value: object = None
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_32_levels_of_nesting_are_read() -> None:
    assert read(envelope(unknown=nested(31)))[0].id == ID


@pytest.mark.parametrize("levels", [32, 33, 100])
def test_deeper_nesting_is_refused(levels: int) -> None:
    assert refusal(envelope(unknown=nested(levels))) == TOO_DEEP


@pytest.mark.parametrize("levels", [201, 10_000, 30_000])
def test_absurd_nesting_is_refused_without_harm(levels: int) -> None:
    assert refusal(b'{"a":' + b"[" * levels + b"]" * levels + b"}") == TOO_DEEP


def test_nesting_that_never_ends_is_refused_without_harm() -> None:
    assert refusal(b"[" * 65_536) == TOO_DEEP


def test_many_brackets_side_by_side_or_in_a_text_are_not_deep() -> None:
    message = envelope(unknown=[[], {}] * 100, other="[{" * 100)

    assert read(message)[0].id == ID


def test_a_body_of_65536_bytes_is_read() -> None:
    body = messages.encode(envelope())
    body += b" " * (65_536 - len(body))

    assert read(body)[0].id == ID


def test_a_larger_body_is_refused_before_it_is_parsed() -> None:
    assert refusal(b"x" * 65_537) == ("too_large", "the body must be at most 65536 bytes (got 65537)")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    assert refusal(body)[0] in ("not_json", "invalid")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from(
        ["id", "type", "tenantId", "timestampMs", "aggregateId", "correlationId", "causationId", "payload"]
    ),
    st.sampled_from(["_tag", "tenantId", "serviceCallId", "dueAt"]),
    _json,
)
def test_no_value_of_any_field_breaks_the_reader(field: str, payload_field: str, value: object) -> None:
    outcomes = {_outcome(envelope(**{field: value})), _outcome(payload(**{payload_field: value}))}

    assert outcomes <= {"read", "not_json", "invalid", "unknown_type", "tenant_mismatch"}


def _outcome(message: object) -> str:
    try:
        found, inside = read(message)
    except wire.WireError as error:
        return error.kind
    return "read" if found.tenant_id == inside.tenant_id == "acme" else "read for another tenant"


# What we write


def test_a_due_time_reached_is_written_with_its_tag_and_without_a_cause() -> None:
    body = wire.write_event(
        "DueTimeReached",
        message_id=ID,
        timestamp_ms=1_796_115_600_042,
        tenant_id="acme",
        service_call_id="order-42",
        due_at=datetime(2026, 12, 1, 9, tzinfo=UTC),
        at=datetime(2026, 12, 1, 9, 0, 0, 42_000, tzinfo=UTC),
        generation=2,
        correlation_id="request-ä",
    )

    assert json.loads(body) == {
        "id": ID,
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": 1_796_115_600_042,
        "aggregateId": "order-42",
        "correlationId": "request-ä",
        "payload": {
            "_tag": "DueTimeReached",
            "tenantId": "acme",
            "serviceCallId": "order-42",
            "dueAt": "2026-12-01T09:00:00.000Z",
            "reachedAt": "2026-12-01T09:00:00.042Z",
            "generation": 2,
        },
    }


IDS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=255
).filter(wire.is_service_call_id)


@given(call=IDS, correlation=st.none() | IDS)
def test_an_event_is_the_json_that_a_json_library_would_write(call: str, correlation: str | None) -> None:
    body = wire.write_event(
        "DueTimeReached",
        message_id=ID,
        timestamp_ms=1,
        tenant_id="acme",
        service_call_id=call,
        due_at=datetime(2026, 12, 1, 9, tzinfo=UTC),
        at=datetime(2026, 12, 1, 10, tzinfo=UTC),
        generation=1,
        correlation_id=correlation,
    )

    value = json.loads(body)

    assert (value["aggregateId"], value["payload"]["serviceCallId"]) == (call, call)
    assert value.get("correlationId") == correlation
    assert body == json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def test_what_we_write_we_read_again() -> None:
    body = wire.write_event(
        "DueTimeReached",
        message_id=ID,
        timestamp_ms=1,
        tenant_id="acme",
        service_call_id="order-42",
        due_at=datetime(2026, 12, 1, 9, tzinfo=UTC),
        at=datetime(2026, 12, 1, 10, tzinfo=UTC),
        generation=1,
        correlation_id=None,
    )

    found, inside = read(body)

    assert "correlationId" not in json.loads(body)
    assert found.correlation_id is None
    assert isinstance(inside, wire.DueTimeReachedPayload)
    assert inside.model_dump() == {
        "tag": "DueTimeReached",
        "tenant_id": "acme",
        "service_call_id": "order-42",
        "due_at": datetime(2026, 12, 1, 9, tzinfo=UTC),
        "reached_at": datetime(2026, 12, 1, 10, tzinfo=UTC),
        "generation": 1,
    }


@pytest.mark.parametrize(
    ("generation", "text"), [(0, "greater than or equal to 1"), ("1", "a valid integer")]
)
def test_an_event_without_a_generation_from_1_is_refused(generation: object, text: str) -> None:
    message = messages.with_payload(
        envelope(type="DueTimeReached"), _tag="DueTimeReached", reachedAt=DUE, generation=generation
    )

    assert refusal(message) == (
        "invalid",
        f"payload.generation: Input should be {text} (got {generation!r})",
    )


def test_a_schedule_timer_is_written_as_it_is_read() -> None:
    body = wire.write_command(
        message_id=UUID(ID),
        timestamp_ms=7,
        tenant_id="acme",
        service_call_id="order-42",
        wanted=wire.Wanted(dueAt="2026-12-01T09:00:00Z"),  # type: ignore[arg-type]
        correlation_id="request-1",
    )

    assert json.loads(body) == {
        "id": ID,
        "type": "ScheduleTimer",
        "tenantId": "acme",
        "timestampMs": 7,
        "aggregateId": "order-42",
        "correlationId": "request-1",
        "payload": {
            "_tag": "ScheduleTimer",
            "tenantId": "acme",
            "serviceCallId": "order-42",
            "dueAt": "2026-12-01T09:00:00.000Z",
        },
    }
    assert read(body)[1] == read(envelope())[1]


def test_a_command_without_a_due_time_is_written_as_a_cancel() -> None:
    body = wire.write_command(
        message_id=UUID(ID),
        timestamp_ms=7,
        tenant_id="acme",
        service_call_id="order-42",
        wanted=None,
        correlation_id=None,
    )

    assert json.loads(body) == {
        "id": ID,
        "type": "CancelTimer",
        "tenantId": "acme",
        "timestampMs": 7,
        "aggregateId": "order-42",
        "payload": {"_tag": "CancelTimer", "tenantId": "acme", "serviceCallId": "order-42"},
    }


# Traces, schemas and answers

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, None),
        ({"tracestate": "a=b"}, None),
        ({"traceparent": "00-nonsense-01"}, None),
        ({"traceparent": PARENT}, (PARENT, None)),
        ({"Traceparent": PARENT, "Tracestate": "a=b"}, (PARENT, "a=b")),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, (PARENT, None)),
        ({"traceparent": PARENT, "tracestate": "a=\n"}, (PARENT, None)),
    ],
)
def test_a_trace_that_breaks_its_rules_counts_as_absent(
    headers: dict[str, str] | None, expected: tuple[str, str | None] | None
) -> None:
    assert wire.read_trace(headers) == expected


def test_a_schema_names_what_a_call_must_have() -> None:
    assert json.loads(wire.json_schema(wire.ScheduleRequest))["required"] == ["serviceCallId"]
    assert json.loads(wire.json_schema(wire.ScheduleRequest))["oneOf"] == [
        {"required": ["dueAt"]},
        {"required": ["delayMs"]},
    ]


def test_an_answer_is_written_as_short_as_it_can_be() -> None:
    assert wire.write_json({"timers": ["☃"], "cursor": None}) == '{"timers":["☃"],"cursor":null}'.encode()
