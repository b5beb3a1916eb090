"""The real service with something to show."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.browser.prefix_proxy import PrefixProxy
from tests.support import messages
from tests.support.broker import NatsServer, free_port
from tests.support.process import TimerServiceProcess
from tests.support.world import World
from timer_client import Timers

PREFIX = "/ops/timers"
SUBJECTS = "browser"
HOSTILE_IDS = (
    "<script>alert(1)</script>",
    "\"'><img/src=x/onerror=alert(1)>",
    "javascript:alert(1)//",
    "{{7*7}}{%print(1)%}",
    "a/b/../..//c?x=1&y=2#frag;%2F%00+%20+",
    "100%",
    "\u202egnp.exe\u2066\u200f\u200b",
    "e\u0301\u0130ß😀☃",
    "☃" * 255,
    "'; DROP TABLE timer_schedules; --".replace(" ", "_"),
    "../../../etc/passwd",
    "&lt;b&gt;&amp;",
    "</textarea></title></bdi><svg/onload=alert(1)>",
    "#",
    "?",
    ".",
    "..",
)
HOSTILE_BODIES = (
    b'{"id":"<script>alert(1)</script>","type":"</pre><script>alert(2)</script>"}',
    b"\xff\xfe\x00<img src=x onerror=alert(3)>",
    '\u202e{"type": "evil"}\u2066 {{7*7}}'.encode(),
)


@dataclass(frozen=True)
class Site:
    """A service, and where browsers find its page."""

    world: World
    service: TimerServiceProcess
    port: int
    proxy: PrefixProxy

    def address(self, screen: str = "", place: str = "root") -> str:
        """Return the address of a screen at the `root` or behind the `prefix`."""
        start = f"http://127.0.0.1:{self.port}" if place == "root" else self.proxy.url
        return f"{start}/ui/{screen}"

    def timers(self, tenant: str) -> Timers:
        """Return a tenant's client."""
        return Timers(self.world.client, tenant=tenant, prefix=SUBJECTS)


@asynccontextmanager
async def open_site(broker: NatsServer, folder: Path) -> AsyncIterator[Site]:
    port = free_port()
    world = await World(folder, broker, SUBJECTS).open()
    try:
        service = world.service(http_port=0, page_port=port).start_ready()
        async with PrefixProxy(port, PREFIX).serving() as proxy:
            site = Site(world, service, port, proxy)
            await _furnish(site)
            yield site
    finally:
        await world.close()


async def _furnish(site: Site) -> None:
    """Give three tenants timers in every state, and have some messages refused."""
    for number, tenant in enumerate(("acme", "globex", "initech"), 1):
        timers = site.timers(tenant)
        await asyncio.gather(
            *(
                timers.schedule(
                    f"order-{each}", timedelta(minutes=3 * each * number), correlation_id=f"cart {each}"
                )
                for each in range(1, 40 // number)
            ),
            *(timers.schedule(f"paid-{each}", timedelta(0)) for each in range(12)),
            timers.cancel("withdrawn"),
        )
    acme = site.timers("acme")
    await asyncio.gather(
        *(
            acme.schedule(each, timedelta(hours=2), correlation_id="hostile", confirm=True)
            for each in HOSTILE_IDS
        )
    )
    await asyncio.gather(*(acme.wait(f"paid-{each}") for each in range(12)))
    for number, body in enumerate(HOSTILE_BODIES):
        await site.world.send_raw(f"{SUBJECTS}.commands.acme.ScheduleTimer", body, f"bad-{number}")
    zoneless = messages.schedule("acme", "no-zone", "2030-01-01T09:00:00")
    await site.world.send(zoneless)
