"""The real service with something to show."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.browser.prefix_proxy import PrefixProxy
from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess
from tests.support.world import World
from timer_client import Timers

PREFIX = "/ops/timers"
API = {"api_key": "k" * 40, "api_tenant": "acme", "callback_allow": "127.0.0.1/32"}
"""For timers that call their receivers."""
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

    async def get(self, screen: str) -> Any:
        """Return a screen as JSON."""
        return await asyncio.to_thread(_asked, Request(self.address(screen)))

    async def post(self, to: str, form: dict[str, str]) -> Any:
        """Send a form, and return the screen that follows, as JSON."""
        body = urlencode(form).encode()
        request = Request(self.address(f"{to}?format=json"), body, {"sec-fetch-site": "same-origin"})
        return await asyncio.to_thread(_asked, request)

    def timers(self, tenant: str) -> Timers:
        """Return a tenant's client."""
        return Timers(self.world.client, tenant=tenant, prefix=SUBJECTS)


def _asked(request: Request) -> Any:
    with urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)


@asynccontextmanager
async def open_site(broker: NatsServer, folder: Path) -> AsyncIterator[Site]:
    port, api = free_port(), free_port()
    world = await World(folder, broker, SUBJECTS).open()
    try:
        service = world.service(http_port=0, page_port=port, api_port=api, **API).start_ready()
        async with PrefixProxy(port, PREFIX).serving() as proxy:
            site = Site(world, service, port, proxy)
            await asyncio.gather(_furnish(site), _fail_a_callback(site, api))
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
                    f"order-{each}",
                    timedelta(minutes=3 * each * number),
                    correlation_id=f"cart {each}",
                    confirm=True,  # They are there before a job looks for them.
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
    await _run_a_job(site)
    await site.post("cancel", {"tenant": "acme", "id": "order-30", "reason": "<i>withdrawn</i>"})
    await site.post("move", {"tenant": "globex", "id": "order-15", "due": "2031-01-01T00:00Z"})
    zoneless = messages.schedule("acme", "no-zone", "2030-01-01T09:00:00")
    await site.world.send(zoneless)


async def _fail_a_callback(site: Site, api_port: int) -> None:
    """Have one callback that nobody takes."""
    callback = {"url": f"http://127.0.0.1:{free_port()}/hooks", "retry": {"maxAttempts": 1}}
    body = json.dumps({"dueAt": datetime.now(UTC).isoformat(), "callback": callback}).encode()
    headers = {"x-api-key": API["api_key"], "content-type": "application/json"}
    address = f"http://127.0.0.1:{api_port}/v1/timers/unheard"
    await asyncio.to_thread(_asked, Request(address, body, headers, method="PUT"))
    async with asyncio.timeout(PATIENCE_S):
        while not (await site.get("refused?tenant=acme&format=json"))["failed"]:
            await asyncio.sleep(0.02)


async def _run_a_job(site: Site) -> None:
    """Have one job to show: its number is the first, because nothing was done on the page before."""
    form = {"action": "move", "by": "1h", "tenant": "initech", "count": "50", "reason": "<b>a test</b>"}
    await site.post("bulk-start", form)
    async with asyncio.timeout(PATIENCE_S):
        while (await site.get("job?n=1&format=json"))["job"]["isRunning"]:
            await asyncio.sleep(0.02)
