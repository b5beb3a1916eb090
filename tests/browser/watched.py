"""Pages of the browser that tell what went wrong on them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, Response

from tests.support.patience import PATIENCE_S

Theme = Literal["light", "dark"]


@dataclass
class Complaints:
    """What a browser complains of; a test that has not expected it fails."""

    found: list[str] = field(default_factory=list)

    def watch(self, context: BrowserContext) -> None:
        """Listen to every page of a context."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(f"uncaught: {error.error}"))
        context.on("dialog", self._dialog)
        context.on("response", self._response)
        context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        # The browser reports violations of the policy here, too.
        if message.type in ("error", "warning"):
            self.found.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    async def _dialog(self, dialog: Dialog) -> None:
        self.found.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.found.append(f"{response.status} {response.request.method} {response.url}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.found.append(f"request to another origin: {request.url}")

    def expect(self, *parts: str) -> None:
        """Take off what the test has caused on purpose; each part must be among what was found."""
        for part in parts:
            assert any(part in each for each in self.found), (part, self.found)
        self.ignore(*parts)

    def ignore(self, *parts: str) -> None:
        """Take off what may have been caused on purpose."""
        self.found = [each for each in self.found if not any(part in each for part in parts)]


@asynccontextmanager
async def open_context(
    browser: Browser, *, theme: Theme = "light", script: bool = True, **options: Any
) -> AsyncIterator[tuple[BrowserContext, Complaints]]:
    """Open a window of its own; at its end nothing may have gone wrong on any of its pages."""
    options.setdefault("viewport", {"width": 1280, "height": 800})
    context = await browser.new_context(color_scheme=theme, java_script_enabled=script, **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    complaints = Complaints()
    complaints.watch(context)
    try:
        yield context, complaints
    finally:
        await context.close()
    assert complaints.found == [], "\n".join(complaints.found)


@asynccontextmanager
async def open_page(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """Open one page on which nothing may go wrong."""
    async with open_context(browser, **options) as (context, _):
        yield await context.new_page()
