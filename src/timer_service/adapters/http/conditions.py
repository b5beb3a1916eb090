"""The headers that make a request depend on what there is: ETag, If-Match, If-None-Match, Idempotency-Key."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from timer_service.adapters.http.problems import Problem, invalid_parameter
from timer_service.domain.messages import ServiceCallId, TenantId, Versions
from timer_service.domain.timer import Timer

MAX_KEY_CHARS: Final = 255
ANY: Final = "*"
_ETAGS: Final = re.compile(r'\s*(?:W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
"""A proxy that compresses an answer makes its tag a weak one; ours stand for the timer and not for bytes."""
_SHORT: Final = 16
"""Digits of a hash where two that are equal by chance would harm nobody but the caller."""
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")


def etag_of(timer: Timer, delivery: object = None) -> str:
    """Return the entity tag of a timer as it is shown: another one after every visible change."""
    text = timer.version if delivery is None else f"{timer.version}-{_short(repr(delivery))}"
    return f'"{text}"'


def expected_versions(headers: Mapping[str, str]) -> Versions | None:
    """Return which versions a request counts for: none of them for a creation; None if for any."""
    if "if-none-match" in headers:
        if headers["if-none-match"].strip() != ANY:
            raise invalid_parameter("If-None-Match", "must be * for a change")
        if "if-match" in headers:
            raise invalid_parameter("If-None-Match", "must not be given together with If-Match")
        return frozenset()
    text = headers.get("if-match")
    if text is None or text.strip() == ANY:
        return None
    return frozenset(tag.partition("-")[0] for tag in _tags("If-Match", text))


def must_exist(headers: Mapping[str, str]) -> bool:
    """Return whether a request is about a timer that there is."""
    return "if-match" in headers


def is_unchanged(headers: Mapping[str, str], etag: str) -> bool:
    """Return whether the caller has a timer as it is."""
    text = headers.get("if-none-match")
    return text is not None and (text.strip() == ANY or etag.strip('"') in _tags("If-None-Match", text))


def _tags(name: str, text: str) -> list[str]:
    found, place = [], 0
    while place < len(text):
        match = _ETAGS.match(text, place)
        if match is None:
            raise invalid_parameter(name, 'must be * or entity tags such as "5f2a"')
        found.append(match.group(1))
        place = match.end()
    if not found:
        raise invalid_parameter(name, 'must be * or entity tags such as "5f2a"')
    return found


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the key of a request that may come again."""
    key = headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        raise invalid_parameter("Idempotency-Key", f"must be 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return key


def id_from_key(tenant_id: TenantId, key: str) -> ServiceCallId:
    """Return the id of the timer that a key stands for: the same for the timer's whole life."""
    digest = sha256(f"idempotency\n{tenant_id}\n{key}".encode()).digest()
    return ServiceCallId(str(UUID(bytes=digest[:16], version=5)))


def fingerprint_of(key: str, body: Any) -> str:
    """Tell a repeated request from another one: whatever the order of its fields."""
    return _short(key) + _short(json.dumps(body, sort_keys=True, separators=(",", ":")))


def came_with_key_of(fingerprint: str | None, timer: Timer) -> bool:
    """Return whether a timer was created with the key of a request that finds it there.

    Where the caller names its id, it may have come with another key, or with none.
    """
    if fingerprint is None or timer.fingerprint is None:
        return False
    return timer.fingerprint[:_SHORT] == fingerprint[:_SHORT]


def reused() -> Problem:
    """Return what is told if a key comes with another request."""
    return Problem(
        "idempotency-key-reused", "this Idempotency-Key came with another request before: use a new one"
    )


def _short(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_SHORT]
