"""Texts that somebody wrote to break the page: shown as text, nothing runs, links work."""

import asyncio
from datetime import timedelta
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.async_api import Browser, expect

from tests.browser.screens import SCREENS
from tests.browser.site import HOSTILE_IDS, Site
from tests.browser.watched import open_context, open_page
from tests.fuzz import corpus
from tests.support import messages
from tests.support.patience import PATIENCE_S
from timer_client import wire
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


async def test_hostile_ids_are_text_on_every_screen_that_names_timers(browser: Browser, site: Site) -> None:
    kept = [each.decode("utf-8", "replace") for each in corpus.load("identifier")]
    ids = {*HOSTILE_IDS, *filter(wire.is_service_call_id, kept)}
    job = await _have_everywhere(ids, site)
    screens = (
        *("", "timers?state=Reached", "timers?tenant=hostile&state=Reached", "find?id=%3C"),
        *(f"job?n={job}", "activity?tenant=hostile", "refused?tenant=hostile"),
        "refused-replay?tenant=hostile&reason=invalid&field=payload.dueAt&fix=utc",
    )
    async with open_page(browser) as page:
        for screen in screens:
            await page.goto(site.address(screen))
            links = page.locator('a[href^="timer?"]')
            shown = await links.evaluate_all("found => found.map((each) => [each.innerText, each.href])")

            named = [(text, parse_qs(urlsplit(href).query)) for text, href in shown]
            wrong = [
                (text, query)
                for text, query in named
                if text.removeprefix("hostile/") != printable(query["id"][0])
            ]
            assert wrong == [], screen
            if not screen.startswith(("activity", "refused?")):  # These name jobs and letters.
                assert ids & {query["id"][0] for _, query in named}, screen
        for each in ids:
            await page.goto(site.address(f"timer?tenant=hostile&letters=all&id={quote(each, safe='')}"))

            await expect(page.locator("h1 .id")).to_have_text(printable(each))
            await expect(page.get_by_role("heading", name="Letters that name it")).to_be_visible()


async def _have_everywhere(ids: set[str], site: Site) -> int:
    """Have timers of these ids fired by a job, and messages about them refused; return the job's number."""
    timers = site.timers("hostile")
    await asyncio.gather(*(timers.schedule(each, timedelta(hours=1), confirm=True) for each in ids))
    form = {"action": "fire", "tenant": "hostile", "reason": "<script>alert(1)</script>"}
    began = await site.post("bulk-start", {**form, "count": str(len(ids)), "confirm": str(len(ids))})
    for each in ids:
        await site.world.send(messages.schedule("hostile", each, "2030-01-01T09:00:00"))
    async with asyncio.timeout(PATIENCE_S):
        while len((await site.get("timers?tenant=hostile&state=Reached&format=json"))["timers"]) < min(
            50, len(ids)
        ):
            await asyncio.sleep(0.02)
        while not (await site.get("refused?tenant=hostile&format=json"))["letters"]:
            await asyncio.sleep(0.02)
    number: int = began["job"]["number"]
    return number


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
