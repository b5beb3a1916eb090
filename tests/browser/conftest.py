"""One browser and one site for all tests: starting them takes longer than most tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.browser import chromium
from tests.browser.site import Site, open_site
from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S

expect.set_options(timeout=PATIENCE_S * 1000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests share one event loop: browser and site live in it."""
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The real Chromium."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=chromium.executable(),
            env=dict(chromium.environment()),
            args=list(chromium.ARGUMENTS),
        )
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def site(shared_broker: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """The real service with timers of every kind, at the root and behind a proxy with a prefix."""
    async with open_site(shared_broker, tmp_path_factory.mktemp("site")) as opened:
        yield opened
