"""Messages as another team would write them: by docs/messages.md, without our code."""

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

ABSENT = object()


def new_id() -> uuid.UUID:
    return uuid.uuid4()


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_seconds(seconds: float) -> datetime:
    """Return a moment so far from now, on a whole millisecond."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def parse(text: str) -> datetime:
    return datetime.fromisoformat(text)


def schedule(tenant: str, call: str, due: datetime | str, **changes: Any) -> dict[str, Any]:
    """Return a ScheduleTimer envelope; `changes` set or (with ABSENT) remove envelope fields."""
    due_at = due if isinstance(due, str) else iso(due)
    payload = {"_tag": "ScheduleTimer", "tenantId": tenant, "serviceCallId": call, "dueAt": due_at}
    return _envelope("ScheduleTimer", tenant, call, payload, changes)


def cancel(tenant: str, call: str, **changes: Any) -> dict[str, Any]:
    """Return a CancelTimer envelope."""
    payload = {"_tag": "CancelTimer", "tenantId": tenant, "serviceCallId": call}
    return _envelope("CancelTimer", tenant, call, payload, changes)


def with_payload(envelope: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the envelope with payload fields set or removed."""
    return {**envelope, "payload": _changed(envelope["payload"], changes)}


def encode(message: Any) -> bytes:
    return json.dumps(message).encode()


def decode(body: bytes) -> Any:
    return json.loads(body)


def _envelope(
    kind: str, tenant: str, call: str, payload: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    envelope = {
        "id": str(uuid.uuid4()),
        "type": kind,
        "tenantId": tenant,
        "timestampMs": int(datetime.now(UTC).timestamp() * 1000),
        "aggregateId": call,
        "payload": payload,
    }
    return _changed(envelope, changes)


def _changed(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**fields, **changes}.items() if value is not ABSENT}
