"""What surrounds the service, asked for in the background: no visit waits for an answer from elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from timer_service.domain.errors import BusUnavailable, RightMissing
from timer_service.ports.broker_view import BrokerView, InstanceSeen, ReaderSeen, StreamSeen
from timer_service.waiting import owned

WAIT_S: Final = 0.01
"""For so long a visit waits for a new look; then it shows the last one, or none."""
FRESH_S: Final = 5.0
"""For so long all viewers share what was seen."""


@dataclass(frozen=True, slots=True)
class Around:
    """What was seen; None where nobody has answered yet."""

    streams: Sequence[StreamSeen] | None = None
    readers: Sequence[ReaderSeen] | None = None
    instances: Sequence[InstanceSeen] | None = None
    trouble: tuple[str, ...] = ()


class BrokerDesk:
    """Looks around when somebody wants to see it, and remembers it for all."""

    def __init__(self, view: BrokerView, elapsed_s: Callable[[], float], wait_s: float = WAIT_S) -> None:
        self._view = view
        self._elapsed_s = elapsed_s
        self._wait_s = wait_s
        self._seen = Around()
        self._seen_s: float | None = None
        self._asked = asyncio.Event()
        self._looked = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look for as long as the context lasts."""
        async with owned(self._look_when_asked()):
            yield

    async def around(self) -> Around:
        """Return what was seen last."""
        if self._seen_s is None or self._elapsed_s() - self._seen_s >= FRESH_S:
            self._asked.set()
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._looked.wait()
            except TimeoutError:
                pass  # It is shown to the next visit.
        return self._seen

    async def _look_when_asked(self) -> None:
        while True:
            await self._asked.wait()
            await self._look()
            self._asked.clear()
            self._looked.clear()

    async def _look(self) -> None:
        """See what the broker knows by itself, then who else is there: those take a moment to answer."""
        trouble: list[str] = []
        seen = replace(self._seen, trouble=())
        try:
            seen = replace(seen, streams=await self._view.streams())
            seen = replace(seen, readers=await self._view.readers())
        except (BusUnavailable, RightMissing) as error:
            trouble.append(str(error))
        self._keep(replace(seen, trouble=tuple(trouble)))
        try:
            seen = replace(seen, instances=await self._view.instances())
        except (BusUnavailable, RightMissing) as error:
            # Both often fail for one reason: it is said once.
            trouble += [] if str(error) in trouble else [str(error)]
        self._keep(replace(seen, trouble=tuple(trouble)))

    def _keep(self, seen: Around) -> None:
        self._seen, self._seen_s = seen, self._elapsed_s()
        self._looked.set()
