"""Names looked up on our own threads, within a time limit; a dead name server holds up only its own zone."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Final
from weakref import WeakValueDictionary

from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.targets import AddressRules, Target

MAX_LOOKUPS: Final = 32
MAX_ZONE_LOOKUPS: Final = 4
"""Lookups under way for names that end with the same two labels."""
LOOKUP_TIMEOUT_S: Final = 5.0
REMEMBERED_S: Final = 10.0
MAX_REMEMBERED: Final = 2_048

LookUp = Callable[[str, int], list[Any]]
"""As `socket.getaddrinfo`, which knows no time limit and cannot be interrupted."""


def look_up(host: str, port: int) -> list[Any]:
    """Ask the system."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


class GuardedResolver:
    """Returns only addresses that may be dialled. Raises DeniedAddress where a name has no other."""

    def __init__(
        self, rules: AddressRules, look_up: LookUp = look_up, timeout_s: float = LOOKUP_TIMEOUT_S
    ) -> None:
        self._rules = rules
        self._look_up = look_up
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_LOOKUPS)
        self._zones: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def resolve(self, host: str, port: int) -> list[str]:
        """Look a name up and leave out what is denied."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._in_turn(host, port)
        except TimeoutError as error:
            raise OSError(f"the name was not looked up within {self._timeout_s:g} s") from error
        addresses = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
        denials = {address: self._rules.denial(address, port) for address in addresses}
        dialled = [address for address, denial in denials.items() if denial is None]
        if addresses and not dialled:
            raise DeniedAddress(next(filter(None, denials.values())))
        return dialled

    async def _in_turn(self, host: str, port: int) -> list[Any]:
        zone_name = ".".join(host.rstrip(".").rsplit(".", 2)[-2:])
        zone = self._zones.setdefault(zone_name, asyncio.Semaphore(MAX_ZONE_LOOKUPS))
        await zone.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            zone.release()
            raise
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()

        def finish(found: list[Any] | None, error: Exception | None) -> None:
            # Only now: a thread that nobody waits for any more is still busy.
            self._places.release()
            zone.release()
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(found or [])

        def work() -> None:
            found, error = None, None
            try:
                found = self._look_up(host, port)
            except Exception as caught:
                # A name that no server could have is a name that is not found.
                error = caught if isinstance(caught, OSError) else OSError(str(caught))
            with suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(finish, found, error)

        # A daemon, unlike the threads of an executor: the end of the process waits for no name server.
        Thread(target=work, name="look-up", daemon=True).start()
        return await answer


class RememberedNames:
    """Remembers for a moment where names lead to; all who ask for one name meanwhile wait for one answer."""

    def __init__(self, resolver: GuardedResolver) -> None:
        self._resolver = resolver
        self._known: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, target: Target) -> list[str]:
        """Return the addresses of a receiver, another one first each time. Raises OSError."""
        until_s, found = self._known.get(target.origin, (0.0, []))
        if asyncio.get_running_loop().time() < until_s:
            self._known[target.origin] = (until_s, found[1:] + found[:1])
            return found
        asked = self._asked.get(target.origin)
        if asked is None:
            asked = self._asked[target.origin] = asyncio.ensure_future(self._ask(target))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: a caller that gives up does not cancel it for the others. It ends by itself in seconds.
        return await asyncio.shield(asked)

    async def _ask(self, target: Target) -> list[str]:
        try:
            found = await self._resolver.resolve(target.host, target.port)
        finally:
            del self._asked[target.origin]
        self._known[target.origin] = (asyncio.get_running_loop().time() + REMEMBERED_S, found)
        self._known.move_to_end(target.origin)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found

    def close(self) -> None:
        """Ask no more; the threads are left to themselves."""
        for asked in list(self._asked.values()):
            asked.cancel()
