"""The real service with something to show."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.browser.prefix_proxy import PrefixProxy
from tests.support.broker import NatsServer, free_port
from tests.support.world import World

PREFIX = "/ops/timers"


@dataclass(frozen=True)
class Site:
    """A service, and where browsers find it."""

    world: World
    port: int
    proxy: PrefixProxy

    def address(self, place: str) -> str:
        """Return the address at the `root` or behind the `prefix`."""
        return f"http://127.0.0.1:{self.port}" if place == "root" else self.proxy.url


@asynccontextmanager
async def open_site(broker: NatsServer, folder: Path) -> AsyncIterator[Site]:
    port = free_port()
    world = await World(folder, broker, "browser").open()
    try:
        world.service(http_port=0, api_port=port, api_key="dev-api-key-change-in-production").start_ready()
        async with PrefixProxy(port, PREFIX).serving() as proxy:
            yield Site(world, port, proxy)
    finally:
        await world.close()
