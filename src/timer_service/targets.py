"""Where a callback may go: the rules of its URL, and the addresses that are never dialled."""

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

MAX_URL_BYTES: Final = 2_048
MAX_REMEMBERED: Final = 2_048
"""URLs that were read before: most callbacks go to a few."""
SCHEMES: Final = {"http": 80, "https": 443}

Address = IPv4Address | IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Own tables: `is_global` of Python 3.11 calls several of these global. Sources: the IANA registries of
# special-purpose addresses, and what other senders of webhooks deny.
_DENIED: Final[dict[str, str]] = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared address space",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/96": "loopback or IPv4-compatible",
    "64:ff9b:1::/48": "local translation",
    "100::/64": "discard",
    "2001::/23": "reserved",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "3fff::/20": "documentation",
    "5f00::/16": "segment routing",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
}
# An allowed range does not open these: each has to be named by its own address.
_ONLY_BY_NAME: Final[dict[str, str]] = {
    "169.254.0.0/16": "link-local, where cloud metadata is",
    "fe80::/10": "link-local",
    "100.100.100.200/32": "cloud metadata",
    "168.63.129.16/32": "cloud metadata",
    "192.0.0.192/32": "cloud metadata",
    "fd00:ec2::254/128": "cloud metadata",
    "fd20:ce::254/128": "cloud metadata",
}

_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_TRANSLATED: Final = ipaddress.IPv6Network("::ffff:0:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_LOW_32: Final = 0xFFFF_FFFF


def _by_version(table: dict[str, str]) -> dict[int, list[tuple[int, int, str]]]:
    """Return the ranges of either version as first address, mask and name: what a check compares."""
    ranges: dict[int, list[tuple[int, int, str]]] = {4: [], 6: []}
    for text, name in table.items():
        network = ipaddress.ip_network(text)
        ranges[network.version].append((int(network.network_address), int(network.netmask), name))
    return ranges


_DENIED_RANGES: Final = _by_version(_DENIED)
_NAMED_RANGES: Final = _by_version(_ONLY_BY_NAME)


@dataclass(frozen=True, slots=True)
class Allowed:
    """One entry of TIMER_CALLBACK_ALLOW: a range, or one address with or without a port."""

    network: Network
    port: int | None = None

    def covers(self, address: Address, port: int) -> bool:
        """Return whether it opens a place."""
        return (
            address.version == self.network.version and address in self.network and self.port in (None, port)
        )

    @property
    def is_one_address(self) -> bool:
        """Return whether it names a single address."""
        return self.network.num_addresses == 1


def read_allowed(text: str) -> list[Allowed]:
    """Read TIMER_CALLBACK_ALLOW: CIDRs, addresses and address:port, separated by commas."""
    return [_read_entry(part.strip()) for part in text.split(",") if part.strip()]


def _read_entry(text: str) -> Allowed:
    host, colon, port = text.rpartition(":")
    is_v6_with_port = host.startswith("[") and host.endswith("]")
    if colon and "/" not in text and (is_v6_with_port or "." in host):
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{text!r} does not end with a port")
        return Allowed(ipaddress.ip_network(host.strip("[]")), int(port))
    return Allowed(ipaddress.ip_network(text))


class AddressRules:
    """Which addresses may be dialled: all public ones, and what the operator allows."""

    def __init__(
        self, allowed: Sequence[Allowed] = (), is_ours: Callable[[Address, int], bool] = lambda *_: False
    ) -> None:
        self._allowed = allowed
        self._is_ours = is_ours

    def denial(self, text: str, port: int) -> str | None:
        """Return why a place must not be dialled, None if it may."""
        try:
            reached = _reached_by(text)
        except ValueError:
            return "not an IP address"
        for judged in reached:
            reason = self._denial(judged, port)
            if reason is not None:
                return reason
        return None

    def _denial(self, address: Address, port: int) -> str | None:
        covering = [entry for entry in self._allowed if entry.covers(address, port)]
        if self._is_ours(address, port) and not any(entry.port for entry in covering):
            return "an address on which this service listens"
        reason = _found(_NAMED_RANGES, address)
        if reason is not None:
            return None if any(entry.is_one_address for entry in covering) else reason
        return None if covering else _found(_DENIED_RANGES, address)


def _found(ranges: dict[int, list[tuple[int, int, str]]], address: Address) -> str | None:
    number = int(address)
    return next((name for first, mask, name in ranges[address.version] if number & mask == first), None)


@lru_cache(maxsize=MAX_REMEMBERED)
def _reached_by(text: str) -> tuple[Address, ...]:
    """Read an address, which each callback to it does again; return all that are judged."""
    return tuple(_judged(ipaddress.ip_address(text.partition("%")[0])))


def _judged(address: Address) -> Iterator[Address]:
    """Yield every address that a packet to this one may reach: itself, and any IPv4 address inside."""
    if isinstance(address, IPv4Address):
        yield address
        return
    number = int(address)
    # Mapped and translated forms are ways to write an IPv4 address: the inner one alone counts, so that
    # an IPv6-only network reaches public IPv4 receivers.
    if address in _MAPPED or address in _TRANSLATED or address in _NAT64:
        yield IPv4Address(number & _LOW_32)
        return
    yield address
    if (address in _COMPATIBLE and number > 1) or address in _LOCAL_NAT64:
        yield IPv4Address(number & _LOW_32)
    if address in _6TO4:
        yield IPv4Address(number >> 80 & _LOW_32)
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & _LOW_32)
        yield IPv4Address(number & _LOW_32 ^ _LOW_32)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that keeps the rules."""

    url: str
    """As it is requested: host in ASCII, path and query percent-encoded."""
    scheme: str
    host: str
    """A name in ASCII, or an IP address without brackets."""
    port: int
    address: str | None = None
    """The host if it is an IP address."""

    @property
    def origin(self) -> str:
        """What the limits of a receiver are counted by."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"


def read_target(text: str, rules: AddressRules | None = None) -> Target:
    """Check the URL of a callback; with `rules`, also an address that stands in it.

    Raises ValueError with what is wrong. A name is not looked up: its addresses are checked when dialled.
    """
    target = _read(text)
    if rules is not None and target.address is not None:
        reason = rules.denial(target.address, target.port)
        if reason is not None:
            raise ValueError(f"names an address that callbacks may not go to: {target.address} ({reason})")
    return target


@lru_cache(maxsize=MAX_REMEMBERED)
def _read(text: str) -> Target:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_URL_BYTES:
        raise ValueError(f"is longer than {MAX_URL_BYTES} bytes")
    if any(character <= " " or character in "\x7f\\" for character in text):
        raise ValueError("holds a space, a backslash or a control character")
    try:
        parts = urlsplit(text)
        scheme, port = parts.scheme, parts.port
    except ValueError as error:
        raise ValueError("has an invalid host or port") from error
    _check_parts(text, parts)
    target = _target(scheme, _ascii_host(parts.hostname or ""), port, parts.path, parts.query)
    if len(target.url) > MAX_URL_BYTES:
        raise ValueError(f"is longer than {MAX_URL_BYTES} bytes when it is percent-encoded")
    return target


def _check_parts(text: str, parts: SplitResult) -> None:
    if parts.scheme not in SCHEMES or not text[len(parts.scheme) :].startswith("://"):
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password: use a header")
    if "#" in text:
        raise ValueError("must not have a fragment (#…)")
    is_odd = "%" in parts.netloc or ("[" in parts.netloc and ":" not in (parts.hostname or ""))
    if not parts.hostname or parts.port == 0 or parts.netloc.endswith(":") or is_odd:
        raise ValueError("has an invalid host or port")


def _target(scheme: str, host: str, port: int | None, path: str, query: str) -> Target:
    place = _bracketed(host) if port in (None, SCHEMES[scheme]) else f"{_bracketed(host)}:{port}"
    # What is percent-encoded already stays as it is.
    encoded = quote(path or "/", safe="/%:@!$&'()*+,;=~-._")
    if query:
        encoded += "?" + quote(query, safe="/%:@!$&'()*+,;=~-._?")
    return Target(f"{scheme}://{place}{encoded}", scheme, host, port or SCHEMES[scheme], _address(host))


def _address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _ascii_host(host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError as error:
            raise ValueError("holds something in brackets that is not an IPv6 address") from error
    name = _idna(host).rstrip(".")
    last = name.rpartition(".")[2]
    # Systems read 127.1, 0x7f.1 and 2130706433 as addresses: only the usual form may look like one.
    if last.isdigit() or last.startswith("0x"):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as error:
            raise ValueError("holds an IPv4 address that is not written as four decimal numbers") from error
    return name


def _idna(host: str) -> str:
    # Here, because its tables take a while to load, and a service without callbacks needs none of it.
    import idna  # noqa: PLC0415

    if host.isascii() and "_" in host:
        # An underscore is not allowed in a host name, and common in the names of containers.
        labels = host.lower().split(".")
        if all(
            0 < len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum() for label in labels
        ):
            return host.lower()
    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError) as error:
        raise ValueError("has a host name that is not allowed") from error
