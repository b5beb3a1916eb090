"""The page on a real socket."""

import asyncio
import signal
import socket
from dataclasses import replace

from tests.support.pages import HOST, Pages
from tests.support.patience import PATIENCE_S
from timer_service.config import Settings
from timer_service.wiring.page import page

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def test_the_page_leaves_the_signals_to_the_service_also_while_it_streams() -> None:
    pages = await Pages().open()
    before = [signal.getsignal(each) for each in SIGNALS]

    with socket.create_server(("127.0.0.1", 0)) as place:
        async with page(Settings(page_port=8070), replace(pages.parts, listener=place)):
            reader, writer = await asyncio.open_connection(*place.getsockname())
            writer.write(f"GET /ui/live HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"data: ")
            during = [signal.getsignal(each) for each in SIGNALS]
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()  # The stream has ended with the page.
        writer.close()

    assert during == before
    assert [signal.getsignal(each) for each in SIGNALS] == before
