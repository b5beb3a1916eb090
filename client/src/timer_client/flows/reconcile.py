"""Find runs that no event will wake any more, because it has expired or the broker has lost it."""

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from timer_client.errors import TimerNotFound
from timer_client.flows import statements
from timer_client.flows.model import Overdue, RunState
from timer_client.flows.run import milliseconds

if TYPE_CHECKING:
    from timer_client.flows.flows import Flows
    from timer_client.flows.worker import Worker

INTERVAL_S: Final = 60.0
MAX_RUNS: Final = 100
"""That are looked at in one go."""
GRACE_MS: Final = 60_000
"""How long after its due time a run counts as overdue: events take their time, too."""
HELD_MS: Final = 600_000

_FAR: Final = timedelta(days=3650)
_log = logging.getLogger("timer_client.flows")


async def reconcile_often(flows: "Flows", worker: "Worker") -> None:
    """Reconcile at once and then each minute, until cancelled; what fails is tried again later."""
    while True:
        try:
            await reconcile(flows, worker)
        except Exception:
            _log.exception("flow.reconciliation_failed %s", flows.scope)
        await asyncio.sleep(INTERVAL_S)


async def reconcile(flows: "Flows", worker: "Worker") -> int:
    """Wake the oldest runs that are overdue and have no timer; return how many."""
    asked_at = flows.timers.stopwatch()
    now_ms = await service_time_ms(flows)
    worker.learn(now_ms, asked_at=asked_at)
    for hold in list(worker.in_hand):
        await flows.journal.commit(statements.look_later(hold.scope, hold.id, hold.epoch, now_ms + HELD_MS))
    found = await flows.journal.commit(statements.overdue(flows.scope, now_ms - GRACE_MS, MAX_RUNS))
    return sum([await _mend(flows, run, now_ms) for run in found])


async def service_time_ms(flows: "Flows") -> int:
    """Ask the service what time it is: a timer that it schedules for us says so."""
    probe = f"flow/{flows.name}/clock"
    decision = await flows.timers.schedule(probe, _FAR, confirm=True)
    await flows.timers.cancel(probe, confirm=True)
    assert decision.timer.due_at is not None
    return milliseconds(decision.timer.due_at - _FAR)


async def _mend(flows: "Flows", run: Overdue, now_ms: int) -> bool:
    if run.state == RunState.SLEEPING and (run.due_ms == 0 or await _is_scheduled(flows, run)):
        await flows.journal.commit(statements.look_later(flows.scope, run.id, run.epoch, now_ms))
        return False
    wake = await flows.journal.commit(statements.wake_again(flows.scope, run, now_ms))
    if wake is None:
        return False
    flows.tell("flow.found_overdue", run.id, overdue_ms=now_ms - run.due_ms)
    await flows.arm(run.id, [wake])
    return True


async def _is_scheduled(flows: "Flows", run: Overdue) -> bool:
    if run.wake is None:
        return False
    try:
        timer = await flows.timers.get(flows.timer_id(run.id, run.wake))
    except TimerNotFound:
        return False
    return timer.state == "Scheduled"
