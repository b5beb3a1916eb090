"""Takes the picture in the README: a service as it looks on a quiet day, in a real browser.

By `make picture`, on a machine with nothing else to do: the lateness in it is measured.
"""

import argparse
import asyncio
import math
import random
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

from playwright.async_api import async_playwright

from tests.browser import chromium
from tests.browser.screens import go
from tests.browser.watched import open_context
from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.documents import ROOT
from tests.support.ports import free_port
from tests.support.world import World
from timer_client import Timers

PICTURE: Final = ROOT / "docs" / "page.png"
TENANTS: Final = {"acme": 5, "globex": 3, "initech": 2, "umbrella": 2}
"""Each with its share of the timers."""
KINDS: Final = ("order", "invoice", "reminder", "trial")
AHEAD: Final = 2_400
"""Timers of the next hour."""
PER_S: Final = 4
SUBJECTS: Final = "picture"
SIZE: Final = {"width": 1_280, "height": 900}


async def take(minutes: float, path: Path) -> None:
    """Run a service for some minutes, because lines need more than one point, and take the picture."""
    chance = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        broker = NatsServer(Path(folder) / "broker").start()
        world = await World(Path(folder), broker, SUBJECTS).open()
        try:
            port = free_port()
            world.service(http_port=0, page_port=port).start_ready()
            await _quiet_day(world, chance, minutes)
            await _photographed(f"http://127.0.0.1:{port}/ui/", path)
        finally:
            await world.close()
            broker.stop()


async def _quiet_day(world: World, chance: random.Random, minutes: float) -> None:
    """Have timers for the next hour, a few messages that are refused, and new timers all the time."""
    for _ in range(AHEAD):
        minute = chance.random() * 60
        # More at some times than at others, as days are.
        if chance.random() < 0.6 + 0.4 * math.sin(minute / 9):
            await _scheduled(world, chance, timedelta(minutes=minutes + minute))
    for number, tenant in enumerate(("acme", "globex")):
        await world.send(messages.schedule(tenant, f"no-zone-{number}", "2030-01-01T09:00:00"))
    for _ in range(round(minutes * 60 * PER_S)):
        await _scheduled(world, chance, timedelta(seconds=1 + chance.expovariate(0.2)))
        await asyncio.sleep(1 / PER_S)


async def _scheduled(world: World, chance: random.Random, due: timedelta) -> None:
    [tenant] = chance.choices([*TENANTS], [*TENANTS.values()])
    name = f"{chance.choice(KINDS)}-{chance.randrange(100_000, 999_999)}"
    await Timers(world.client, tenant=tenant, prefix=SUBJECTS).schedule(name, due)


async def _photographed(address: str, path: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.executable(),
            env=dict(chromium.environment()),
            args=list(chromium.ARGUMENTS),
        )
        async with open_context(browser, viewport=SIZE) as (context, _):
            page = await context.new_page()
            await go(page, address)
            await page.locator("#stream", has_text="live").wait_for()
            await page.screenshot(path=path, full_page=True)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--to", type=Path, default=PICTURE)
    chosen = parser.parse_args()
    asyncio.run(take(chosen.minutes, chosen.to))
