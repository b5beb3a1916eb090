"""Every screen, in both themes, with and without script, at the root and behind a prefix."""

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from tests.browser.site import Site
from tests.browser.watched import Theme, open_page
from tests.support.documents import ROOT

SHOTS = ROOT / "build" / "screens"
SCREENS = {"api": "/v1"}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture(scope="session", autouse=True)
def shots() -> Path:
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_is_accessible(
    name: str, theme: Theme, browser: Browser, site: Site, shots: Path
) -> None:
    async with open_page(browser, theme=theme) as page:
        await page.goto(site.address("root") + SCREENS[name])

        found = (await Axe().run(page, options=RULES)).response["violations"]

        await page.screenshot(path=shots / f"{name}-{theme}.png", full_page=True)
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found] == []


@pytest.mark.parametrize("place", ["root", "prefix"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_opens(name: str, script: bool, place: str, browser: Browser, site: Site) -> None:
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(place) + SCREENS[name])

        await expect(page.get_by_role("heading", level=1)).to_have_count(1)
