"""Every screen by its address, with what the site has to show on it."""

from contextlib import suppress
from typing import Final

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Error, Page

from tests.support.documents import ROOT

SHOTS: Final = ROOT / "build" / "screens"
RULES: Final = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
SCREENS: Final = {
    "now": "",
    "timers": "timers",
    "timers-reached": "timers?tenant=acme&state=Reached",
    "timers-none": "timers?tenant=nobody",
    "timer": "timer?tenant=acme&id=order-7",
    "timer-reached": "timer?tenant=acme&id=paid-3",
    "timer-cancelled": "timer?tenant=acme&id=withdrawn",
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


async def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe finds wrong: the rule, and where."""
    found = (await Axe().run(page, options=RULES)).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]
