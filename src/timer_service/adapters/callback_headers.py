"""The headers of a caller: what they may be, how they are kept, and what of them is shown."""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Final

from timer_service.adapters.sealing import NotOpened, SecretKeys
from timer_service.domain.messages import TimerKey

MAX_HEADERS: Final = 20
MAX_HEADER_BYTES: Final = 8_192
"""Names and values of a callback together."""

Headers = tuple[tuple[str, str], ...]

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_RESERVED_PREFIXES: Final = ("webhook-", "timer-", "proxy-")
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
# An allow-list: any other name may be a vendor's own for a token.
_IN_CLEAR: Final = frozenset(
    {
        "accept",
        "accept-language",
        "cache-control",
        "content-encoding",
        "content-language",
        "content-type",
        "prefer",
    }
)
_NOT_OPENED: Final = "***** (sealed with a key that is missing)"
_MASK: Final = re.compile(rf"\*{{5}} \([0-9a-f]{{8}}\)|{re.escape(_NOT_OPENED)}")
_REFERENCE: Final = re.compile(r"\$\{secret:([A-Za-z0-9_.-]{1,64})\}")
SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class WrongHeader(ValueError):
    """A header that is refused, with its name and what is allowed."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name!r} {problem}")
        self.name = name


def read_headers(given: Mapping[str, str]) -> Headers:
    """Check a caller's headers. Raises ValueError that says what is allowed, WrongHeader for one of them."""
    _check_number(len(given))
    for name, value in given.items():
        problem = _problem(name, value)
        if problem is not None:
            raise WrongHeader(name, problem)
    if len({name.lower() for name in given}) < len(given):
        raise ValueError("a name is given twice: header names are case-insensitive")
    _check_size(tuple(given.items()))
    return tuple(given.items())


def _check_number(count: int) -> None:
    if count > MAX_HEADERS:
        raise ValueError(f"there are {count} headers: at most {MAX_HEADERS} are allowed")


def _check_size(headers: Headers) -> None:
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise ValueError(f"must be at most {MAX_HEADER_BYTES} bytes in all")


def _problem(name: str, value: str) -> str | None:
    lower = name.lower()
    if not _NAME.fullmatch(name):
        return "is not a header name: letters, digits and !#$%&'*+.^_`|~- are allowed"
    if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
        return "is set by the service: leave it out"
    if not _VALUE.fullmatch(value) or value != value.strip():
        return "must have a value of printable ASCII, without line breaks and without spaces at either end"
    if _MASK.fullmatch(value):
        return "has a masked value, as it was shown: give the value itself, or leave the header out"
    if "${secret:" in _REFERENCE.sub("", value):
        return "has a reference that cannot be read: write ${secret:name}, name of letters, digits and _.-"
    return None


class HeaderVault:
    """Keeps header values: all but a few harmless ones are sealed, for this timer and header alone."""

    def __init__(self, keys: SecretKeys) -> None:
        self._keys = keys

    def sealed(self, timer: TimerKey, headers: Headers) -> Headers:
        """Return the headers as they are stored."""
        return tuple((name, self._sealed(timer, name, value)) for name, value in headers)

    def together(self, timer: TimerKey, kept: Headers, added: Headers) -> Headers:
        """Return stored headers that a callback keeps with those that it gets. Raises ValueError."""
        stored = (*kept, *added)
        _check_number(len(stored))
        try:
            _check_size(self.opened(timer, stored))
        except NotOpened as error:
            raise ValueError("some can no longer be decrypted: give all of them again") from error
        return stored

    def opened(self, timer: TimerKey, stored: Headers) -> Headers:
        """Return the headers as they were given. Raises NotOpened."""
        return tuple((name, self._opened(timer, name, value)) for name, value in stored)

    def shown(self, timer: TimerKey, stored: Headers) -> dict[str, str]:
        """Return the headers as their owner may see them; equal values have equal fingerprints."""
        return {name: self._shown(timer, name, value) for name, value in stored}

    def rewrapped(self, timer: TimerKey, stored: Headers) -> Headers | None:
        """Return stored headers sealed with the newest key; None where they are already."""
        if all(_is_clear(name) or self._keys.is_newest(_from_text(value)) for name, value in stored):
            return None
        return self.sealed(timer, self.opened(timer, stored))

    def _sealed(self, timer: TimerKey, name: str, value: str) -> str:
        if _is_clear(name):
            return value
        return base64.b64encode(self._keys.seal(value.encode(), "header", *timer, name.lower())).decode()

    def _opened(self, timer: TimerKey, name: str, value: str) -> str:
        if _is_clear(name):
            return value
        return self._keys.open(_from_text(value), "header", *timer, name.lower()).decode()

    def _shown(self, timer: TimerKey, name: str, value: str) -> str:
        if _is_clear(name):
            return value
        try:
            return masked(self._keys, timer[0], self._opened(timer, name, value))
        except NotOpened:
            return _NOT_OPENED


def masked(keys: SecretKeys, tenant_id: str, secret: str) -> str:
    """Return a mask with eight digits by which a person can tell whether two secrets are the same."""
    return f"***** ({keys.fingerprint(secret.encode(), tenant_id)[:8]})"


def secrets_named(headers: Headers) -> Iterator[str]:
    """Yield the names of the secrets that the headers refer to."""
    for _, value in headers:
        yield from _REFERENCE.findall(value)


def with_secrets(headers: Headers, secrets: Mapping[str, str]) -> Headers:
    """Replace references to secrets with the secrets."""
    return tuple((name, _REFERENCE.sub(lambda found: secrets[found[1]], value)) for name, value in headers)


def secret_values(given: Headers, sent: Mapping[str, str]) -> list[str]:
    """Return what was sent, by lower-case names, in those of the caller's stored headers that are secret."""
    return [sent[name.lower()] for name, value in given if not _is_clear(name) or _REFERENCE.search(value)]


def _is_clear(name: str) -> bool:
    return name.lower() in _IN_CLEAR


def _from_text(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise NotOpened("a header that is not sealed") from error
