"""Every screen by its address, with what the site has to show on it."""

from typing import Final

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

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
    "load": "load",
    "activity": "activity",
    "refused": "refused",
    "tenants": "tenants",
    "system": "system",
}
"""Those with a query are reached from another screen."""


async def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe finds wrong: the rule, and where."""
    found = (await Axe().run(page, options=RULES)).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]
