"""No socket to a denied address: each is checked when it is dialled, whatever a name meant before."""

import socket
from collections.abc import Callable, Collection
from typing import Any, Final

from timer_service.targets import Address, AddressRules

AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]
MakeSocket = Callable[[int, int, int], socket.socket]

_ANY_PORT: Final = 0


class DeniedAddress(OSError):
    """An address that must not be dialled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def guarded(rules: AddressRules, make: MakeSocket = socket.socket) -> Callable[[AddressInfo], socket.socket]:
    """Return what makes sockets for concrete addresses, and raises DeniedAddress instead for denied ones."""

    def socket_for(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, place = info
        denial = rules.denial(str(place[0]), int(place[1]))
        if denial is not None:
            raise DeniedAddress(denial)
        made = make(int(family), int(kind), protocol)
        made.setblocking(False)  # noqa: FBT003 - the standard library's
        return made

    return socket_for


def listening_here(ports: Collection[int]) -> Callable[[Address, int], bool]:
    """Return what says whether an address is one of this machine, at a port on which we listen."""

    def is_ours(address: Address, port: int) -> bool:
        return port in ports and _is_of_this_machine(address)

    return is_ours


def _is_of_this_machine(address: Address) -> bool:
    if address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), _ANY_PORT))
    except OSError:
        return False
    return True
