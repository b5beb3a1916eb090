"""Find runs that no event will wake any more, because it has expired or the broker has lost it."""

import asyncio
from contextlib import suppress
from typing import Final

from timer_client.errors import TimerNotFound
from timer_client.flows import statements
from timer_client.flows.model import RunState
from timer_client.flows.worker import HELD_MS, Worker

INTERVAL_S: Final = 60.0
MAX_RUNS: Final = 100
"""That are looked at in one go."""
GRACE_MS: Final = 60_000
"""How long after its due time a run counts as overdue: events take their time, too."""


async def reconcile_often(worker: Worker) -> None:
    """Reconcile at once and then each minute, until cancelled; what fails is tried again later."""
    while True:
        try:
            await reconcile(worker)
        except Exception as error:
            worker.flows.tell("flow.reconciliation_failed", "", error=str(error))
        await asyncio.sleep(INTERVAL_S)


async def reconcile(worker: Worker) -> None:
    """Wake the oldest runs that are overdue and have no timer."""
    flows = worker.flows
    # First, for the service may be away for longer than a run counts as held.
    for hold in sorted(worker.in_hand):
        await flows.journal.commit(statements.look_later(*hold[:3], worker.now_ms() + HELD_MS))
    now_ms = await worker.ask_time()
    for each in await flows.journal.commit(statements.overdue(flows.scope, now_ms - GRACE_MS, MAX_RUNS)):
        await _mend(worker, *each, now_ms)


async def _mend(worker: Worker, run_id: str, run: statements.Row, now_ms: int) -> None:
    """Wake a run, unless it is seen for the first time or its timer is about to fire."""
    flows, is_new = worker.flows, run.due_ms == statements.AT_ONCE_MS
    if run.state == RunState.SLEEPING and (is_new or await _is_scheduled(worker, run_id)):
        await flows.journal.commit(statements.look_later(flows.scope, run_id, run.epoch, now_ms))
    elif wakes := await flows.journal.commit(statements.wake_again(flows.scope, run_id, run, now_ms)):
        flows.tell("flow.found_overdue", run_id, overdue_ms=now_ms - (run.due_ms or 0))
        await flows.arm(run_id, wakes)


async def _is_scheduled(worker: Worker, run_id: str) -> bool:
    with suppress(TimerNotFound):
        for memo in (await worker.flows.journal.commit(statements.pending(worker.flows.scope, run_id)))[:1]:
            return (await worker.flows.timers.get(worker.flows.timer_id(run_id, memo))).state == "Scheduled"
    return False
