"""Every screen by its address, with what the site has to show on it."""

import asyncio
from contextlib import suppress
from typing import Final

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Error, Page, expect

from tests.browser.watched import Theme
from tests.support.documents import ROOT
from tests.support.patience import PATIENCE_S

SHOTS: Final = ROOT / "build" / "screens"
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
RULES: Final = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
SCREENS: Final = {
    "now": "",
    "timers": "timers",
    "timers-reached": "timers?tenant=acme&state=Reached",
    "timers-none": "timers?tenant=nobody",
    "timer": "timer?tenant=acme&id=order-7",
    "timer-reached": "timer?tenant=acme&id=paid-3",
    "timer-cancelled": "timer?tenant=acme&id=withdrawn",
    "timer-callback": "timer?tenant=acme&id=unheard",
    "find": "find?id=order-1",
    "bulk-cancel": "bulk?action=cancel&tenant=acme",
    "bulk-move": "bulk?action=move&by=-2h&tenant=globex",
    "bulk-undo": "bulk?action=undo&job=1",
    "job": "job?n=1",
    "load": "load",
    "activity": "activity",
    "refused": "refused",
    "replay": "refused-replay?tenant=acme&reason=invalid&field=payload.dueAt&fix=utc",
    "letter": "letter?n=1&fix=utc",
    "login": "login?",
    "tenants": "tenants",
    "system": "system",
}
"""Those with a question mark are not in the navigation."""


async def keep_picture(page: Page, name: str) -> None:
    """Keep what a person would see; no test fails for want of it, as a busy machine's browser may refuse."""
    with suppress(Error):
        await page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


async def go(page: Page, address: str, *, script: bool = True) -> None:
    """Open an address with or without script, and stay: a page that loads itself again is waited for.

    Script is allowed again afterwards, because axe is one: what did not run while the page was loaded never
    does. Not by the context's own switch, which stays.
    """
    session = await page.context.new_cdp_session(page)
    await session.send("Emulation.setScriptExecutionDisabled", {"value": not script})
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await page.goto(address)) is None or "refresh" in answer.headers:
            pass
    await session.send("Emulation.setScriptExecutionDisabled", {"value": False})
    idle = page.locator("[data-copy][hidden]" if script else "[data-copy]:visible")
    await expect(idle).to_have_count(0)


async def violations(page: Page, picture: str = "") -> list[tuple[Theme, str, list[str]]]:
    """Return what axe finds wrong in each theme: the rule, and where; keep pictures if a name is given.

    A page whose state changes loads itself again, and axe with it.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await _violations(page, picture)
            except Error as error:
                if "context was destroyed" not in error.message:
                    raise
            await page.wait_for_load_state()


async def _violations(page: Page, picture: str) -> list[tuple[Theme, str, list[str]]]:
    await page.evaluate(Axe().axe_script)
    wrong: list[tuple[Theme, str, list[str]]] = []
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        found = await page.evaluate("rules => axe.run(document, rules)", RULES)
        if picture:
            await keep_picture(page, f"{picture}-{theme}")
        wrong += [
            (theme, each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]
        ]
    return wrong
