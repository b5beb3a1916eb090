"""All that reads what strangers write; each target takes any bytes and fails where a promise is broken."""

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters import codec
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.plain_commands import read_plain_command
from timer_service.cli.arguments import duration, moment
from timer_service.domain.errors import CommandRefused
from timer_service.domain.messages import (
    Command,
    DueTimeReached,
    Position,
    ScheduleTimer,
    TenantId,
    firing_id,
)
from timer_service.ports.command_source import Refusal

SUBJECTS = Subjects("timer")
SUBJECT = "timer.commands.acme.ScheduleTimer"
POSITION = Position(1, 1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAX_LETTER_BYTES = 1_000_000
WHOLE_MS = timedelta(milliseconds=1)
REQUESTS: tuple[type[wire.Model], ...] = (
    wire.GetRequest,
    wire.ScheduleRequest,
    wire.ListRequest,
    wire.EmptyRequest,
)
VALID_BODY = json.dumps(
    {
        "id": "0192f0c1-2345-7abc-8def-0123456789ab",
        "type": "ScheduleTimer",
        "tenantId": "acme",
        "timestampMs": 1,
        "payload": {"tenantId": "acme", "serviceCallId": "order-1", "dueAt": "2026-12-01T09:00:00Z"},
    }
).encode()


def envelope(data: bytes) -> None:
    """A body on a tenant's subject becomes a command that can be kept and fired, or a letter."""
    _decode(SUBJECT, data, None)
    _read_both_ways(data)


def _read_both_ways(body: bytes) -> None:
    """What the short way reads, the careful reader reads in the same way."""
    for command_type in wire.COMMAND_TYPES:
        place = (body, TenantId("acme"), command_type, POSITION, None)
        plain = read_plain_command(*place)
        assert plain is None or plain == codec.decode_carefully(*place)


def subject(data: bytes) -> None:
    """A body that is valid stands on any subject."""
    text = data.decode("utf-8", "backslashreplace")  # As our client does.
    _decode(SUBJECTS.commands_prefix + text, VALID_BODY, None)
    _decode(text, VALID_BODY, None)


def headers(data: bytes) -> None:
    """A message has any headers."""
    client = TolerantClient()
    found = _finish(client._process_headers(b"NATS/1.0\r\n" + data + b"\r\n\r\n"))
    trace = _decode(SUBJECT, VALID_BODY, found)
    assert isinstance(trace, ScheduleTimer), "headers decide nothing"
    assert trace.trace is None or trace.trace.parent.isascii()


def _decode(on: str, body: bytes, found: dict[str, str] | None) -> Command | None:
    try:
        command = codec.decode_command(SUBJECTS, on, body, POSITION, found)
    except CommandRefused as refused:
        _write_letter(refused, on, body)
        return None
    assert command.tenant_id == on.split(".")[2], "the subject is the authority"
    (command.tenant_id + command.service_call_id).encode()
    if isinstance(command, ScheduleTimer):
        _fire(command)
    return command


def _write_letter(refused: CommandRefused, on: str, body: bytes) -> None:
    letter = codec.encode_dead_letter(
        Refusal(refused.reason, refused.detail, on, 1),
        stream="TIMER_COMMANDS",
        received_at=NOW,
        body=body,
        max_bytes=MAX_LETTER_BYTES,
    )
    assert len(letter) <= MAX_LETTER_BYTES
    assert json.loads(letter)["subject"] == on
    tenant = SUBJECTS.tenant_of(on)
    assert tenant is None or wire.is_tenant_id(tenant)


def _fire(command: ScheduleTimer) -> None:
    """Write its event, and read that as another service would."""
    _check_moment(command.due_at)
    event = DueTimeReached(
        command.tenant_id,
        command.service_call_id,
        command.due_at,
        NOW,
        1,
        command.correlation_id,
        command.trace,
    )
    identity = firing_id(command.tenant_id, command.service_call_id, 1, command.due_at)
    read = wire.read_envelope(codec.encode_event(event, str(identity)))
    payload = wire.read_payload(read)
    assert (read.id, read.correlation_id) == (str(identity), command.correlation_id)
    assert isinstance(payload, wire.DueTimeReachedPayload)
    assert (payload.service_call_id, payload.due_at) == (command.service_call_id, command.due_at)


def time(data: bytes) -> None:
    """Any text is a time, or is none."""
    text = _text(data)
    try:
        moment = wire.parse_time(text)
    except ValueError as error:
        assert "must be" in str(error)
        return
    _check_moment(moment)


def _check_moment(moment: datetime) -> None:
    assert moment.tzinfo is UTC
    assert moment.microsecond % 1000 == 0
    assert wire.parse_time(wire.format_time(moment)) == moment


def identifier(data: bytes) -> None:
    """What passes as an id can be stored, sent and shown."""
    text = _text(data)
    if wire.is_tenant_id(text):
        assert text.isascii()
        assert "." not in text
    if wire.is_service_call_id(text) or wire.is_correlation_id(text):
        assert 1 <= len(text) <= 255
        assert "\x00" not in text
        text.encode()


def call(data: bytes) -> None:
    """A request of the API is read, or refused with a reason."""
    if not data:
        return
    model = REQUESTS[data[0] % len(REQUESTS)]
    try:
        request = wire.read_request(model, data[1:])
    except wire.WireError as error:
        assert error.detail
        return
    assert isinstance(request, model)
    if isinstance(request, wire.ListRequest):
        assert 1 <= request.limit <= wire.MAX_PAGE


def cursor(data: bytes) -> None:
    """A cursor leads to a place, or is refused."""
    try:
        due_at, after = read_cursor(_text(data))
    except wire.WireError as error:
        assert error.kind == "invalid"
        return
    _check_moment(due_at)
    assert wire.is_service_call_id(after), "nothing that an id may not be reaches the database"
    assert write_cursor(due_at, after).encode() == data


def command_line(data: bytes) -> None:
    """A time or a duration on the command line is read, or complained about."""
    text = _text(data)
    for read in (duration, moment):
        try:
            found = read(text)
        except argparse.ArgumentTypeError:
            continue
        if isinstance(found, timedelta):
            assert math.isfinite(found.total_seconds())
        else:
            _check_moment(found)


def _text(data: bytes) -> str:
    """Return text with everything in it that JSON or a terminal can hold, lone surrogates included."""
    return data.decode("utf-8", "surrogateescape")


def _finish(step: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        step.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "envelope": envelope,
    "subject": subject,
    "headers": headers,
    "time": time,
    "identifier": identifier,
    "call": call,
    "cursor": cursor,
    "command_line": command_line,
}

_loop = asyncio.new_event_loop()  # A client wants one, although nobody waits.
asyncio.set_event_loop(_loop)
