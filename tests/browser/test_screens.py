"""Every screen, in both themes, with and without script, at the root and behind a prefix."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.prefix_proxy import PrefixProxy
from tests.browser.screens import SCREENS, go, keep_picture, violations
from tests.browser.site import Site
from tests.browser.watched import open_page


@pytest.mark.parametrize("place", ["root", "prefix"])
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_is_accessible_in_both_themes_with_and_without_script(
    name: str, place: str, browser: Browser, site: Site
) -> None:
    async with open_page(browser) as page:
        for script in (True, False):
            await go(page, site.address(SCREENS[name], place), script=script)

            assert await violations(page, name if script and place == "root" else "") == []


@pytest.mark.parametrize("place", ["root", "prefix"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
async def test_every_screen_is_one_click_away(script: bool, place: str, browser: Browser, site: Site) -> None:
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(place=place))
        names = await page.get_by_role("navigation").get_by_role("link").all_inner_texts()

        for name in names:
            await page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()

            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
            await expect(page.locator("nav [aria-current]")).to_have_text(name)
        assert len(names) == len([path for path in SCREENS.values() if "?" not in path])


@pytest.mark.parametrize("place", ["root", "prefix"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
async def test_every_screen_opens_without_a_complaint(
    script: bool, place: str, browser: Browser, site: Site
) -> None:
    async with open_page(browser, script=script) as page:
        for path in SCREENS.values():
            await page.goto(site.address(path, place))

            await expect(page.get_by_role("heading", level=1)).to_have_count(1)


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_fits_a_narrow_window_and_400_percent(name: str, browser: Browser, site: Site) -> None:
    # 1280 pixels at 400 % are 320.
    async with open_page(browser, viewport={"width": 320, "height": 640}) as page:
        await go(page, site.address(SCREENS[name]))

        await keep_picture(page, f"{name}-narrow")
        assert await _overflow(page) == []


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_keeps_still_and_keeps_its_edges_in_forced_colours(
    name: str, browser: Browser, site: Site
) -> None:
    async with open_page(browser, forced_colors="active", reduced_motion="reduce") as page:
        await go(page, site.address(SCREENS[name]))

        await keep_picture(page, f"{name}-forced")
        assert await page.evaluate("document.getAnimations().length") == 0


_ADDRESSES = """found => found
    .flatMap((each) => ["href", "src", "action"].map((name) => each.getAttribute(name)))
    .filter((each) => each !== null)
    .map((each) => new URL(each, location).href)"""


@pytest.mark.parametrize("prefix", ["", "/", "/a/b"], ids=["none", "slash", "two"])
async def test_no_prefix_of_a_proxy_leads_away(prefix: str, browser: Browser, site: Site) -> None:
    async with PrefixProxy(site.port, prefix).serving() as proxy, open_page(browser) as page:
        for start in ("/ui", "/ui/"):
            await page.goto(proxy.url + start)
            home = f"{proxy.url}/ui/"
            assert page.url == home
            for name in ("Timers", "Load", "Activity", "Now"):
                await page.get_by_role("navigation").get_by_role("link", name=name).click()

                await expect(page.get_by_role("heading", level=1)).to_have_text(name)
                addresses: list[str] = await page.locator("[href], [src], [action]").evaluate_all(_ADDRESSES)
                assert [each for each in addresses if not each.startswith(home)] == []
        await expect(page.locator("#stream")).to_have_text("live")


@pytest.mark.parametrize("name", SCREENS)
async def test_nothing_on_a_screen_is_cut_off_at_its_right(name: str, browser: Browser, site: Site) -> None:
    async with open_page(browser) as page:
        await go(page, site.address(SCREENS[name]))

        cut: list[str] = await page.locator(".card").evaluate_all(
            """found => found.filter((each) => each.scrollWidth > each.clientWidth + 1)
                .map((each) => each.innerText.slice(0, 100))"""
        )
        assert cut == []


async def _overflow(page: Page) -> list[str]:
    """Return what makes the whole page scroll sideways."""
    found: list[str] = await page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            return [...document.querySelectorAll("body *")]
                .filter((each) => each.getBoundingClientRect().right > width + 1)
                .map((each) => each.outerHTML.slice(0, 100));
        }"""
    )
    return found
