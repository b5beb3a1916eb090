"""Messages as a tenant would write them, by docs/messages.md, built fast."""

from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(moment_ms: int) -> str:
    """Return a time as the contract writes it, to the millisecond."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def milliseconds(text: str) -> int:
    """Return the milliseconds since 1970 of such a time."""
    return round((datetime.fromisoformat(text) - EPOCH).total_seconds() * 1000)


def uuid7(moment_ms: int, number: int) -> str:
    """Return a UUIDv7 whose other bits count up: unique in a run, and cheap."""
    tail = f"{number * 0x9E3779B97F4A7C15 & (1 << 62) - 1 | 1 << 63:016x}"  # Spread, as chance would be.
    head = f"{moment_ms:012x}"
    return f"{head[:8]}-{head[8:]}-7{number & 0xFFF:03x}-{tail[:4]}-{tail[4:]}"


def schedule_timer(tenant: str, call: str, due_ms: int, now_ms: int, message_id: str) -> bytes:
    """Return the envelope of one ScheduleTimer command."""
    return (
        f'{{"id":"{message_id}","type":"ScheduleTimer","tenantId":"{tenant}","timestampMs":{now_ms},'
        f'"aggregateId":"{call}","payload":{{"_tag":"ScheduleTimer","tenantId":"{tenant}",'
        f'"serviceCallId":"{call}","dueAt":"{iso(due_ms)}"}}}}'
    ).encode()


def due_time_reached(tenant: str, call: str, due_ms: int, now_ms: int, message_id: str) -> bytes:
    """Return the envelope of one DueTimeReached event."""
    due = iso(due_ms)
    return (
        f'{{"id":"{message_id}","type":"DueTimeReached","tenantId":"{tenant}","timestampMs":{now_ms},'
        f'"aggregateId":"{call}","payload":{{"_tag":"DueTimeReached","tenantId":"{tenant}",'
        f'"serviceCallId":"{call}","dueAt":"{due}","reachedAt":"{due}","generation":1}}}}'
    ).encode()


def frame(subject: str, reply: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return the bytes that publish a message with headers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    return f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n".encode() + head + body + b"\r\n"
