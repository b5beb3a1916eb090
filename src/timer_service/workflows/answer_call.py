"""Carry out a command whose sender waits for the answer."""

import asyncio
from collections.abc import Callable
from typing import Final

from timer_service.domain.errors import TimerFiring
from timer_service.domain.messages import Command, Position
from timer_service.domain.timer import Outcome
from timer_service.ports.clock import Clock
from timer_service.ports.event_bus import EventBus
from timer_service.ports.timer_calls import CallAnswer
from timer_service.ports.timer_store import TimerStore

TRIES: Final = 50
PAUSE_S: Final = 0.04
"""Together two seconds: so long a call waits for a timer that is being fired."""


async def answer_call(
    *, at: Callable[[Position], Command], store: TimerStore, bus: EventBus, clock: Clock
) -> CallAnswer:
    """Apply one command at the position of the newest one in the stream, and say what it did.

    A timer that is due belongs to the worker: its event may be out already, confirmed or not. The call
    waits until that is known, so that `cancelled` is never said of a timer that fired.
    """
    for _ in range(TRIES):
        command = at(await bus.last_position())
        [outcome] = await store.apply([command], clock.now())
        if outcome is Outcome.DUE:
            await clock.wait(PAUSE_S, asyncio.Event())
        elif outcome is not Outcome.SUPERSEDED:  # By a command that came in since: that one was first.
            timer = await store.get(command.tenant_id, command.service_call_id)
            if timer is not None:
                return CallAnswer(outcome, timer)
    raise TimerFiring(TimerFiring.public)
