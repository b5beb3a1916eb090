"""What the process does beside the service."""

import asyncio
import weakref

from tests.support.patience import PATIENCE_S
from timer_service.cli.running import keep_memory_level
from timer_service.waiting import owned


class Cycle:
    """Something that only the collector of cycles frees."""

    def __init__(self) -> None:
        self.itself = self


async def test_what_only_the_collector_frees_is_freed_although_little_is_made() -> None:
    left_behind = weakref.ref(Cycle())

    async with owned(keep_memory_level(every_s=0.0)), asyncio.timeout(PATIENCE_S):
        while left_behind() is not None:
            await asyncio.sleep(0)

    assert left_behind() is None
