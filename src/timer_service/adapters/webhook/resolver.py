"""Names looked up on our own threads, within a time limit; a dead name server holds up only its own zone."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Final
from weakref import WeakValueDictionary

from aiohttp.abc import AbstractResolver, ResolveResult

from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.targets import AddressRules

MAX_LOOKUPS: Final = 32
MAX_ZONE_LOOKUPS: Final = 4
"""Lookups under way for names that end with the same two labels."""
LOOKUP_TIMEOUT_S: Final = 5.0

LookUp = Callable[[str, int], list[Any]]
"""As `socket.getaddrinfo`, which knows no time limit and cannot be interrupted."""


def look_up(host: str, port: int) -> list[Any]:
    """Ask the system."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


class GuardedResolver(AbstractResolver):
    """Returns only addresses that may be dialled. Raises DeniedAddress where a name has no other."""

    def __init__(
        self, rules: AddressRules, look_up: LookUp = look_up, timeout_s: float = LOOKUP_TIMEOUT_S
    ) -> None:
        self._rules = rules
        self._look_up = look_up
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_LOOKUPS)
        self._zones: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - both are dialled
    ) -> list[ResolveResult]:
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
        return [_result(host, address, port) for address in dialled]

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

    async def close(self) -> None:
        """Leave the threads to themselves."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if ":" in address else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )
