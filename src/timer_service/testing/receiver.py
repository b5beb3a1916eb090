"""A receiver of callbacks in memory, which answers as it is told."""

import asyncio
from collections.abc import Callable

from timer_service.domain.delivery import Answered, CallbackRequest, CallResult

OK = Answered(200)


class ScriptedSender:
    """Keeps what was sent; a script says what each request comes to."""

    def __init__(self, script: Callable[[CallbackRequest], CallResult] = lambda _: OK) -> None:
        self.script = script
        self.sent: list[CallbackRequest] = []
        self.under_way = 0
        self._arrived = asyncio.Condition()
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hang(self) -> None:
        """Answer nothing until `go_on`."""
        self._may_answer.clear()

    def go_on(self) -> None:
        """Answer what waits, and all that comes."""
        self._may_answer.set()

    async def send(self, request: CallbackRequest) -> CallResult:
        """Keep the request and answer by the script."""
        self.sent.append(request)
        self.under_way += 1
        async with self._arrived:
            self._arrived.notify_all()
        try:
            await self._may_answer.wait()
        finally:
            self.under_way -= 1
        return self.script(request)

    async def received(self, count: int) -> None:
        """Wait until as many requests have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.sent) >= count)
