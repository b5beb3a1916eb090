"""The exact HTTP request of one attempt: what the caller gave, what we add, and the signature over it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from timer_client.wire import format_time
from timer_service import __version__
from timer_service.adapters.callback_headers import Headers
from timer_service.adapters.webhook.signature import SigningKey, signature_headers
from timer_service.domain.delivery import CallbackRequest

USER_AGENT: Final = f"timer-service/{__version__}"
EVENT_TYPE: Final = "timer.reached"
_ASCII_BUT_PERCENT: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


@dataclass(frozen=True, slots=True)
class Message:
    """A request as it goes over the wire."""

    url: str
    method: str
    headers: dict[str, str]
    body: bytes


def build_message(
    request: CallbackRequest, url: str, headers: Headers, keys: Sequence[SigningKey]
) -> Message:
    """Return the request of an attempt; `headers` are the caller's, opened and complete."""
    body = event_body(request) if request.callback.body is None else request.callback.body
    return Message(
        url=url,
        method=request.callback.method.value,
        # Ours are written last: no header of a caller takes the place of one of them.
        headers=_given(request, headers, body) | _ours(request) | _signed(request, keys, body),
        body=body,
    )


def wire_bytes(message: Message, *, in_full: bool, proxy_headers: Sequence[str] = ()) -> bytes:
    """Return a request as it is written to a connection; a proxy is told the whole URL (`in_full`)."""
    place, _, path = message.url.partition("://")[2].partition("/")
    lines = [
        f"{message.method} {message.url if in_full else '/' + path} HTTP/1.1",
        f"host: {place}",
        *(proxy_headers if in_full else ()),
        *(() if "accept" in message.headers else ("accept: */*",)),
        f"content-length: {len(message.body)}",
        *[f"{name}: {value}" for name, value in message.headers.items()],
    ]
    head = "\r\n".join(lines)
    # Each value was checked before. A line break all the same would write headers of its own.
    if not head.count("\r") == head.count("\n") == len(lines) - 1:
        raise ValueError("a line break in a header")
    return f"{head}\r\n\r\n".encode() + message.body


def event_body(request: CallbackRequest) -> bytes:
    """Return the body of a callback that brought none: the same bytes at every attempt."""
    data: dict[str, Any] = {
        "tenantId": request.tenant_id,
        "serviceCallId": request.service_call_id,
        "dueAt": format_time(request.due_at),
        "reachedAt": format_time(request.reached_at),
        "generation": request.generation,
    }
    if request.correlation_id is not None:
        data["correlationId"] = request.correlation_id
    event = {"type": EVENT_TYPE, "timestamp": format_time(request.reached_at), "data": data}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def _given(request: CallbackRequest, headers: Headers, body: bytes) -> dict[str, str]:
    given = {name.lower(): value for name, value in headers}
    return {"content-type": request.callback.content_type} | given if body else given


def _ours(request: CallbackRequest) -> dict[str, str]:
    lateness = request.sent_at - request.due_at
    ours = {
        "user-agent": USER_AGENT,
        "idempotency-key": str(request.id),
        "timer-id": quote(request.service_call_id, safe=_ASCII_BUT_PERCENT),
        "timer-due-at": format_time(request.due_at),
        "timer-generation": str(request.generation),
        "timer-attempt": str(request.attempt),
        "timer-lateness-ms": str(lateness // timedelta(milliseconds=1)),
    }
    if request.trace is not None and _may_be_sent(request.trace.parent):
        ours["traceparent"] = request.trace.parent
        if request.trace.state is not None and _may_be_sent(request.trace.state):
            ours["tracestate"] = request.trace.state
    return ours


def _signed(request: CallbackRequest, keys: Sequence[SigningKey], body: bytes) -> dict[str, str]:
    return signature_headers(keys, str(request.id), request.sent_at, body)


def _may_be_sent(text: str) -> bool:
    """Return whether a text of a stranger may stand in a header."""
    return bool(text) and text.isascii() and text.isprintable()
