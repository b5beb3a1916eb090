"""What a value must be: checks of single settings, and of settings that belong together."""

import ipaddress
import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]
from pydantic import AfterValidator, SecretStr, WrapValidator

from timer_service.addresses import is_clear
from timer_service.config.durations import parse_duration
from timer_service.secret_keys import read_secret_keys
from timer_service.targets import read_allowed, read_target

ENV_PREFIX: Final = "TIMER_"
NO_BROKER: Final = "none"
MIN_API_KEY_CHARS: Final = 32
MAX_RETENTION_DAYS: Final = 36_500
ACK_WAITS_KEPT: Final = 10
"""How many acknowledgements in a row may be lost before an ended timer is forgotten."""
DUPLICATE_WINDOW: Final = timedelta(minutes=2)
"""For how long the broker drops a message that is published again."""
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_STORES: Final = ("sqlite", "postgresql", "postgres")
_ALWAYS: Final = timedelta(days=MAX_RETENTION_DAYS)


def env_name(field: str) -> str:
    """Return the environment variable of a setting."""
    return (ENV_PREFIX + field).upper()


def check_set_together(settings: object, *names: str) -> None:
    """Raise ValueError if only some of the settings are set."""
    if len({getattr(settings, name) is None for name in names}) > 1:
        raise ValueError(f"{' and '.join(map(env_name, names))} must be set together")


def check_at_most_one(settings: object, *names: str) -> None:
    """Raise ValueError if more than one of the settings is set."""
    chosen = [env_name(name) for name in names if getattr(settings, name) is not None]
    if len(chosen) > 1:
        raise ValueError(f"only one of {', '.join(chosen)} may be set")


def check_unset(settings: object, *names: str, because: str) -> None:
    """Raise ValueError if one of the settings is set."""
    chosen = [env_name(name) for name in names if getattr(settings, name) is not None]
    if chosen:
        raise ValueError(f"{because}: {', '.join(chosen)} must not be set")


def check_retention(retention: str, ack_wait_ms: int) -> None:
    """Raise ValueError if a command could be delivered again after its timer was deleted."""
    shortest = ACK_WAITS_KEPT * timedelta(milliseconds=ack_wait_ms) + DUPLICATE_WINDOW
    if retention != "off" and parse_duration(retention) < shortest:
        raise ValueError(
            f"TIMER_RETENTION={retention} is too short for TIMER_ACK_WAIT={ack_wait_ms}: a "
            "command whose acknowledgement is lost would revive a deleted timer; it must be off "
            f"or at least {shortest.total_seconds():g}s ({ACK_WAITS_KEPT} times TIMER_ACK_WAIT and "
            "the broker's duplicate window of 2m)"
        )


def _readable_file(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError("no such file")
    return path


def _nkey_seed(path: Path) -> Path:
    try:
        nkeys.from_seed(bytearray(_readable_file(path).read_bytes().strip()))
    except Exception as error:  # nkeys raises what it likes
        raise ValueError("no seed") from error
    return path


def _credentials(path: Path) -> Path:
    text = _readable_file(path).read_bytes()
    if b"BEGIN NATS USER JWT" not in text or b"BEGIN USER NKEY SEED" not in text:
        raise ValueError("no credentials")
    return path


def _certificates(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=_readable_file(path))
    except OSError as error:  # An SSLError is one.
        raise ValueError("no certificates") from error
    return path


def _server_list(text: str) -> str:
    if text.strip() == NO_BROKER:
        return NO_BROKER
    servers = [part.strip() for part in text.split(",")]
    for server in servers:
        url = urlsplit(server)
        # Reading the port raises ValueError if it is not a number.
        if url.scheme not in _SCHEMES or not url.hostname or url.port == 0 or not is_clear(server):
            raise ValueError("not a list of servers")
    if len({server.startswith("ws") for server in servers}) > 1:
        raise ValueError("not of one kind")
    return ",".join(servers)


def _api_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < MIN_API_KEY_CHARS or not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("not a key")
    return key


def _store_url(url: SecretStr) -> SecretStr:
    scheme, _, rest = url.get_secret_value().partition("://")
    # A file has no host: the third slash ends its place, the path comes after it.
    if scheme not in _STORES or not rest or (scheme == "sqlite" and (rest[0] != "/" or rest == "/")):
        raise ValueError("not the address of a store")
    if scheme != "sqlite" and not is_clear(url.get_secret_value()):
        raise ValueError("not a clear address")
    return url


def _secret_keys(keys: SecretStr) -> SecretStr:
    read_secret_keys(keys.get_secret_value())
    return keys


def _allowed_ranges(text: str) -> str:
    read_allowed(text)
    return text


def _page_url(url: str) -> str:
    target = urlsplit(url)
    # Reading the port raises ValueError if it is not a number.
    if target.scheme not in {"http", "https"} or not target.hostname or target.port == 0:
        raise ValueError("not an address")
    if target.query or target.fragment or "@" in target.netloc:
        raise ValueError("not a plain address")
    return url


def _networks(text: str) -> str:
    read_networks(text)
    return text


def _groups(text: str) -> str:
    for group, role, tenants in read_groups(text):
        if not group or role not in {"viewer", "operator", "admin"} or "" in tenants:
            raise ValueError("not a group")
    return text


def read_networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Read addresses and ranges; raise ValueError otherwise."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",")]


def read_groups(text: str) -> list[tuple[str, str, list[str]]]:
    """Read groups with a role each, and the tenants that they are for: none means all."""
    found = []
    for part in text.split(","):
        group, _, rest = part.strip().partition("=")
        role, colon, tenants = rest.partition(":")
        found.append((group, role, tenants.split("+") if colon else []))
    return found


def _proxy_url(url: str) -> str:
    if not read_target(url).url.startswith("http://"):
        raise ValueError("not an HTTP proxy")
    return url


def _login(login: SecretStr) -> SecretStr:
    text = login.get_secret_value()
    if not (text.isascii() and text.isprintable() and text.partition(":")[1]):
        raise ValueError("not a user name and a password")
    return login


def _duration_between(shortest: timedelta, longest: timedelta, *, or_else: str) -> Callable[[str], str]:
    """Return a check for a duration in these bounds, or the one word that may stand in its place."""

    def check(text: str) -> str:
        if text != or_else and not shortest <= parse_duration(text) <= longest:
            raise ValueError("out of range")
        return text

    return check


def _milliseconds_between(shortest: int, longest: int) -> Callable[[Any, Callable[[Any], int]], int]:
    """Return a check for a duration in these bounds; a bare number is one of milliseconds already."""

    def check(value: Any, to_int: Callable[[Any], int]) -> int:
        if isinstance(value, str) and value[-1:].isalpha():
            milliseconds, rest = divmod(parse_duration(value), timedelta(milliseconds=1))
        else:
            milliseconds, rest = to_int(value), timedelta()
        if rest or not shortest <= milliseconds <= longest:
            raise ValueError("out of range")
        return milliseconds

    return check


PollingInterval = Annotated[int, WrapValidator(_milliseconds_between(10, 3_600_000))]
AckWait = Annotated[int, WrapValidator(_milliseconds_between(1_000, 3_600_000))]
CatchUp = Annotated[
    str, AfterValidator(_duration_between(timedelta(milliseconds=100), timedelta(hours=1), or_else="0"))
]
Lead = Annotated[
    str, AfterValidator(_duration_between(timedelta(milliseconds=1), timedelta(hours=1), or_else="0"))
]
ClockStep = Annotated[str, AfterValidator(_duration_between(timedelta(seconds=1), _ALWAYS, or_else="off"))]
Retention = Annotated[str, AfterValidator(_duration_between(timedelta(minutes=1), _ALWAYS, or_else="off"))]
ReadableFile = Annotated[Path, AfterValidator(_readable_file)]
CredentialsFile = Annotated[Path, AfterValidator(_credentials)]
NkeySeedFile = Annotated[Path, AfterValidator(_nkey_seed)]
CertificatesFile = Annotated[Path, AfterValidator(_certificates)]
ServerList = Annotated[str, AfterValidator(_server_list)]
ApiKeyText = Annotated[SecretStr, AfterValidator(_api_key)]
StoreUrl = Annotated[SecretStr, AfterValidator(_store_url)]
SecretKeyList = Annotated[SecretStr, AfterValidator(_secret_keys)]
AllowedRanges = Annotated[str, AfterValidator(_allowed_ranges)]
PageUrl = Annotated[str, AfterValidator(_page_url)]
Networks = Annotated[str, AfterValidator(_networks)]
GroupList = Annotated[str, AfterValidator(_groups)]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url)]
LoginText = Annotated[SecretStr, AfterValidator(_login)]
