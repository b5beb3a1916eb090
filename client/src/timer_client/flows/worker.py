"""A worker: takes runs that are woken, continues them, records the result."""

import math
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from timer_client.errors import Fenced, Later
from timer_client.firing import Firing
from timer_client.flows.model import FlowUnknown, RunNotFound, RunState, Suspension, milliseconds
from timer_client.flows.run import Run, Turn, told
from timer_client.flows.statements import KICK, Change, Delivered, Hold, Memo, Taken, save, take

if TYPE_CHECKING:
    from timer_client.flows.flows import Flows

HELD_MS: Final = 600_000
"""After so long without a sign of life a run in hand counts as overdue."""
UNKNOWN_RUN_DELAYS_S: Final = (0.1, 0.5, 1.0, 5.0, 30.0)
"""A run may be woken before the transaction that starts it has committed."""
UNKNOWN_FLOW_DELAY_S: Final = 4.0


class Worker:
    """What handles the wake-ups of one `Flows`."""

    def __init__(self, flows: "Flows") -> None:
        self.in_hand: set[Hold] = set()
        self.is_stopping = False
        self.flows = flows
        self._ahead_ms = -math.inf
        """By how much the service's time is ahead of our stopwatch; the machine's time is never read."""

    def now_ms(self) -> int:
        """Return what time it is for the service, by what it has said."""
        return round(self.flows.timers.stopwatch() * 1000 + self._ahead_ms)

    def learn(self, now_ms: int, *, asked_at: float | None = None) -> None:
        """Take in what the service says, in an event or in the answer to a question of that moment.

        An event may have waited for long: it is that late at least. An answer was given after its question
        and before now; of what that leaves open the latest counts, so that no sleep is too short.
        """
        least = now_ms - self.flows.timers.stopwatch() * 1000
        most = math.inf if asked_at is None else now_ms - asked_at * 1000
        if not least <= self._ahead_ms <= most:
            self._ahead_ms = least if asked_at is None else most

    async def ask_time(self) -> int:
        """Ask the service what time it is, which every explanation says, also that of no timer."""
        asked_at = self.flows.timers.stopwatch()
        answer = await self.flows.timers.explain(f"flow/{self.flows.name}/clock")
        self.learn(milliseconds(answer.at), asked_at=asked_at)
        return milliseconds(answer.at)

    async def handle(self, firing: Firing) -> None:
        """Go on with the run that a firing wakes, until it sleeps or ends."""
        address = self.flows.address_of(firing.service_call_id)
        if address is None:
            return
        run_id, number = address
        wake = Delivered(number, firing.deliveries, milliseconds(firing.reached_at))
        self.learn(wake.reached_ms)
        while True:
            taken = await self._take(run_id, wake)
            if firing.deliveries > 1:
                # Its last worker may have died between recording a sleep and arming it.
                await self.flows.arm(run_id, taken.memos if isinstance(taken, Taken) else taken)
            if not isinstance(taken, Taken):
                return
            self.flows.tell("flow.woken", run_id, lateness_ms=firing.lateness // timedelta(milliseconds=1))
            if not await self._go_on(taken):
                return
            wake = wake._replace(epoch=taken.hold.epoch)

    async def _take(self, run_id: str, wake: Delivered) -> Taken | list[Memo]:
        scope, known = self.flows.scope, self.flows.flows
        try:
            return await self.flows.journal.commit(take(scope, run_id, wake, self.now_ms() + HELD_MS, known))
        except FlowUnknown as unknown:
            self.flows.tell("flow.unknown", run_id, flow=str(unknown))
            jitter_ms = zlib.crc32(run_id.encode()) % 2000
            raise Later(timedelta(seconds=UNKNOWN_FLOW_DELAY_S, milliseconds=jitter_ms)) from unknown
        except RunNotFound as error:
            if wake.delivery > len(UNKNOWN_RUN_DELAYS_S):
                return []
            raise Later(timedelta(seconds=UNKNOWN_RUN_DELAYS_S[wake.delivery - 1])) from error

    async def _go_on(self, taken: Taken) -> bool:
        """Run the function from the top and record what came of it; return whether it was woken again."""
        run_id, turn = taken.hold.id, Turn(self, taken)
        self.in_hand.add(taken.hold)
        try:
            change = await self._run(turn, taken)
            again, new = await self.flows.journal.commit(save(taken.hold, turn.new, change))
            await self.flows.arm(run_id, new)
        except Fenced:
            self.flows.tell("flow.fenced", run_id)
            raise
        finally:
            self.in_hand.discard(taken.hold)
        if not again and change.state is not RunState.SLEEPING:
            await self.flows.disarm(run_id, [memo for memo in turn.memos.values() if not memo.done])
            self.flows.tell(f"flow.{change.state.lower()}", run_id, error=change.error)
        elif change.error is not None:
            self.flows.tell("flow.retried", run_id, error=change.error)
        return again

    async def _run(self, turn: Turn, taken: Taken) -> Change:
        flow, run = self.flows.flows[taken.run.flow, taken.run.version], Run(turn)
        try:
            result = await run.call(flow.function, flow.takes.read(taken.run.input))
            value = flow.result.write("the result", result)
        except (Suspension, Exception, BaseExceptionGroup) as error:
            if turn.trouble is not None:
                raise turn.trouble from None
            # Also in a group, which a TaskGroup makes of it.
            if BaseExceptionGroup("", [error]).split(Suspension)[1] is None:
                return Change(RunState.SLEEPING)
            return _failed(turn, taken.run.attempts + 1, flow.retry_delays, error)
        turn.new += run.caught
        return Change(RunState.COMPLETED, result=value)


def _failed(turn: Turn, attempts: int, delays: Sequence[timedelta], error: BaseException) -> Change:
    """Have another attempt, as long as there is one."""
    message = told(f"{type(error).__name__}: {error}")
    if attempts > len(delays):
        return Change(RunState.FAILED, attempts, error=message)
    number = next(turn.numbers)
    due_ms = turn.worker.now_ms() + delays[attempts - 1] // timedelta(milliseconds=1)
    turn.new.append(Memo(f"{number} wake", KICK, number, due_ms, 0, None))
    return Change(RunState.SLEEPING, attempts, error=message)
