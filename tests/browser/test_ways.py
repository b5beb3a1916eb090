"""What a person comes for, clicked through with and without script."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.screens import SHOTS, violations
from tests.browser.site import Site
from tests.browser.watched import open_page
from tests.support.broker import free_port
from tests.support.patience import PATIENCE_S
from tests.support.process import start_cli

with_and_without_script = pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def dev(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of the page of `timer-service dev` on a virtual clock."""
    process = start_cli(
        *("dev", "--port", str(free_port()), "--clock", "virtual", "--start-at", "2030-01-01T00:00:00Z"),
        cwd=tmp_path_factory.mktemp("dev"),
        http_port=0,
        page_port=free_port(),
    )
    try:
        assert process.stdout is not None
        greeting = ""
        while not (found := re.search(r"page +(http://\S+)", greeting)):
            line = process.stdout.readline()
            assert line, greeting
            greeting += line
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@with_and_without_script
async def test_find_a_timer_by_its_id_and_cancel_it(script: bool, browser: Browser, site: Site) -> None:
    name = f"to-cancel-{script}"
    timers = site.timers("globex")
    await timers.schedule(name, timedelta(hours=1), confirm=True)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address())
        await page.get_by_role("searchbox").fill(name)
        await page.get_by_role("searchbox").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        await page.get_by_role("button", name="Cancel it").click()

        await expect(page.get_by_role("status").filter(has_text="cancelled")).to_be_visible()
        await expect(page.get_by_role("main")).to_contain_text("Cancelled")
    found = await timers.get(name)
    assert found is not None
    assert found.state == "Cancelled"


@with_and_without_script
async def test_move_a_timer_and_see_it_fire_at_the_new_time(
    script: bool, browser: Browser, site: Site
) -> None:
    name = f"to-move-{script}"
    timers = site.timers("globex")
    await timers.schedule(name, timedelta(hours=1), confirm=True)
    due_at = (datetime.now(UTC) + timedelta(seconds=2)).replace(microsecond=123_000)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"timer?tenant=globex&id={name}"))
        await page.get_by_label("Move to").fill(due_at.isoformat())
        await page.get_by_role("button", name="Move", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="rescheduled")).to_be_visible()

        fired = await timers.wait(name)
        async with asyncio.timeout(PATIENCE_S):  # The event goes out before the timer is marked.
            while (await timers.get(name)).state != "Reached":
                await asyncio.sleep(0.02)
        await page.reload()

        await expect(page.get_by_role("main")).to_contain_text("Reached")
    assert fired.due_at == due_at
    assert fired.generation == 2


@with_and_without_script
async def test_step_the_virtual_clock(script: bool, browser: Browser, dev: str) -> None:
    name = f"stepped-{script}"
    async with open_page(browser, script=script) as page:
        await page.goto(dev)
        await page.get_by_role("link", name="Dev").click()
        await page.get_by_label("Id", exact=True).fill(name)
        await page.get_by_label("Due in, seconds").fill("7200")
        await page.get_by_role("button", name="Schedule").click()
        await page.goto(f"{dev}dev")
        await expect(
            page.locator("section", has=page.get_by_role("heading", name="Next due"))
        ).to_contain_text(name)

        await page.get_by_role("button", name="To the next due time").click()

        tape = page.locator("section", has=page.get_by_role("heading", name="Tape of events"))
        await expect(tape).to_contain_text(name)
        await expect(page.locator("p.clock")).to_contain_text("2030-01-01 0")


async def test_the_dev_screen_looks_as_it_should(browser: Browser, dev: str) -> None:
    async with open_page(browser) as page:
        await page.goto(f"{dev}dev")

        found = await violations(page)
        await page.screenshot(path=SHOTS / "dev-light.png", full_page=True)

        assert found == []
