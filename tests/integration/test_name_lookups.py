"""Names of receivers: who waits for whom while name servers do not answer."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.callbacks import request_to, sending
from tests.support.patience import PATIENCE_S
from tests.support.receiver import Receiver, receiving
from tests.support.timers import ACME
from timer_service.adapters.webhook.places import Places
from timer_service.adapters.webhook.resolver import MAX_LOOKUPS, MAX_LOOKUPS_OF_TENANT, MAX_ZONE_LOOKUPS
from timer_service.adapters.webhook.sender import HttpCallbackSender
from timer_service.domain.delivery import Answered, CallResult, Trouble, Unreachable
from timer_service.domain.messages import TenantId

GLOBEX = TenantId("globex")


@dataclass
class NameServers:
    """Answer for all names but those that begin with `dead` or `slow`, which wait for these events."""

    asked: list[str] = field(default_factory=list)
    dead: threading.Event = field(default_factory=threading.Event)
    slow: threading.Event = field(default_factory=threading.Event)

    def look_up(self, host: str, port: int) -> list[Any]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.dead.wait()
        if host.startswith("slow"):
            self.slow.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def have_been_asked(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.asked) < count:
                await asyncio.sleep(0)


@dataclass
class Site:
    """A receiver under any name, a sender, and the name servers between them."""

    names: NameServers
    receiver: Receiver
    sender: HttpCallbackSender
    hanging: list["asyncio.Task[CallResult]"] = field(default_factory=list)

    async def send(self, host: str, tenant_id: TenantId = ACME) -> CallResult:
        request = replace(request_to(self.receiver.url(host=host)), tenant_id=tenant_id)
        return await self.sender.send(request)

    def begin(self, host: str, tenant_id: TenantId = ACME) -> "asyncio.Task[CallResult]":
        self.hanging.append(asyncio.create_task(self.send(host, tenant_id)))
        return self.hanging[-1]


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    names = NameServers()
    async with receiving() as receiver, sending(look_up=names.look_up, lookup_timeout_s=PATIENCE_S) as sender:
        here = Site(names, receiver, sender)
        try:
            yield here
        finally:
            names.dead.set()
            names.slow.set()
            for task in here.hanging:
                task.cancel()
            await asyncio.gather(*here.hanging, return_exceptions=True)


async def test_dead_zones_of_a_tenant_hold_up_no_callback_of_another() -> None:
    async with site() as here:
        for zone in range(2 * MAX_LOOKUPS):
            here.begin(f"dead.zone{zone}.example")
        await here.names.have_been_asked(MAX_LOOKUPS_OF_TENANT)

        assert await here.send("shop.alive.test", GLOBEX) == Answered(200)
        assert len(here.names.asked) == MAX_LOOKUPS_OF_TENANT + 1


async def test_dead_zones_of_several_tenants_leave_room_for_another() -> None:
    async with site() as here:
        for tenant in range(7):
            for zone in range(2 * MAX_LOOKUPS_OF_TENANT):
                here.begin(f"dead.zone{zone}.t{tenant}", TenantId(f"t{tenant}"))
        await here.names.have_been_asked(7 * MAX_LOOKUPS_OF_TENANT)

        assert await here.send("shop.alive.test", GLOBEX) == Answered(200)


async def test_no_tenant_has_more_look_ups_than_are_left_for_others() -> None:
    async with site() as here:
        for tenant in range(MAX_LOOKUPS):
            for zone in range(2):
                here.begin(f"dead.zone{zone}.t{tenant}", TenantId(f"t{tenant}"))
            await asyncio.sleep(0)
        # Two each, until a second one would be the last: from then on one each.
        await here.names.have_been_asked(MAX_LOOKUPS)

        assert len({host.rpartition(".")[2] for host in here.names.asked}) == MAX_LOOKUPS // 2 + 1


async def test_a_dead_zone_of_a_tenant_holds_up_none_of_its_other_zones() -> None:
    async with site() as here:
        for name in range(2 * MAX_LOOKUPS):
            here.begin(f"dead{name}.zone.example")
        await here.names.have_been_asked(MAX_ZONE_LOOKUPS)

        assert await here.send("shop.alive.test") == Answered(200)
        assert len(here.names.asked) == MAX_ZONE_LOOKUPS + 1


async def test_a_dead_zone_of_a_tenant_holds_up_no_name_of_another_under_the_same_registry() -> None:
    async with site() as here:
        for name in range(2 * MAX_ZONE_LOOKUPS):
            here.begin(f"dead{name}.co.uk")
        await here.names.have_been_asked(MAX_ZONE_LOOKUPS)

        assert await here.send("shop.co.uk", GLOBEX) == Answered(200)


async def test_a_name_that_another_tenant_has_no_turn_for_is_looked_up_all_the_same() -> None:
    async with site() as here:
        for zone in range(MAX_LOOKUPS_OF_TENANT):
            here.begin(f"dead.zone{zone}.example")
        await here.names.have_been_asked(MAX_LOOKUPS_OF_TENANT)
        waiting = here.begin("shop.alive.test")
        await asyncio.sleep(0)

        assert await here.send("shop.alive.test", GLOBEX) == Answered(200)
        assert not waiting.done()


async def test_who_waits_for_a_turn_gets_it_when_a_look_up_ends() -> None:
    async with site() as here:
        for zone in range(MAX_LOOKUPS_OF_TENANT):
            here.begin(f"dead.zone{zone}.example")
        await here.names.have_been_asked(MAX_LOOKUPS_OF_TENANT)
        waiting = [here.begin(f"shop{n}.alive{n}.test") for n in range(3)]
        given_up = waiting.pop(0)
        await asyncio.sleep(0)
        given_up.cancel()
        here.names.dead.set()

        assert await asyncio.gather(*waiting) == [Answered(200)] * 2
        assert "shop0.alive0.test" not in here.names.asked


async def test_who_gives_up_just_as_a_place_comes_free_does_not_take_it_along() -> None:
    places = Places(1, 1)
    await places.take(ACME)
    waiting = [asyncio.create_task(places.take(GLOBEX)) for _ in range(2)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    places.give_back(ACME)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    places.give_back(GLOBEX)

    assert [type(result) for result in results] == [asyncio.CancelledError, type(None)]
    async with asyncio.timeout(PATIENCE_S):
        await places.take(ACME)


async def test_a_name_is_looked_up_once_for_many_tenants() -> None:
    async with site() as here:
        sent = [here.begin("dead.alive.test", TenantId(f"t{n}")) for n in range(3 * MAX_LOOKUPS)]
        await here.names.have_been_asked(1)
        here.names.dead.set()

        assert await asyncio.gather(*sent) == [Answered(200)] * len(sent)
        assert here.names.asked == ["dead.alive.test"]


async def test_a_name_is_looked_up_once_for_tenants_that_wait_for_their_turns() -> None:
    async with site() as here:
        here.begin("slow.zone.example", TenantId("t0"))
        for tenant in range(1, MAX_LOOKUPS):
            here.begin(f"dead.zone{tenant}.example", TenantId(f"t{tenant}"))
        await here.names.have_been_asked(MAX_LOOKUPS)
        waiting = [here.begin("shop.alive.test", TenantId(f"w{n}")) for n in range(3)]
        await asyncio.sleep(0)
        here.names.slow.set()

        assert await asyncio.gather(*waiting) == [Answered(200)] * 3
        assert here.names.asked.count("shop.alive.test") == 1


async def test_an_answer_that_comes_after_its_callback_was_given_up_is_remembered() -> None:
    async with site() as here:
        given_up = here.begin("dead.alive.test")
        await here.names.have_been_asked(1)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        here.names.dead.set()

        assert await here.send("dead.alive.test", GLOBEX) == Answered(200)
        assert await here.send("dead.alive.test", GLOBEX) == Answered(200)
        assert here.names.asked == ["dead.alive.test"]


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_AGAIN, "Try again"), UnicodeError("a label")])
async def test_a_name_that_was_not_found_is_looked_up_again_by_the_next_callback(error: Exception) -> None:
    asked: list[str] = []

    def fail(host: str, port: int) -> list[Any]:
        asked.append(host)
        raise error

    async with sending(look_up=fail) as sender:
        for _ in range(2):
            result = await sender.send(request_to("http://nowhere.example/"))
            assert isinstance(result, Unreachable)
            assert result.trouble is Trouble.DNS

    assert asked == ["nowhere.example"] * 2
