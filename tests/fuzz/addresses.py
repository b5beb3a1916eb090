"""Try to make the service call an address that it must not: spellings, names, rebinding and redirects.

Sockets are counted where they are connected, by rules that are written here once more.
"""

import argparse
import asyncio
import ipaddress
import random
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tests.support.callbacks import request_to, sending
from tests.support.guarantees import record
from tests.support.receiver import Receiver, receiving
from timer_service.domain.delivery import Answered, Blocked

FORBIDDEN = [
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *(
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
        ),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "100::/64"),
        *("2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7"),
        *("fe80::/10", "fec0::/10", "ff00::/8"),
    )
]
PUBLIC = "93.184.216.34"
IN_FLIGHT = 50


def is_forbidden(text: str) -> bool:
    """Judge a dialled address, by other means than the code."""
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if isinstance(address, ipaddress.IPv6Address) and address in ipaddress.IPv6Network("64:ff9b::/96"):
        inner = ipaddress.IPv4Address(address.packed[-4:])
    teredo = getattr(address, "teredo", None) or ()
    judged = [inner] if inner else [address, *teredo]
    return any(each in network for each in judged for network in FORBIDDEN if each.version == network.version)


def forbidden_address(chance: random.Random) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if chance.random() < 0.3:
        return ipaddress.ip_address(
            chance.choice(["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "0.0.0.0"])
        )
    network = chance.choice(FORBIDDEN)
    return network[chance.randrange(network.num_addresses)]


def spellings(address: ipaddress.IPv4Address | ipaddress.IPv6Address, chance: random.Random) -> Iterator[str]:
    """Yield ways to write an address as the host of a URL."""
    if isinstance(address, ipaddress.IPv6Address):
        groups = address.exploded.split(":")
        mixed = ":".join(groups[:6]) + f":{ipaddress.IPv4Address(address.packed[-4:])}"
        for text in (address.compressed, address.exploded, address.exploded.upper(), mixed):
            yield f"[{text}]"
        yield f"[{address.compressed}%25lo]"
        yield address.compressed
        return
    number, parts = int(address), [int(part) for part in str(address).split(".")]
    hexadecimal = f"{number:08x}"
    yield str(address)
    yield f"{address}."
    yield str(number)
    yield hex(number)
    yield oct(number).replace("0o", "0")
    yield ".".join(map(hex, parts))
    yield ".".join(f"0{part:o}" for part in parts)
    yield ".".join(f"{part:03d}" for part in parts)
    yield f"{parts[0]}.{number & 0xFFFFFF}"
    yield f"{parts[0]}.{parts[1]}.{number & 0xFFFF}"
    yield str(address).translate({ord(digit): ord("０") + int(digit) for digit in "0123456789"})
    yield str(address).translate({ord("."): "。"})
    yield "".join(f"%{ord(each):02x}" for each in str(address))
    yield f"{address}@{PUBLIC}"
    yield f"{PUBLIC}@{address}"
    yield f"{PUBLIC}#@{address}"
    yield f"{address}\\.{PUBLIC}"
    for prefix in ("::", "::ffff:", "::ffff:0:", "64:ff9b::", "64:ff9b:1::"):
        yield f"[{prefix}{address}]"
        yield f"[{prefix}{hexadecimal[:4]}:{hexadecimal[4:]}]"
    yield f"[2002:{hexadecimal[:4]}:{hexadecimal[4:]}::{chance.randrange(1, 65536):x}]"
    flipped = f"{number ^ 0xFFFFFFFF:08x}"
    yield f"[2001:0:808:808::{flipped[:4]}:{flipped[4:]}]"
    yield f"[2001:0:{hexadecimal[:4]}:{hexadecimal[4:]}::1]"


class Wires:
    """Counts the sockets that are connected; only the receiver of the redirects is really reached."""

    def __init__(self) -> None:
        self.dialled: Counter[tuple[str, int]] = Counter()
        self.receiver_port = 0

    def make(self, family: int, kind: int, protocol: int) -> socket.socket:
        wires = self

        class Wire(socket.socket):
            def connect(self, place: Any) -> None:
                wires.dialled[place[0], place[1]] += 1
                if (place[0], place[1]) != ("127.0.0.1", wires.receiver_port):
                    raise ConnectionRefusedError(111, "nobody is called in this test")
                super().connect(place)

        return Wire(family, kind, protocol)


class Names:
    """A name server in the hands of an attacker: what it answers, it answers once."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}

    def look_up(self, host: str, port: int) -> list[Any]:
        turns = self.answers.get(host) or [[PUBLIC]]
        addresses = turns.pop(0) if len(turns) > 1 else turns[0]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]


def _cases(count: int, chance: random.Random, names: Names) -> Iterator[tuple[str, str]]:
    """Yield the way and the URL of each attempt."""
    made = 0
    while made < count:
        address = forbidden_address(chance)
        port = chance.choice(["", ":80", ":8080", ":4222", ":443"])
        scheme = chance.choice(["http", "https", "HTTP"])
        for host in spellings(address, chance):
            yield "spelling", f"{scheme}://{host}{port}/"
            yield "redirect", f"{scheme}://{host}{port}/"
            made += 2
        name = f"n{made}.attacker.example"
        names.answers[name] = [[str(address)]]
        yield "name", f"{scheme}://{name}{port}/"
        mixed, later = f"m{made}.attacker.example", f"r{made}.attacker.example"
        names.answers[mixed] = [[PUBLIC, str(address)]]
        yield "name with both", f"{scheme}://{mixed}{port}/"
        names.answers[later] = [[PUBLIC], [str(address)]]
        yield "rebinding", f"{scheme}://{later}{port}/"
        yield "rebinding", f"{scheme}://{later}:{chance.randrange(1024, 65536)}/"
        made += 4


async def attack(count: int, seed: int = 0) -> dict[str, Any]:
    """Make the attempts and return what was counted."""
    chance, names, wires = random.Random(seed), Names(), Wires()
    ways: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    async with receiving() as receiver:
        wires.receiver_port = receiver.port
        allow = f"127.0.0.1:{receiver.port}"
        async with sending(allow=allow, look_up=names.look_up, make_socket=wires.make) as sender:
            gate = asyncio.Semaphore(IN_FLIGHT)

            async def attempt(way: str, url: str) -> None:
                async with gate:
                    target = _redirecting(receiver, url) if way == "redirect" else url
                    result = await sender.send(request_to(target, timeout=timedelta(seconds=60)))
                ways[way] += 1
                outcomes[type(result).__name__ if not isinstance(result, Answered) else "Answered"] += 1
                if way == "spelling" and not isinstance(result, Blocked):
                    # Only a spelling whose host is the public one may have been dialled at all.
                    outcomes["spellings that passed"] += 1

            async with asyncio.TaskGroup() as tasks:
                for way, url in _cases(count, chance, names):
                    tasks.create_task(attempt(way, url))
    forbidden = {
        place: number
        for place, number in wires.dialled.items()
        if place != ("127.0.0.1", wires.receiver_port) and is_forbidden(place[0])
    }
    return {
        "attempts": sum(ways.values()),
        **{f"by {way}": number for way, number in sorted(ways.items())},
        "blocked before a socket was made": outcomes["Blocked"],
        "sockets that were connected": sum(wires.dialled.values()),
        "sockets to a denied range": sum(forbidden.values()),
    }


def _redirecting(receiver: Receiver, url: str) -> str:
    location = url.encode("ascii", "ignore").decode()
    receiver.answer = f"HTTP/1.1 302 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
    return receiver.url()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.addresses", description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    options = parser.parse_args()
    counts = asyncio.run(attack(options.attempts, options.seed))
    for name, count in counts.items():
        print(f"{name:<42}{count:>12}")
    if options.record is not None:
        record(options.record, counts)
    return 1 if counts["sockets to a denied range"] else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
