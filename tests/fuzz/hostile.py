"""Bytes that somebody wrote to break a reader: valid ones with something wrong in them, and plain noise."""

import base64
import json
from copy import deepcopy
from random import Random
from typing import Any

NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**63), 10**400, 253_402_300_800_000,
    "", " ", "\x00", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\udfff", "😀", "é", "e\u0301", "İ", "ß",
    "a" * 64, "a" * 65, "a" * 255, "a" * 256, "☃" * 255, "x" * 70_000, "../..", "acme.>", "*", "globex", "_",
    "'; DROP TABLE timer_schedules; --", "%s%n", "${jndi:x}", [], {}, [[]], [None], {"": {}}, {"_tag": "x"},
    "ScheduleTimer", "CancelTimer", "DueTimeReached", "Scheduled", "2026-12-01T09:00:00Z",
)  # fmt: skip
NASTY_TIMES = (
    "2026-12-01T09:00:00Z", "2026-12-01T09:00:00.0001Z", "2026-12-01T09:00:60Z", "2026-12-01T24:00:00Z",
    "0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9999Z",
    "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00Z", "2026-02-29T00:00:00Z",
    "2024-02-29T00:00:00Z", "2026-W10-1T00:00Z", "20261201T090000Z", "2026-12-01", "2026-12-01T09:00:00",
    "2026-12-01t09:00:00,5z", "2026-12-01T09:00Z", "2026-12-01T09:00:00+2400", "2026-12-01T09:00:00+01",
    "٢٠٢٦-12-01T09:00:00Z", "2026-12-01T09:00:00.Z", "2026-12-01T09:00:00." + "9" * 5_000 + "Z",
    "1969-12-31T23:59:59.999Z", "10s", "1h30m", "500ms", "1e9d", "9" * 400 + "d", "-1s", "0s", "1.5h", "nan s",
)  # fmt: skip
FIELDS = (
    "id", "type", "tenantId", "timestampMs", "payload", "aggregateId", "correlationId", "causationId", "_tag",
    "serviceCallId", "dueAt", "delayMs", "ifAbsent", "expiresAfterMs", "state", "limit", "cursor", "dueFrom", "dueBefore", "new", "__proto__",
)  # fmt: skip
RAW = (
    b"NaN", b"Infinity", b"-Infinity", b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"[" * 5_000, b'{"a":' * 5_000,
    b"\xed\xa0\x80", b"\xc0\x80", b"\\ud800", b"\\u0000", b"1e400", b"\r\n", b"\x00" * 100, b"{}{}", b"'", b'"',
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n", b": :",
    b"Nats-Msg-Id: 1\r\n", b"acme.ScheduleTimer", b"acme..ScheduleTimer", b"a.b.c.d", b">", b"acme.\x0b",
)  # fmt: skip


def hostile(random: Random, target: str) -> bytes:
    """Return one input for a target: often nearly valid, always likely to hurt."""
    data = _NEARLY_VALID.get(target, _json_body)(random)
    for _ in range(random.choice((0, 0, 0, 1, 1, 2, 5))):
        data = _disturbed(random, data)
    return data


def _json_body(random: Random) -> bytes:
    due_at = random.choice(NASTY_TIMES) if random.random() < 0.5 else "2026-12-01T09:00:00.123Z"
    body: dict[str, Any] = {
        "id": "0192f0c1-2345-7abc-8def-0123456789ab",
        "type": random.choice(("ScheduleTimer", "ScheduleTimer", "CancelTimer")),
        "tenantId": "acme",
        "timestampMs": random.choice((1, 1_800_000_000_000)),
        "payload": {"tenantId": "acme", "serviceCallId": "order-1", "dueAt": due_at},
        "serviceCallId": "order-1",
        "dueAt": due_at,
    }
    if random.random() < 0.3:
        extra = {"ifAbsent": True, "expiresAfterMs": random.choice((0, 60_000, -1, 2**63, 1.5, True))}
        wanted = {"delayMs": random.choice((0, 1, 315_576_000_000, 315_576_000_001, "1", 10**40)), **extra}
        for part in (body, body["payload"]):
            part.update(wanted)
            if random.random() < 0.8:
                del part["dueAt"]
    if random.random() < 0.5:
        del body["serviceCallId"]
        body.pop("dueAt", None)  # They are a request's; a command has none outside.
    for _ in range(random.randrange(4)):
        part = random.choice((body, body.get("payload")))
        if not isinstance(part, dict):
            break
        # A copy: a value that is put into itself could not be written, nor one that the next input changes.
        name, value = random.choice(FIELDS), deepcopy(random.choice(NASTY_VALUES + NASTY_TIMES))
        if random.random() < 0.2:
            part.pop(name, None)
        else:
            part[name] = value
    if not isinstance(body.get("payload"), dict):
        body.setdefault("payload", deepcopy(random.choice(NASTY_VALUES)))
    return json.dumps(body, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def _call(random: Random) -> bytes:
    return bytes([random.randrange(256)]) + _json_body(random)


def _time(random: Random) -> bytes:
    if random.random() < 0.5:
        return random.choice(NASTY_TIMES).encode("utf-8", "surrogatepass")
    return "".join(random.choice("0123456789-:.,TtZz+smhd ") for _ in range(random.randrange(40))).encode()


def _text(random: Random) -> bytes:
    text = random.choice(NASTY_VALUES)
    return str(text).encode("utf-8", "surrogatepass")


def _cursor(random: Random) -> bytes:
    if random.random() < 0.3:
        # A place as we write it, but for the id, which is often none.
        name = random.choice(
            (b"order-1", b"a\x00b", b"a b", b"", b"\xed\xa0\x80", "\U0001f600".encode() * 255)
        )
        return base64.urlsafe_b64encode(b"2026-01-01T00:00:00.000Z " + name + _text(random)[:300])
    place = random.choice((_time, _text))(random) + random.choice((b" ", b"")) + _text(random)
    return base64.urlsafe_b64encode(place)


def _raw(random: Random) -> bytes:
    return b"".join(random.choice(RAW) for _ in range(random.randrange(4)))


_NEARLY_VALID = {
    "subject": _raw,
    "headers": _raw,
    "time": _time,
    "identifier": _text,
    "call": _call,
    "cursor": _cursor,
    "command_line": _time,
}


def _disturbed(random: Random, data: bytes) -> bytes:
    """Change something somewhere."""
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0:
            return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + random.choice(RAW) + data[at:]
        case 3:
            return data[at:] + data[:at]
        case 4:
            return data[:at] + random.randbytes(random.randrange(1, 20)) + data[at:]
        case _:
            return data[:at] + data[max(0, at - random.randrange(1, 30)) :]
