"""A page that asks for a key, behind a proxy with a prefix."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.prefix_proxy import PrefixProxy
from tests.browser.site import PREFIX
from tests.browser.watched import open_context
from tests.support.broker import NatsServer
from tests.support.ports import free_port
from tests.support.world import World

KEY = "a-key-that-opens-the-page-for-everybody"


@pytest_asyncio.fixture(loop_scope="session")
async def closed(shared_broker: NatsServer, tmp_path: Path, prefix: str) -> AsyncIterator[str]:
    """The address of a page that asks for a key."""
    port = free_port()
    world = await World(tmp_path, shared_broker, prefix).open()
    try:
        async with PrefixProxy(port, PREFIX).serving() as proxy:
            world.service(http_port=0, page_port=port, page_key=KEY, page_url=proxy.url).start_ready()
            yield f"{proxy.url}/ui/"
    finally:
        await world.close()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
async def test_a_key_opens_the_page_and_logging_out_closes_it(
    script: bool, closed: str, browser: Browser
) -> None:
    async with open_context(browser, script=script) as (context, complaints):
        page = await context.new_page()
        await page.goto(closed)

        await page.get_by_label("Key").fill("not-the-key-that-opens-the-page-at-all")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("main")).to_contain_text("not valid")
        await page.get_by_label("Key").fill(KEY)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Now")
        [cookie] = [each for each in await context.cookies() if "session" in each["name"]]
        await page.get_by_role("button", name="Log out").click()
        await page.goto(closed)
        await expect(page.get_by_label("Key")).to_be_visible()

        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert cookie["path"].startswith(PREFIX)
        complaints.expect("401 ")
