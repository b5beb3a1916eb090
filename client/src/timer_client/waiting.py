"""Wait until a timer has ended: by its event, and by asking in case that was missed."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from timer_client import wire
from timer_client.errors import RequestRefused, ServiceAway, TimerNotFound
from timer_client.events import Listening

FIRST_LOOK_AGAIN_S: Final = 0.25
"""Soon, because the event may have gone out just before we listened: the timer is marked a moment later."""
LOOK_AGAIN_S: Final = 30.0
"""How often who waits for long asks for the timer, in case its event was missed while the broker was away."""
MAX_ABSENT_S: Final = 30.0
"""For so long the timer may be unknown: its command may still be on the way."""


async def wait_for(
    service_call_id: str,
    get: Callable[[str], Awaitable[wire.TimerView]],
    listening: Listening,
    *,
    patient: bool,
) -> wire.TimerView:
    """Return the timer once it has ended; patient is who knows that it will be there some time."""
    pause_s, absent_until, is_first = FIRST_LOOK_AGAIN_S, time.monotonic() + MAX_ABSENT_S, True
    async with listening.to(service_call_id) as ear:
        while True:
            try:
                timer = await get(service_call_id)
            except (ServiceAway, RequestRefused) as error:
                may_be_away = not is_first
                if isinstance(error, TimerNotFound):
                    may_be_away = time.monotonic() < absent_until
                if not (patient or may_be_away):
                    raise
            else:
                ended = _ended(timer, ear.firing)
                if ended is not None:
                    return ended
            is_first = False
            await ear.listen(pause_s)
            pause_s = min(2 * pause_s, LOOK_AGAIN_S)


def _ended(timer: wire.TimerView, heard: wire.FiringPayload | None) -> wire.TimerView | None:
    if timer.state != "Scheduled":
        return timer
    if heard is None or heard.generation != timer.generation:
        return None
    # The event is the proof; the service marks the timer a moment later.
    if isinstance(heard, wire.DueTimeReachedPayload):
        return timer.model_copy(update={"state": "Reached", "reached_at": heard.reached_at})
    return timer.model_copy(update={"state": "Expired", "expired_at": getattr(heard, "expired_at", None)})
