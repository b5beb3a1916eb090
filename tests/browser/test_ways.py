"""What a person comes for, clicked through with and without script."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser.prefix_proxy import PrefixProxy
from tests.browser.screens import go, violations
from tests.browser.site import PREFIX, Site
from tests.browser.watched import open_page
from tests.support import messages
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import end_cli, start_cli

with_and_without_script = pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
PLACE = {True: "prefix", False: "root"}
"""With script behind a prefix, where a script can go wrong; without it at the root."""


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
        end_cli(process)


@with_and_without_script
async def test_find_a_timer_by_its_id_and_cancel_it(script: bool, browser: Browser, site: Site) -> None:
    name = f"to-cancel-{script}"
    timers = site.timers("globex")
    await timers.schedule(name, timedelta(hours=1), confirm=True)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(place=PLACE[script]))
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
        await page.goto(site.address(f"timer?tenant=globex&id={name}", PLACE[script]))
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


@pytest.mark.parametrize(("script", "many"), [(True, 5_000), (False, 150)], ids=["script", "no-script"])
async def test_cancel_all_that_a_filter_matches_with_preview_and_count(
    script: bool, many: int, browser: Browser, site: Site
) -> None:
    tenant = f"many-{many}"
    timers = site.timers(tenant)
    await asyncio.gather(*(timers.schedule(f"order-{n}", timedelta(hours=1)) for n in range(many)))
    await timers.schedule("last", timedelta(hours=3), confirm=True)
    async with asyncio.timeout(PATIENCE_S):
        while (await site.get(f"timers?tenant={tenant}&format=json"))["count"] <= many:
            await asyncio.sleep(0.05)
    until = (datetime.now(UTC) + timedelta(hours=2)).isoformat(timespec="seconds")
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"timers?tenant={tenant}", PLACE[script]))
        await page.get_by_label("to", exact=True).fill(until)
        await page.get_by_role("button", name="Show").click()
        await page.get_by_role("link", name="cancel…", exact=True).click()
        await expect(page.locator(".health")).to_contain_text(f"{many:,} timers would be cancelled")
        await page.get_by_label("Reason").fill("the order system starts again")
        await page.get_by_label(f"Type {many} to confirm").fill(str(many))
        await page.get_by_role("button", name=f"Cancel {many:,} timers").click()

        await expect(page.get_by_role("heading", level=1)).to_contain_text("Job")
        ended = page.locator(".health", has_text="Finished")
        if script:
            await expect(ended).to_be_visible(timeout=5_000 * PATIENCE_S)  # Live: nobody reloads.
        else:
            async with asyncio.timeout(5 * PATIENCE_S):
                while not await ended.is_visible():
                    await page.reload()
        await expect(page.locator("[data-live=outcomes]")).to_have_text(f"{many:,} cancelled")
    assert (await site.get(f"timers?tenant={tenant}&state=Cancelled&format=json"))["count"] == many
    assert (await timers.get("last")).state == "Scheduled"


@with_and_without_script
async def test_select_timers_and_move_them(script: bool, browser: Browser, site: Site) -> None:
    tenant = f"picked-{script}".lower()
    timers = site.timers(tenant)
    due_at = datetime(2031, 5, 1, 12, tzinfo=UTC)
    for name in ("a", "b", "c"):
        await timers.schedule(name, due_at, confirm=True)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"timers?tenant={tenant}", PLACE[script]))
        for name in ("a", "c"):
            await page.get_by_role("checkbox", name=f"Select {name} of").check()
        await page.get_by_role("button", name="Move…").click()
        await page.get_by_label("Move by").fill("-1d")
        await page.get_by_role("button", name="Preview").click()
        await expect(page.locator("table")).to_contain_text("2031-04-30")
        await page.get_by_label("Reason").fill("a day too late")
        await page.get_by_role("button", name="Move 2 timers").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Job")
    async with asyncio.timeout(PATIENCE_S):
        while (await timers.get("c")).generation != 2:
            await asyncio.sleep(0.02)
    moved = due_at - timedelta(days=1)
    assert [(await timers.get(name)).due_at for name in ("a", "b", "c")] == [moved, due_at, moved]


@with_and_without_script
async def test_undo_a_job(script: bool, browser: Browser, site: Site) -> None:
    tenant = f"undone-{script}".lower()
    timers = site.timers(tenant)
    due_at = datetime(2031, 5, 1, 12, tzinfo=UTC)
    for name in ("a", "b"):
        await timers.schedule(name, due_at, confirm=True)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"bulk?action=cancel&tenant={tenant}", PLACE[script]))
        await page.get_by_label("Reason").fill("a mistake")
        await page.get_by_role("button", name="Cancel 2 timers").click()
        await _ended(page, script=script)
        await page.get_by_role("link", name="Undo this job").click()
        await expect(page.locator(".health")).to_contain_text("2 timers were changed by job")
        await page.get_by_label("Reason").fill("it was one")
        await page.get_by_role("button", name="Restore 2 timers").click()
        await _ended(page, script=script)
    found = [await timers.get(name) for name in ("a", "b")]
    assert [(each.state, each.due_at) for each in found if each] == [("Scheduled", due_at)] * 2


async def _ended(page: Page, *, script: bool) -> None:
    """Wait for the end of the job that is shown; with a script the page tells of it by itself."""
    finished = page.locator(".health.good", has_text="Finished")
    async with asyncio.timeout(PATIENCE_S):
        while not script and not await finished.is_visible():
            await page.reload()
    await expect(finished).to_be_visible(timeout=PATIENCE_S * 1000)


@with_and_without_script
async def test_repair_a_group_with_one_correction(script: bool, browser: Browser, site: Site) -> None:
    tenant = f"group-{script}".lower()
    for name in ("one", "two"):
        await site.world.send(messages.schedule(tenant, name, "2030-01-01T09:00:00"))
    async with asyncio.timeout(PATIENCE_S):
        while len((await site.get(f"refused?tenant={tenant}&format=json"))["letters"]) < 2:
            await asyncio.sleep(0.02)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"refused?tenant={tenant}", PLACE[script]))
        await page.get_by_role("link", name="all 2…").click()
        await expect(page.locator(".health")).to_contain_text("0 of 2 letters would be accepted")
        await page.get_by_role("link", name="dueAt in UTC").click()
        await expect(page.locator(".health")).to_contain_text("2 of 2 letters would be accepted")
        await page.get_by_label("Reason").fill("a sender without zones")
        await page.get_by_role("button", name="Send 2 again").click()

        await expect(page.locator(".health", has_text="Finished")).to_be_visible()
    found = [await site.timers(tenant).get(name) for name in ("one", "two")]
    assert [each.due_at for each in found if each] == [datetime(2030, 1, 1, 9, tzinfo=UTC)] * 2


@with_and_without_script
async def test_repair_a_refused_message_and_see_it_accepted(
    script: bool, browser: Browser, site: Site
) -> None:
    tenant = f"repaired-{script}".lower()
    await site.world.send(messages.schedule(tenant, "no-zone", "2030-01-01T09:00:00"))
    async with asyncio.timeout(PATIENCE_S):
        while not (await site.get(f"refused?tenant={tenant}&format=json"))["letters"]:
            await asyncio.sleep(0.02)
    async with open_page(browser, script=script) as page:
        await page.goto(site.address(f"refused?tenant={tenant}", PLACE[script]))
        await page.get_by_role("link", name=re.compile("^letter ")).click()
        await expect(page.locator("mark")).to_contain_text("2030-01-01T09:00:00")
        await page.get_by_role("link", name="dueAt in UTC").click()
        await expect(page.get_by_role("status").filter(has_text="It would be accepted")).to_be_visible()
        await page.get_by_role("button", name="Send it again").click()

        await expect(page.get_by_role("status").filter(has_text="scheduled")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("no-zone")
        await page.goto(site.address(f"refused?tenant={tenant}", PLACE[script]))
        await expect(page.get_by_role("link", name=re.compile("^letter "))).to_be_visible()  # It stays.
    found = await site.timers(tenant).get("no-zone")
    assert found is not None
    assert (found.state, found.due_at) == ("Scheduled", datetime(2030, 1, 1, 9, tzinfo=UTC))


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
        await expect(page.locator("#drift")).to_be_hidden()  # A virtual clock is meant to differ.
        await page.get_by_role("link", name="Activity").click()
        await expect(page.get_by_role("main")).to_contain_text("clock at 2030-01-01 0")


@with_and_without_script
async def test_the_dev_screen_is_accessible_at_the_root_and_behind_a_prefix(
    script: bool, browser: Browser, dev: str
) -> None:
    port = urlsplit(dev).port
    assert port is not None
    async with PrefixProxy(port, PREFIX).serving() as proxy, open_page(browser) as page:
        for start in (dev, f"{proxy.url}/ui/"):
            await go(page, f"{start}dev", script=script)

            assert await violations(page, "dev" if script and start == dev else "") == []
