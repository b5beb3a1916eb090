"""Texts that somebody wrote to break the page: shown as text, nothing runs, links work."""

from urllib.parse import quote

import pytest
from playwright.async_api import Browser, expect

from tests.browser.screens import SCREENS
from tests.browser.site import HOSTILE_IDS, Site
from tests.browser.watched import open_context, open_page
from tests.fuzz import corpus
from timer_service.printable import printable


@pytest.mark.parametrize("place", ["root", "prefix"])
async def test_a_hostile_id_is_text_and_its_link_leads_to_its_timer(
    place: str, browser: Browser, site: Site
) -> None:
    async with open_page(browser) as page:
        for hostile in HOSTILE_IDS:
            await page.goto(site.address("timers?tenant=acme&correlation=hostile", place))
            await page.get_by_role("link", name=printable(hostile), exact=True).click()

            await expect(page.locator("h1 .id")).to_have_text(printable(hostile))


async def test_a_hostile_id_can_be_typed_to_find_its_timer(browser: Browser, site: Site) -> None:
    async with open_page(browser) as page:
        await page.goto(site.address())
        for hostile in HOSTILE_IDS:
            await page.get_by_role("searchbox").fill(hostile)
            await page.get_by_role("searchbox").press("Enter")

            await expect(page.locator("h1 .id")).to_have_text(printable(hostile))


async def test_hostile_ids_that_are_selected_are_text_and_are_found_again(
    browser: Browser, site: Site
) -> None:
    async with open_page(browser) as page:
        await page.goto(site.address("timers?tenant=acme&correlation=hostile"))
        await page.get_by_role("checkbox", name="Select all on this page").check()
        await page.get_by_role("button", name="Cancel…").click()

        await expect(page.locator(".health")).to_contain_text(f"{len(HOSTILE_IDS)} timers would be")
        shown = await page.locator("td .id").all_inner_texts()
        assert sorted(shown) == sorted(printable(each) for each in HOSTILE_IDS)


async def test_hostile_bodies_are_text(browser: Browser, site: Site) -> None:
    async with open_page(browser) as page:
        for letter in (await site.get("refused?tenant=acme&format=json"))["letters"]:
            await page.goto(site.address(f"letter?n={letter['number']}"))
            await page.get_by_role("button", name="Check").click()

            await expect(page.get_by_role("heading", level=1)).to_have_text(f"Letter {letter['number']}")


async def test_hostile_parameters_are_refused_as_text(browser: Browser, site: Site) -> None:
    kept = [each.decode("utf-8", "replace") for each in corpus.load("identifier")]
    texts = sorted({*HOSTILE_IDS, *kept}, key=len)
    async with open_context(browser) as (context, complaints):
        page = await context.new_page()
        for path in sorted({path.partition("?")[0] for path in SCREENS.values()}):
            text = quote("".join(texts)[:300])
            await page.goto(
                site.address(
                    f"{path}?tenant={text}&id={text}&state={text}&from={text}&cursor={text}&done={text}"
                )
            )

            await expect(page.get_by_role("heading", level=1)).to_have_count(1)
        complaints.ignore("400 GET", "404 GET", "Failed to load resource")
