"""What is no valid command is set aside with a reason and harms nobody, whatever its bytes are."""

import asyncio
import base64
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import NatsServer
from tests.support.messages import ABSENT, cancel, encode, in_seconds, parse, schedule, with_payload
from tests.support.patience import PATIENCE_S
from tests.support.world import NO_REDELIVERY_MS, World

MEBIBYTE = 1024 * 1024
FLAT_MIB = 32
"""What 280 large bodies more may add to the peak of memory; together they are 250 MiB."""

FUTURE = "2026-12-01T09:00:00+01:00"
SCHEDULE = b"acme.ScheduleTimer"
CANCEL = b"acme.CancelTimer"


@dataclass(frozen=True)
class Bad:
    """A message that must be refused, for this reason, with this word in the detail."""

    body: bytes
    reason: str
    word: str
    subject: bytes = SCHEDULE
    letter_tenant: str = "acme"


def good(**changes: Any) -> dict[str, Any]:
    return schedule("acme", "never", FUTURE, **changes)


def envelope(word: str, reason: str = "invalid", **changes: Any) -> Bad:
    return Bad(encode(good(**changes)), reason, word)


def payload(word: str, reason: str = "invalid", **changes: Any) -> Bad:
    return Bad(encode(with_payload(good(), **changes)), reason, word)


def due(text: Any) -> Bad:
    return payload("dueAt", dueAt=text)


def subject(tail: bytes, word: str, reason: str = "invalid", letter_tenant: str = "_") -> Bad:
    """A good body where it does not belong."""
    return Bad(encode(good()), reason, word, tail, letter_tenant)


def with_text(field: str, text: bytes) -> bytes:
    """A good command whose field holds exactly this JSON text."""
    marker = "put the text here"
    in_payload = field in good()["payload"]
    message = with_payload(good(), **{field: marker}) if in_payload else good(**{field: marker})
    return encode(message).replace(encode(marker), text)


NESTED_100 = b"[" * 100 + b"]" * 100
GOOD = encode(good())

MALFORMED = {
    # Not JSON in UTF-8
    "empty body": Bad(b"", "not_json", "JSON"),
    "blank body": Bad(b" \r\n", "not_json", "JSON"),
    "plain text": Bad(b"wake me at nine", "not_json", "JSON"),
    "cut short": Bad(GOOD[:-1], "not_json", "JSON"),
    "something behind it": Bad(GOOD + b"}", "not_json", "JSON"),
    "NUL behind it": Bad(GOOD + b"\x00", "not_json", "JSON"),
    "single quotes": Bad(GOOD.replace(b'"', b"'"), "not_json", "JSON"),
    "trailing comma": Bad(GOOD[:-1] + b",}", "not_json", "JSON"),
    "comment": Bad(b"// now\n" + GOOD, "not_json", "JSON"),
    "byte order mark": Bad(b"\xef\xbb\xbf" + GOOD, "not_json", "UTF-8"),
    "UTF-16": Bad(GOOD.decode().encode("utf-16"), "not_json", "UTF-8"),
    "Latin-1": Bad(with_text("serviceCallId", b'"caf\xe9"'), "not_json", "UTF-8"),
    "surrogate in UTF-8": Bad(with_text("serviceCallId", b'"\xed\xa0\x80"'), "not_json", "UTF-8"),
    "random bytes": Bad(bytes(range(255, -1, -1)), "not_json", "UTF-8"),
    "NaN": Bad(with_text("timestampMs", b"NaN"), "not_json", "JSON"),
    "NaN where nobody looks": envelope("JSON", "not_json", unknown=float("nan")),
    "Infinity": Bad(with_text("timestampMs", b"Infinity"), "not_json", "JSON"),
    "-Infinity": envelope("JSON", "not_json", unknown=float("-inf")),
    "raw line break in a text": Bad(with_text("serviceCallId", b'"a\nb"'), "not_json", "JSON"),
    "number of 5000 digits": Bad(with_text("timestampMs", b"9" * 5000), "not_json", "number"),
    # JSON, but no envelope
    "array": Bad(b"[" + GOOD + b"]", "invalid", "object"),
    "string": Bad(json.dumps(GOOD.decode()).encode(), "invalid", "object"),
    "number": Bad(b"42", "invalid", "object"),
    "null": Bad(b"null", "invalid", "object"),
    "true": Bad(b"true", "invalid", "object"),
    "empty object": Bad(b"{}", "invalid", "required"),
    "acknowledgement of a stream": Bad(
        b'{"stream":"TIMER_COMMANDS","domain":"hub","seq":1}', "invalid", "required"
    ),
    "nested 100 deep": Bad(NESTED_100, "invalid", "nested"),
    "nested 100 deep in an unknown field": Bad(with_text("unknown", NESTED_100), "invalid", "nested"),
    "objects nested 10000 deep": Bad(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "invalid", "nested"),
    "nested and never closed": Bad(b"[" * 60_000, "invalid", "nested"),
    "nested 100000 deep": Bad(b"[" * 100_000 + b"]" * 100_000, "too_large", "bytes"),
    # Too large
    "1 MiB of valid JSON": Bad(
        with_text("unknown", b'"%s"' % (b"x" * (MEBIBYTE - 600))), "too_large", "bytes"
    ),
    "1 MiB of text": Bad("é".encode() * (MEBIBYTE // 2), "too_large", "bytes"),
    "1 MiB of garbage": Bad(b"\xff\xfe" * (MEBIBYTE // 2), "too_large", "bytes"),
    "1 MiB of control characters": Bad(b"\x01" * MEBIBYTE, "too_large", "bytes"),
    # A field missing
    "no id": envelope("id: is required", id=ABSENT),
    "no type": envelope("type: is required", type=ABSENT),
    "no tenantId": envelope("tenantId: is required", tenantId=ABSENT),
    "no timestampMs": envelope("timestampMs: is required", timestampMs=ABSENT),
    "no payload": envelope("payload: is required", payload=ABSENT),
    "no payload.tenantId": payload("payload.tenantId: is required", tenantId=ABSENT),
    "no payload.serviceCallId": payload("payload.serviceCallId: is required", serviceCallId=ABSENT),
    "no payload.dueAt": payload("payload: must have exactly one of dueAt and delayMs", dueAt=ABSENT),
    "no payload.serviceCallId to cancel": Bad(
        encode(with_payload(cancel("acme", "never"), serviceCallId=ABSENT)),
        "invalid",
        "payload.serviceCallId: is required",
        CANCEL,
    ),
    # A field of the wrong type
    "id is null": envelope("id", id=None),
    "id is a number": envelope("id", id=7),
    "id is no UUID": envelope("UUID", id="order-42"),
    "id is a UUID in braces": envelope("UUID", id="{0192f0c1-2345-7abc-8def-0123456789ab}"),
    "id is a UUID and a line break": envelope("UUID", id="0192f0c1-2345-7abc-8def-0123456789ab\n"),
    "type is a number": envelope("type", type=1),
    "tenantId is a number": envelope("tenantId", tenantId=1),
    "tenantId is a list": envelope("tenantId", tenantId=["acme"]),
    "timestampMs is a text": envelope("timestampMs", timestampMs="1796112000000"),
    "timestampMs is true": envelope("timestampMs", timestampMs=True),
    "timestampMs is a float": envelope("timestampMs", timestampMs=1796112000000.5),
    "timestampMs is a whole float": envelope("timestampMs", timestampMs=1796112000000.0),
    "timestampMs is negative": envelope("timestampMs", timestampMs=-1),
    "timestampMs is huge": envelope("timestampMs", timestampMs=2**63),
    "timestampMs has 4000 digits": Bad(with_text("timestampMs", b"9" * 4000), "invalid", "timestampMs"),
    "timestampMs is beyond a float": Bad(with_text("timestampMs", b"1e400"), "invalid", "timestampMs"),
    "payload is a list": envelope("payload", payload=[]),
    "payload is a text": envelope("payload", payload=encode(good()["payload"]).decode()),
    "payload is null": envelope("payload", payload=None),
    "aggregateId is a number": envelope("aggregateId", aggregateId=1),
    "causationId is an object": envelope("causationId", causationId={}),
    "correlationId is a number": envelope("correlationId", correlationId=1),
    "serviceCallId is a number": payload("serviceCallId", serviceCallId=42),
    "serviceCallId is an object": payload("serviceCallId", serviceCallId={"id": "order-42"}),
    "payload.tenantId is null": payload("payload.tenantId", tenantId=None),
    "_tag is a number": payload("_tag", _tag=1),
    "_tag is another's": payload("_tag", _tag="CancelTimer"),
    # Identifiers
    "serviceCallId is empty": payload("1 to 255", serviceCallId=""),
    "serviceCallId of 256 characters": payload("1 to 255", serviceCallId="x" * 256),
    "space in serviceCallId": payload("whitespace", serviceCallId="order 42"),
    "no-break space in serviceCallId": payload("whitespace", serviceCallId="order\u00a042"),
    "line separator in serviceCallId": payload("whitespace", serviceCallId="order\u202842"),
    "line break behind serviceCallId": payload("whitespace", serviceCallId="order-42\n"),
    "tab in serviceCallId": payload("control", serviceCallId="order\t42"),
    "NUL in serviceCallId": payload("control", serviceCallId="order\x0042"),
    "escape in serviceCallId": payload("control", serviceCallId="\x1b[2J"),
    "DEL in serviceCallId": payload("control", serviceCallId="order\x7f42"),
    "C1 control in serviceCallId": payload("control", serviceCallId="order\x9b42"),
    "lone surrogate in serviceCallId": payload("surrogate", serviceCallId="order\ud83d"),
    "lone trailing surrogate in serviceCallId": payload("surrogate", serviceCallId="\ude00order"),
    "lone surrogate in a field's name": Bad(GOOD[:-1] + b', "\\ud800": 1}', "invalid", "surrogate"),
    "correlationId is empty": envelope("1 to 255", correlationId=""),
    "correlationId of 256 characters": envelope("1 to 255", correlationId="x" * 256),
    "NUL in correlationId": envelope("control", correlationId="a\x00"),
    "line break in correlationId": envelope("control", correlationId="a\nb"),
    "lone surrogate in correlationId": envelope("surrogate", correlationId="\udfff!"),
    "tenantId is empty": envelope("1 to 64", tenantId=""),
    "tenantId of 65 characters": envelope("1 to 64", tenantId="x" * 65),
    "tenantId with a wildcard": envelope("1 to 64", tenantId="*"),
    "tenantId with a dot": envelope("1 to 64", tenantId="acme.eu"),
    "tenantId with a line break": envelope("1 to 64", tenantId="acme\n"),
    "tenantId with a look-alike letter": envelope("1 to 64", tenantId="асme"),
    # Due times
    "no zone": due("2026-12-01T09:00:00"),
    "date only": due("2026-12-01"),
    "week date": due("2026-W49-2T09:00:00Z"),
    "day of the year": due("2026-335T09:00:00Z"),
    "basic format": due("20261201T090000Z"),
    "a space for the T": due("2026-12-01 09:00:00Z"),
    "zone by name": due("2026-12-01T09:00:00[Europe/Berlin]"),
    "two-digit year": due("26-12-01T09:00:00Z"),
    "five-digit year": due("12026-12-01T09:00:00Z"),
    "month 13": due("2026-13-01T09:00:00Z"),
    "30 February": due("2026-02-30T09:00:00Z"),
    "hour 25": due("2026-12-01T25:00:00Z"),
    "minute 60": due("2026-12-01T09:60:00Z"),
    "second 60": due("2026-12-31T23:59:60Z"),
    "year 0000": due("0000-01-01T00:00:00Z"),
    "before the year 0001 in UTC": due("0001-01-01T00:00:00+00:01"),
    "after the year 9999 in UTC": due("9999-12-31T23:59:59-00:01"),
    "rounded past the year 9999": due("9999-12-31T23:59:59.9990001Z"),
    "offset +25:00": due("2026-12-01T09:00:00+25:00"),
    "offset +01:60": due("2026-12-01T09:00:00+01:60"),
    "digits of another script": due("٢٠٢٦-12-01T09:00:00Z"),
    "a line break behind the time": due("2026-12-01T09:00:00Z\n"),
    "a blank before the time": due(" 2026-12-01T09:00:00Z"),
    "dueAt in words": due("tomorrow"),
    "dueAt is empty": due(""),
    "dueAt is a number": due(1796112000000),
    "dueAt is null": due(None),
    "dueAt is true": due(True),
    "NUL in dueAt": due("2026-12-01T09:00:00Z\x00"),
    # Another tenant
    "another tenant in the envelope": envelope("tenantId", "tenant_mismatch", tenantId="globex"),
    "another tenant in the payload": payload("payload.tenantId", "tenant_mismatch", tenantId="globex"),
    "another tenant in both": Bad(encode(schedule("globex", "never", FUTURE)), "tenant_mismatch", "tenantId"),
    "another tenant's cancel": Bad(encode(cancel("globex", "never")), "tenant_mismatch", "tenantId", CANCEL),
    "the tenant in capitals": Bad(encode(schedule("ACME", "never", FUTURE)), "tenant_mismatch", "tenantId"),
    "the tenant named twice": Bad(
        GOOD.replace(b'"type"', b'"tenantId": "acme", "type"').replace(
            b'"timestampMs"', b'"tenantId": "globex", "timestampMs"'
        ),
        "tenant_mismatch",
        "tenantId",
    ),
    # Types and subjects
    "unknown type": envelope("ScheduleTimer, CancelTimer", "unknown_type", type="PauseTimer"),
    "type in small letters": envelope("ScheduleTimer, CancelTimer", "unknown_type", type="scheduletimer"),
    "empty type": envelope("ScheduleTimer, CancelTimer", "unknown_type", type=""),
    "our own event": envelope("ScheduleTimer, CancelTimer", "unknown_type", type="DueTimeReached"),
    "a cancel where schedules go": Bad(encode(cancel("acme", "never")), "invalid", "ScheduleTimer"),
    "a schedule where cancels go": subject(CANCEL, "CancelTimer", letter_tenant="acme"),
    "unknown type in the subject": subject(b"acme.PauseTimer", "subject", "unknown_type", "acme"),
    "our own event in the subject": subject(b"acme.DueTimeReached", "subject", "unknown_type", "acme"),
    "no type in the subject": subject(b"acme", "subject", letter_tenant="acme"),
    "one token too many": subject(b"acme.ScheduleTimer.now", "subject", letter_tenant="acme"),
    "a wildcard for the tenant": subject(b"*.ScheduleTimer", "subject"),
    "a wildcard for the rest": subject(b">", "subject"),
    "a tenant of 65 characters in the subject": subject(b"x" * 65 + b".ScheduleTimer", "subject"),
    "a tenant with a dollar": subject(b"$SYS.ScheduleTimer", "subject"),
    "a tenant that is not ASCII": subject("acmé.ScheduleTimer".encode(), "subject"),
    "a tenant that is not UTF-8": subject(b"ac\xffme.ScheduleTimer", "subject"),
    "a tenant with a NUL": subject(b"ac\x00me.ScheduleTimer", "subject"),
    "a tenant of 3900 characters": subject(b"x" * 3900 + b".ScheduleTimer", "subject"),
}


LETTER_FIELDS = {
    "reason", "detail", "subject", "stream", "sequence", "receivedAt", "body", "bodyEncoding",
}  # fmt: skip


class WirePublisher:
    """Publish any bytes on any subject: below every client library and its checks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, broker: NatsServer) -> "AsyncIterator[WirePublisher]":
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        await reader.readline()  # INFO
        writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB wire.answer 1\r\n')
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def publish(self, subject: bytes, body: bytes, headers: bytes | None = None) -> int:
        """Return the message's sequence in the stream that took it."""
        if headers is None:
            self._writer.write(b"PUB %s wire.answer %d\r\n%s\r\n" % (subject, len(body), body))
        else:
            sizes = len(headers), len(headers) + len(body)
            self._writer.write(b"HPUB %s wire.answer %d %d\r\n%s%s\r\n" % (subject, *sizes, headers, body))
        return int((await self._answer())["seq"])

    async def _answer(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            line = await self._reader.readline()
            while line.startswith(b"PING"):
                self._writer.write(b"PONG\r\n")
                line = await self._reader.readline()
            assert line.startswith(b"MSG wire.answer"), line
            return json.loads(await self._reader.readexactly(int(line.split()[-1]) + 2))


@pytest.fixture
async def wire(world: World) -> AsyncIterator[WirePublisher]:
    async with WirePublisher.connected(world.broker) as publisher:
        yield publisher


def at(world: World, tail: bytes) -> bytes:
    return f"{world.prefix}.commands.".encode() + tail


def original(letter: dict[str, Any]) -> bytes:
    """The refused bytes, as the letter keeps them."""
    if letter["bodyEncoding"] == "base64":
        return base64.b64decode(letter["body"], validate=True)
    assert letter["bodyEncoding"] == "utf-8"
    return str(letter["body"]).encode()


async def test_every_malformed_message_is_set_aside_with_its_reason_and_delays_no_good_one(
    world: World, wire: WirePublisher
) -> None:
    service = world.service(ack_wait=NO_REDELIVERY_MS).start_ready()
    sequences: dict[str, int] = {}
    sent: list[str] = []

    for number, (name, bad) in enumerate(MALFORMED.items()):
        sequences[name] = await wire.publish(at(world, bad.subject), bad.body)
        sent.append(f"good-{number}")
        await world.schedule("acme", sent[-1], in_seconds(0))
    await world.wait_until_consumed()
    events = await world.wait_for_events(len(MALFORMED))
    letters = {letter["sequence"]: letter for letter in await world.letters()}

    assert len(await world.letters()) == len(MALFORMED)
    assert [row["service_call_id"] for row in world.rows("ORDER BY stream_sequence")] == sent
    assert {row["tenant_id"] for row in world.rows()} == {"acme"}
    refused = {name: letters[sequence] for name, sequence in sequences.items()}
    assert {name: letter["reason"] for name, letter in refused.items()} == {
        name: bad.reason for name, bad in MALFORMED.items()
    }
    missing_words = {
        name: letter["detail"]
        for name, letter in refused.items()
        if MALFORMED[name].word not in letter["detail"]
    }
    assert missing_words == {}
    assert sorted(event["payload"]["serviceCallId"] for event in events) == sorted(sent)
    assert await world.deliveries() == 2 * len(MALFORMED), "a command was stuck and came again"
    assert service.events("broker.unavailable") == []


async def test_a_letter_says_where_the_message_came_from_and_keeps_its_bytes(
    world: World, wire: WirePublisher
) -> None:
    world.service().start_ready()

    sequences = {await wire.publish(at(world, bad.subject), bad.body): bad for bad in MALFORMED.values()}
    letters = await world.wait_for_letters(len(MALFORMED))

    for letter in letters:
        bad = sequences[letter["sequence"]]
        cut = letter.pop("bodyTruncated", False)
        assert set(letter) == LETTER_FIELDS | {"letterSubject"}
        assert letter["letterSubject"] == f"{world.prefix}.deadletter.{bad.letter_tenant}"
        assert letter["stream"] == world.commands_stream
        assert letter["subject"] == at(world, bad.subject).decode("utf-8", "backslashreplace")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", letter["receivedAt"])
        assert abs(parse(letter["receivedAt"]).timestamp() - time.time()) < 60
        kept = original(letter)
        assert cut is (len(kept) < len(bad.body))
        assert bad.body.startswith(kept)
        assert len(kept) == min(len(bad.body), 65_536)
        assert letter["bodyEncoding"] == ("utf-8" if _is_utf8(bad.body) else "base64")


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"NATS/1.0", id="cut short"),
        pytest.param(b"NATS/1.0\r\n\r\n", id="none"),
        pytest.param(b"\xff\xfe\xfd\r\n\r\n", id="garbage"),
        pytest.param(b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n", id="not UTF-8"),
        pytest.param(b"NATS/1.0\r\nno colon\r\n\r\n", id="no colon"),
        pytest.param(b"NATS/1.0 404 No Messages\r\n\r\n", id="the broker's own status line"),
        pytest.param(b"NATS/1.0 \xff\xff\xff \xff\r\n\r\n", id="a status line that is not UTF-8"),
        pytest.param(b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n", id="a status"),
    ],
)
async def test_broken_headers_stop_neither_the_command_nor_those_behind_it(
    world: World, wire: WirePublisher, headers: bytes
) -> None:
    world.service(ack_wait=NO_REDELIVERY_MS).start_ready()

    command = encode(schedule("acme", "odd-headers", in_seconds(0)))
    await wire.publish(at(world, SCHEDULE), command, headers)
    await world.schedule("acme", "behind-it", in_seconds(0))
    events = await world.wait_for_events(2)

    assert {event["payload"]["serviceCallId"] for event in events} == {"odd-headers", "behind-it"}
    await world.wait_until_consumed()


@pytest.mark.parametrize(
    "tenant",
    [pytest.param(b"ac\x0bme", id="vertical tab"), pytest.param(b"ac\x0cme", id="form feed")],
)
async def test_a_blank_that_only_some_take_for_one_in_a_subject_does_not_cut_the_connection(
    world: World, wire: WirePublisher, tenant: bytes
) -> None:
    service = world.service(ack_wait=NO_REDELIVERY_MS).start_ready()

    sequence = await wire.publish(at(world, tenant + b".ScheduleTimer"), GOOD)
    await world.schedule("acme", "behind-it", in_seconds(0))
    letters = await world.wait_for_letters(1)
    events = await world.wait_for_events(1)

    assert [(letter["reason"], letter["sequence"]) for letter in letters] == [("invalid", sequence)]
    assert [event["payload"]["serviceCallId"] for event in events] == ["behind-it"]
    assert service.events("broker.unavailable") == []
    await world.wait_until_consumed()


ACCOUNTS = """
authorization {{
  users: [
    {{ user: tenant, password: t }}
    {{ user: service, password: s, permissions: {{ publish: {{ allow: [">"], deny: [{denied}] }} }} }}
  ]
}}
"""
MAY_NOT_ANSWER = ACCOUNTS.format(denied='"$JS.ACK.>"')
MAY_ANSWER = ACCOUNTS.format(denied="")


@pytest.fixture
async def mute_world(tmp_path: Path) -> AsyncIterator[World]:
    """A world in which the service's acknowledgements and terminations do not reach the broker."""
    broker = NatsServer(tmp_path / "broker", MAY_NOT_ANSWER).start()
    opened = await World(tmp_path, broker, "timer").open(user="tenant", password="t")
    yield opened
    await opened.close()
    broker.stop()


async def delivered_again(world: World, times: int) -> None:
    """Wait until the broker has delivered this many messages a second time."""

    async def often_enough() -> bool:
        info = await world.jetstream.consumer_info(world.commands_stream, "timer-service")
        assert info.delivered is not None
        return bool(info.delivered.consumer_seq - info.delivered.stream_seq >= times)

    await world.until(often_enough, f"{times} redeliveries")


async def test_a_refused_message_that_is_delivered_again_has_one_letter(mute_world: World) -> None:
    world = mute_world
    world.service(broker_user="service", broker_password="s", ack_wait=1000).start_ready()
    sequence = await world.send_raw("timer.commands.acme.ScheduleTimer", b"not json")

    await delivered_again(world, times=3)
    world.broker.reconfigure(MAY_ANSWER)
    world.broker.reload()
    await world.wait_until_consumed()

    assert [letter["sequence"] for letter in await world.letters()] == [sequence]


async def test_a_kill_between_letter_and_termination_makes_no_second_letter(mute_world: World) -> None:
    world = mute_world
    service = world.service(broker_user="service", broker_password="s", ack_wait=1000).start_ready()
    sequence = await world.send_raw("timer.commands.acme.ScheduleTimer", b"not json")

    await world.wait_for_letters(1)
    service.kill()
    world.broker.reconfigure(MAY_ANSWER)
    world.broker.reload()
    service.restart()
    await world.wait_until_consumed()

    assert [letter["sequence"] for letter in await world.letters()] == [sequence]


async def test_memory_does_not_grow_with_the_number_of_large_bodies(world: World) -> None:
    service = world.service().start_ready()
    bodies = [b"\xff" * 900_000, b"x" * 900_000, b"\x01" * 900_000]

    async def peak_with(count: int) -> int:
        """Start on this many waiting messages, work them off, and return the peak of memory in MiB."""
        assert service.terminate() == 0
        for number in range(count):
            await world.send_raw(f"{world.prefix}.commands.acme.ScheduleTimer", bodies[number % len(bodies)])
        service.restart()
        await world.wait_until_consumed()
        return peak_memory_mib(service.pid)

    few, many = await peak_with(20), await peak_with(300)

    assert many - few < FLAT_MIB
    info = await world.jetstream.stream_info(world.letters_stream)
    assert info.state.messages == 320


def peak_memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024
