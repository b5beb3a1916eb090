"""Callbacks in requests and answers: checked, sealed, and shown without their secrets."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import Field

from timer_client import wire
from timer_service.adapters.callback_headers import HeaderVault, WrongHeader, read_headers
from timer_service.adapters.http.bodies import Body
from timer_service.adapters.http.problems import FieldError, Problem, invalid, pointer_to
from timer_service.domain.callback import (
    DEFAULT_DELAYS,
    Callback,
    Method,
    RetryPolicy,
    Signing,
    origin_of,
)
from timer_service.domain.delivery import Attempt, Delivery
from timer_service.domain.messages import TimerKey
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.targets import AddressRules, read_target

MAX_PAYLOAD_BYTES: Final = 64 * 1024
MAX_METADATA_BYTES: Final = 4 * 1024
MAX_ATTEMPTS: Final = 50
MAX_PAUSE_MS: Final = 7 * 86_400_000
MAX_EXPIRY_MS: Final = 366 * 86_400_000
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAYBE_TOO_LARGE: Final = re.compile(rb"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{299})")
_NEW: Final = Callback(url="")
"""What a new callback is as long as nothing else is asked for."""


class RetryBody(Body):
    """When an attempt that failed is repeated."""

    max_attempts: int | None = Field(default=None, alias="maxAttempts", ge=1, le=MAX_ATTEMPTS)
    delays_ms: list[int] | None = Field(default=None, alias="delaysMs", max_length=MAX_ATTEMPTS - 1)


class CallbackPatch(Body):
    """What is to change of a callback."""

    url: str | None = None
    method: Literal["POST", "PUT", "PATCH"] | None = None
    headers: dict[str, str | None] | None = None
    body: Any = None
    body_base64: str | None = Field(default=None, alias="bodyBase64")
    content_type: str | None = Field(
        default=None, alias="contentType", pattern=r"^[\x21-\x7e][\x20-\x7e]{0,254}$"
    )
    retry: RetryBody | None = None
    timeout_ms: int | None = Field(default=None, alias="timeoutMs", ge=1_000, le=60_000)
    signing: Literal["ed25519", "hmac"] | None = None
    metadata: Any = None


class CallbackBody(CallbackPatch):
    """The HTTP request of a timer."""

    url: str


class CallbackDesk:
    """Reads callbacks from requests, and shows them."""

    def __init__(
        self, vault: HeaderVault, rules: AddressRules, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:
        self._vault = vault
        self._rules = rules
        self._max_payload_bytes = max_payload_bytes

    def read(
        self,
        key: TimerKey,
        body: CallbackPatch,
        *,
        expires_after_ms: int | None = None,
        before: Callback | None = None,
        pointer: str = "/callback",
        attempts: int | None = None,
    ) -> Callback:
        """Return the callback of a request; what it does not name is as before. Raises Problem."""
        old = before or _NEW
        if attempts is not None and before is None:
            old = Callback(url="", retry=_policy(attempts))
        given = body.model_fields_set
        if body.url is None and "url" in given:
            raise invalid("cannot be removed, only replaced", f"{pointer}/url")
        url = old.url if body.url is None else self._url(body.url, pointer)
        expires = old.expires_after if expires_after_ms is None else expires_after_ms * _MILLISECOND

        def without(name: str) -> Callback:
            """Return where a field comes from that has no value: null takes away what there was."""
            return _NEW if name in given else old

        payload, content_type = _payload(body, old, self._max_payload_bytes, pointer)
        return Callback(
            url=url,
            method=without("method").method if body.method is None else Method(body.method),
            headers=self._headers(key, body, old, url, pointer),
            body=payload,
            content_type=content_type,
            retry=without("retry").retry if body.retry is None else _retry(body.retry, old.retry, pointer),
            timeout=without("timeout_ms").timeout
            if body.timeout_ms is None
            else body.timeout_ms * _MILLISECOND,
            expires_after=expires,
            signing=without("signing").signing if body.signing is None else Signing(body.signing),
            metadata=_metadata(body.metadata, pointer) if "metadata" in given else old.metadata,
        )

    def _url(self, text: str, pointer: str) -> str:
        try:
            # As it is requested: however it is spelled, a receiver has one origin, and one set of limits.
            return read_target(text, self._rules).url
        except ValueError as error:
            raise invalid(f"the URL {error}", f"{pointer}/url") from error

    def _headers(
        self, key: TimerKey, body: CallbackPatch, old: Callback, url: str, pointer: str
    ) -> tuple[tuple[str, str], ...]:
        if body.headers is None and "headers" in body.model_fields_set:
            return ()
        if body.headers is None:
            # What was given for one receiver is not shown to another.
            if old.headers and old.url and origin_of(url) != origin_of(old.url):
                raise invalid("must be given again for another receiver", f"{pointer}/headers")
            return old.headers
        given = {name: value for name, value in body.headers.items() if value is not None}
        named = {name.lower() for name in body.headers}
        same = old.url and origin_of(url) == origin_of(old.url)
        kept = tuple(each for each in old.headers if same and each[0].lower() not in named)
        try:
            fresh = self._vault.sealed(key, read_headers(given))
            return self._vault.together(key, kept, fresh) if kept else fresh
        except WrongHeader as error:
            raise invalid(str(error), f"{pointer}/headers{pointer_to(error.name)}") from error
        except ValueError as error:
            raise invalid(str(error), f"{pointer}/headers") from error

    def view(self, key: TimerKey, callback: Callback) -> dict[str, Any]:
        """Return a callback as its owner may see it."""
        shown: dict[str, Any] = {
            "url": callback.url,
            "method": callback.method.value,
            "headers": self._vault.shown(key, callback.headers),
            "contentType": callback.content_type,
            **_shown_payload(callback),
            "retry": {"delaysMs": [_ms(delay) for delay in callback.retry.delays]},
            "timeoutMs": _ms(callback.timeout),
            "signing": callback.signing.value,
        }
        if callback.metadata is not None:
            shown["metadata"] = json.loads(callback.metadata)
        return shown

    def record_view(self, key: TimerKey, record: CallbackRecord) -> dict[str, Any]:
        """Return what a timer shows of its callback and the delivery."""
        shown: dict[str, Any] = {"callback": self.view(key, record.callback)}
        if record.callback.expires_after is not None:
            shown["expiresAfterMs"] = _ms(record.callback.expires_after)
        if record.delivery is not None:
            shown["delivery"] = delivery_view(record.delivery)
        return shown


def delivery_view(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery as the API shows it; what is not set is absent."""
    times = {
        "dueAt": delivery.due_at,
        "openedAt": delivery.opened_at,
        "nextAttemptAt": delivery.next_attempt_at,
        "lastAttemptAt": delivery.last_attempt_at,
        "endedAt": delivery.ended_at,
    }
    shown: dict[str, Any] = {
        "id": str(delivery.id),
        "serviceCallId": delivery.service_call_id,
        "generation": delivery.generation,
        "state": delivery.state.value,
        "origin": delivery.origin,
        "attempts": delivery.attempts,
        "status": delivery.status,
        "error": delivery.error,
        **{name: wire.format_time(at) for name, at in times.items() if at is not None},
    }
    return {name: value for name, value in shown.items() if value is not None}


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt that failed as the API shows it."""
    shown: Mapping[str, Any] = {
        "number": attempt.number,
        "startedAt": wire.format_time(attempt.started_at),
        "durationMs": _ms(attempt.duration),
        "status": attempt.status,
        "error": attempt.error,
        "answer": attempt.answer,
    }
    return {name: value for name, value in shown.items() if value is not None}


def read_payload(payload: bytes) -> Any:
    """Return what a body says, where it is JSON that we can write again; otherwise raise ValueError."""
    value = wire.parse_json(payload)
    if _MAYBE_TOO_LARGE.search(payload):
        json.dumps(value, allow_nan=False)  # 1e400 is JSON, but not a number that we know.
    return value


def _payload(body: CallbackPatch, old: Callback, most: int, pointer: str) -> tuple[bytes | None, str]:
    """Return the exact bytes to sign and send, and what they are."""
    given = body.model_fields_set
    before = _NEW if "content_type" in given else old
    content_type = body.content_type or before.content_type
    # Where a callback is given whole, null is a body; in a patch it takes away what is shown there.
    has_body = "body" in given and (body.body is not None or isinstance(body, CallbackBody))
    if body.body_base64 is None:
        if has_body:
            return _written(body.body, most, f"{pointer}/body"), content_type
        takes_away = "body" in given or ("body_base64" in given and "bodyBase64" in _shown_payload(old))
        return None if takes_away else old.body, content_type
    if has_body:
        raise invalid("only one of body and bodyBase64 may be given", f"{pointer}/bodyBase64")
    try:
        exact = base64.b64decode(body.body_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("must be base64", f"{pointer}/bodyBase64") from error
    return _bounded(exact, most, f"{pointer}/bodyBase64"), content_type


def _written(value: Any, most: int, pointer: str) -> bytes:
    """Return what JSON held as JSON again."""
    payload = _bounded(wire.write_json(value), most, pointer)
    if b"Infinity" in payload:
        # 1e400 is JSON, but not a number that we know: written again, it would be the name of none.
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise invalid("contains a number that is too large", pointer) from error
    return payload


def _bounded(payload: bytes, most: int, pointer: str) -> bytes:
    if len(payload) > most:
        detail = f"must be at most {most} bytes (has {len(payload)})"
        raise Problem("too-large", f"{pointer}: {detail}", (FieldError(pointer, detail),))
    return payload


def _metadata(value: Any, pointer: str) -> str | None:
    if value is None:
        return None
    return _written(value, MAX_METADATA_BYTES, f"{pointer}/metadata").decode()


def _retry(body: RetryBody, old: RetryPolicy, pointer: str) -> RetryPolicy:
    if body.delays_ms is not None and body.max_attempts is not None:
        raise invalid("only one of maxAttempts and delaysMs may be given", f"{pointer}/retry/maxAttempts")
    if not body.model_fields_set:
        return old  # A merge patch that names nothing changes nothing.
    if body.delays_ms is None:
        return RetryPolicy() if body.max_attempts is None else _policy(body.max_attempts)
    if not all(1_000 <= delay <= MAX_PAUSE_MS for delay in body.delays_ms):
        raise invalid(f"each must be from 1000 to {MAX_PAUSE_MS}", f"{pointer}/retry/delaysMs")
    return RetryPolicy(tuple(delay * _MILLISECOND for delay in body.delays_ms))


def _policy(attempts: int) -> RetryPolicy:
    """Return the usual pauses for this many attempts; the last one is repeated."""
    more = max(0, attempts - 1 - len(DEFAULT_DELAYS))
    return RetryPolicy((*DEFAULT_DELAYS, *DEFAULT_DELAYS[-1:] * more)[: attempts - 1])


def _shown_payload(callback: Callback) -> dict[str, Any]:
    if callback.body is None:
        return {}
    if callback.content_type.partition(";")[0].strip() == "application/json":
        try:
            return {"body": read_payload(callback.body)}
        except ValueError:
            pass  # Exact bytes that say they are JSON.
    return {"bodyBase64": base64.b64encode(callback.body).decode()}


def _ms(span: timedelta) -> int:
    return span // _MILLISECOND
