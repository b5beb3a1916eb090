"""The real service inside a test: on a virtual clock, with its timers in memory and a prefix of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from timer_service.config import Settings
from timer_service.service.run import run_service
from timer_service.testing.clock import START
from timer_service.testing.virtual import VirtualService, hostile, in_memory, open_virtual_service
from timer_service.testing.virtual_clock import VirtualClock
from timer_service.testing.walk import USUAL_LIMITS, WalkLimits
from timer_service.waiting import first_done, owned

READY_TIMEOUT_S: Final = 30.0
"""Only for a broker that does not answer."""


@asynccontextmanager
async def running_service(
    broker_url: str,
    prefix: str,
    *,
    starts_at: datetime = START,
    hostile_delivery: bool = False,
    limits: WalkLimits = USUAL_LIMITS,
) -> AsyncIterator[VirtualService]:
    """Run the service in this event loop until the block ends; inside, it takes commands and requests."""
    parts = hostile(in_memory()) if hostile_delivery else in_memory()
    settings = _settings(broker_url=broker_url, subject_prefix=prefix, http_port=0)
    clock, stop = VirtualClock(starts_at), asyncio.Event()
    async with (
        open_virtual_service(settings, f"{prefix}-test", clock, parts, limits) as virtual,
        owned(run_service(virtual.service, stop), _until_ready(virtual)) as (running, ready),
    ):
        await first_done(running, ready)
        (running if running.done() else ready).result()
        yield virtual
        stop.set()
        await running


def _settings(**chosen: Any) -> Settings:
    """Return settings that neither the environment nor a `.env` has a say in."""
    defaults = {name: field.get_default() for name, field in Settings.model_fields.items()}
    return Settings(_env_file=None, **defaults | chosen)


async def _until_ready(virtual: VirtualService) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while virtual.service.health().problems:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
