"""Names looked up on our own threads, within a time limit; a dead name server holds up no other tenant."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Final
from weakref import WeakValueDictionary

from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.adapters.webhook.places import Places
from timer_service.domain.messages import TenantId
from timer_service.targets import AddressRules

MAX_LOOKUPS: Final = 64
MAX_LOOKUPS_OF_TENANT: Final = 8
MAX_ZONE_LOOKUPS: Final = 4
"""Lookups under way for a tenant's names that end with the same two labels."""
LOOKUP_TIMEOUT_S: Final = 5.0
REMEMBERED_S: Final = 10.0
MAX_REMEMBERED: Final = 2_048

LookUp = Callable[[str, int], list[Any]]
"""As `socket.getaddrinfo`, which knows no time limit and cannot be interrupted."""
Name = tuple[str, int]
"""A host and a port."""


def look_up(host: str, port: int) -> list[Any]:
    """Ask the system."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


class GuardedResolver:
    """Returns only addresses that may be dialled. Raises DeniedAddress where a name has no other.

    All who ask for one name wait for one look-up, once it has begun. They do not wait together for it to
    begin: a tenant whose name servers are dead has no turn left, which must not be the trouble of another.
    """

    def __init__(
        self,
        rules: AddressRules,
        look_up: LookUp = look_up,
        timeout_s: float = LOOKUP_TIMEOUT_S,
        remembered_s: float = REMEMBERED_S,
    ) -> None:
        self._rules = rules
        self._look_up = look_up
        self._timeout_s = timeout_s
        self._remembered_s = remembered_s
        self._places = Places(MAX_LOOKUPS, MAX_LOOKUPS_OF_TENANT)
        self._zones: WeakValueDictionary[tuple[TenantId, str], asyncio.Semaphore] = WeakValueDictionary()
        self._under_way: dict[Name, asyncio.Future[list[str]]] = {}
        self._known: OrderedDict[Name, tuple[float, list[str]]] = OrderedDict()

    async def resolve(self, tenant_id: TenantId, host: str, port: int) -> list[str]:
        """Return the addresses of a name, another one first each time. Raises OSError."""
        found = self._fresh((host, port))
        if found is not None:
            return found
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(tenant_id, (host, port))
        except TimeoutError as error:
            raise OSError(f"the name was not looked up within {self._timeout_s:g} s") from error

    def _fresh(self, name: Name) -> list[str] | None:
        """Return what was found a moment ago."""
        until_s, found = self._known.get(name, (0.0, []))
        if asyncio.get_running_loop().time() >= until_s:
            return None
        self._known[name] = (until_s, found[1:] + found[:1])
        return found

    async def _ask(self, tenant_id: TenantId, name: Name) -> list[str]:
        if name not in self._under_way:
            give_back = await self._turn(tenant_id, name[0])
            # Another tenant may have begun meanwhile, or even ended.
            found = self._fresh(name)
            if found is None and name not in self._under_way:
                self._begin(name, give_back)
            else:
                give_back()
            if found is not None:
                return found
        # Shielded: a caller that gives up does not end it for the others.
        return await asyncio.shield(self._under_way[name])

    async def _turn(self, tenant_id: TenantId, host: str) -> Callable[[], None]:
        """Wait until a tenant may look up another name; return what gives the turn back."""
        zone_name = ".".join(host.rstrip(".").rsplit(".", 2)[-2:])
        zone = self._zones.setdefault((tenant_id, zone_name), asyncio.Semaphore(MAX_ZONE_LOOKUPS))
        await zone.acquire()
        try:
            await self._places.take(tenant_id)
        except BaseException:
            zone.release()
            raise

        def give_back() -> None:
            self._places.give_back(tenant_id)
            zone.release()

        return give_back

    def _begin(self, name: Name, ended: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        answer = self._under_way[name] = loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        def finish(found: list[Any], error: Exception | None) -> None:
            # Only now: a thread that nobody waits for any more is still busy.
            ended()
            del self._under_way[name]
            try:
                if error is not None:
                    raise error
                answer.set_result(self._remembered(name, found))
            except OSError as denied_or_not_found:
                answer.set_exception(denied_or_not_found)

        def work() -> None:
            found, error = [], None
            try:
                found = self._look_up(*name)
            except Exception as caught:
                # A name that no server could have is a name that is not found.
                error = caught if isinstance(caught, OSError) else OSError(str(caught))
            with suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(finish, found, error)

        # A daemon, unlike the threads of an executor: the end of the process waits for no name server.
        Thread(target=work, name="look-up", daemon=True).start()

    def _remembered(self, name: Name, found: list[Any]) -> list[str]:
        """Return what may be dialled of what was found, and remember it, even if nobody waits any more."""
        addresses = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
        denials = {address: self._rules.denial(address, name[1]) for address in addresses}
        dialled = [address for address, denial in denials.items() if denial is None]
        if addresses and not dialled:
            raise DeniedAddress(next(filter(None, denials.values())))
        self._known[name] = (asyncio.get_running_loop().time() + self._remembered_s, dialled)
        self._known.move_to_end(name)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return dialled
