"""Live figures: seven tabs, a stream that is lost and comes back, a burst that one watches."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.prefix_proxy import PrefixProxy
from tests.browser.site import Site
from tests.browser.watched import open_context, open_page
from tests.support.broker import NatsServer
from tests.support.ports import free_port
from tests.support.world import World

MANY_TABS = 7
"""One more than a browser's connections to one host over HTTP/1.1."""
BURST = 500


@pytest_asyncio.fixture(loop_scope="session")
async def line(site: Site) -> AsyncIterator[PrefixProxy]:
    """A way to the page that the test may cut."""
    async with PrefixProxy(site.port, "/line").serving() as proxy:
        yield proxy


async def test_seven_tabs_work(browser: Browser, site: Site) -> None:
    async with open_context(browser) as (context, _):
        tabs = [await context.new_page() for _ in range(MANY_TABS)]
        for tab in tabs:
            await tab.goto(site.address())

            await expect(tab.locator("#stream")).to_have_text("live")
        for tab in tabs:
            await tab.bring_to_front()
            await tab.goto(site.address("timers"))

            await expect(tab.get_by_role("heading", level=1)).to_have_text("Timers")


async def test_a_lost_stream_is_said_and_comes_back(browser: Browser, line: PrefixProxy) -> None:
    async with open_context(browser) as (context, complaints):
        page = await context.new_page()
        await page.goto(f"{line.url}/ui/")
        status = page.locator("#stream")
        await expect(status).to_have_text("live")

        await line.cut()
        await expect(status).to_contain_text("stream lost")
        line.mend()
        await expect(status).to_have_text("live")

        complaints.ignore("ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION")


async def test_a_burst_is_watched_live_behind_a_prefix(browser: Browser, site: Site) -> None:
    timers = site.timers("burst")
    async with open_page(browser) as page:
        await page.goto(site.address(place="prefix"))
        pending = page.locator("[data-live=pending]")
        before = await pending.inner_text()

        await asyncio.gather(*(timers.schedule(f"b-{each}", timedelta(seconds=4)) for each in range(BURST)))
        await expect(pending).to_have_text(f"{int(before.replace(',', '')) + BURST:,}")
        await expect(pending).to_have_text(before)
        await page.reload()

        await expect(page.locator("table", has_text="b-").first).to_be_visible()


async def test_a_tab_out_of_sight_has_no_stream(browser: Browser, site: Site) -> None:
    async with open_page(browser) as page:
        await page.goto(site.address())
        await expect(page.locator("#stream")).to_have_text("live")
        pending = page.locator("[data-live=pending]")

        await page.evaluate(_HIDE, True)
        before = await pending.inner_text()
        await site.timers("unseen").schedule("a", timedelta(hours=3), confirm=True)
        async with page.expect_response("**/live"):
            await page.evaluate(_HIDE, False)

        await expect(pending).not_to_have_text(before)


_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_times_are_the_server_s_whatever_the_browser_s_clock_says(browser: Browser, site: Site) -> None:
    await site.timers("acme").schedule("by-its-clock", timedelta(minutes=2, seconds=30), confirm=True)
    async with open_page(browser) as page:
        await page.add_init_script("const real = Date.now; Date.now = () => real() + 3600 * 1000;")
        await page.goto(site.address("timers?tenant=acme"))

        await expect(page.locator("#drift")).to_have_text(
            re.compile(r"differs from the server's by (1 h|59 min)")
        )
        row = page.get_by_role("row").filter(has_text="by-its-clock")
        await expect(row.locator(".due")).to_have_text(re.compile(r"in 2 min"))


async def test_a_command_can_be_copied_where_there_is_no_clipboard(browser: Browser, site: Site) -> None:
    async with open_page(browser) as page:
        await page.add_init_script('Object.defineProperty(navigator, "clipboard", {value: undefined});')
        await page.goto(site.address())
        await page.get_by_role("button", name="Copy").click()

        await expect(page.get_by_role("button", name="Selected")).to_be_visible()
        assert await page.evaluate("() => getSelection().toString()") == "timer-service status"


async def test_what_has_come_due_since_is_said_and_no_row_moves(browser: Browser, site: Site) -> None:
    await site.timers("acme").schedule("soon", timedelta(seconds=3), confirm=True)
    async with open_page(browser) as page:
        await page.goto(site.address())
        soon = page.get_by_role("region", name="Next due").get_by_role("link", name="soon")
        await expect(soon).to_be_visible()

        await expect(page.get_by_text("One of these was due since.")).to_be_visible()
        await expect(soon).to_be_visible()
        await page.get_by_role("link", name="Show what is next").click()

        await expect(page.get_by_text("due since")).to_be_hidden()
        await expect(soon).to_have_count(0)


async def test_the_first_screen_turns_when_the_broker_goes_and_when_it_is_back(
    browser: Browser, tmp_path: Path, prefix: str
) -> None:
    port, broker = free_port(), NatsServer(tmp_path / "broker").start()
    world = await World(tmp_path, broker, prefix).open()
    try:
        world.service(http_port=0, page_port=port).start_ready()
        async with open_page(browser) as page:
            await page.goto(f"http://127.0.0.1:{port}/ui/")
            health = page.locator(".health")
            await expect(health).to_have_class("health good")

            search = page.get_by_role("searchbox")
            await search.fill("order-")
            broker.stop()
            await expect(health).to_have_class("health bad")
            await expect(health).to_contain_text("Timers wait: the broker has been away since")
            await page.keyboard.type("42", delay=500)
            await expect(search).to_have_value("order-42")  # Nothing is taken from under somebody who types.
            await expect(page.get_by_role("heading", name="What to look at")).to_have_count(0)
            await search.blur()
            await expect(page.get_by_role("heading", name="What to look at")).to_be_visible()
            broker.start()
            await expect(health).to_have_class("health good")
            await expect(page.get_by_role("heading", name="What to look at")).to_have_count(0)
    finally:
        await world.close()
        broker.stop()


async def test_open_streams_do_not_hold_up_the_end_of_the_service(
    browser: Browser, shared_broker: NatsServer, tmp_path: Path, prefix: str
) -> None:
    port = free_port()
    world = await World(tmp_path, shared_broker, prefix).open()
    try:
        service = world.service(http_port=0, page_port=port).start_ready()
        async with open_context(browser) as (context, complaints):
            for _ in range(3):
                page = await context.new_page()
                await page.goto(f"http://127.0.0.1:{port}/ui/")
                await expect(page.locator("#stream")).to_have_text("live")

            code = await asyncio.to_thread(service.terminate)

            await expect(page.locator("#stream")).to_contain_text("stream lost")
            complaints.ignore("ERR_", "Failed to load")
        assert code == 0
        assert [line for line in service.log if line.get("level") in ("warning", "error")] == []
    finally:
        await world.close()
