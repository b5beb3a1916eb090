"""A worker: takes runs that are woken, goes on with them, records what comes of it."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from timer_client.errors import Fenced, Later
from timer_client.firing import Firing
from timer_client.flows import statements
from timer_client.flows.model import Change, Delivered, Hold, Left, Memo, RunState, Suspension, Taken, Wake
from timer_client.flows.run import Run, Turn, milliseconds

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
        self.counts: Counter[str] = Counter()
        """How often each event of docs/flows.md has happened."""
        self.in_hand: set[Hold] = set()
        self.is_stopping = False
        self._flows = flows
        self._journal = flows.journal
        self._since = 0, 0.0

    def now_ms(self) -> int:
        """Return what time it is for the service, by what it has said; the machine's time is not read."""
        now_ms, stopwatch = self._since
        return now_ms + round((self._flows.timers.stopwatch() - stopwatch) * 1000)

    def learn(self, now_ms: int, *, asked_at: float | None = None) -> None:
        """Remember what the service says; an event may have waited for long, an answer is news.

        Unless something was learned since the question was asked, by our stopwatch.
        """
        is_news = asked_at is not None and self._since[1] <= asked_at
        if is_news or now_ms > self.now_ms():
            self._since = now_ms, self._flows.timers.stopwatch()

    async def handle(self, firing: Firing) -> None:
        """Go on with the run that a firing wakes, until it sleeps or ends."""
        address = self._flows.address_of(firing.service_call_id)
        if address is None:
            return None
        run_id, number = address
        reached_ms = milliseconds(firing.reached_at)
        self.learn(reached_ms)
        wake = Delivered(number, firing.deliveries, reached_ms)
        while True:
            taken = await self._journal.commit(
                statements.take(self._flows.scope, run_id, wake, self.now_ms() + HELD_MS, self._flows.known)
            )
            if isinstance(taken, Left):
                return await self._pass_over(run_id, firing, taken)
            if firing.deliveries > 1:
                # As below: whoever had it may have died between recording a branch's sleep and arming it.
                await self.arm(run_id, _wakes(memo for memo in taken.memos if not memo.done))
            self._tell("flow.woken", run_id, lateness_ms=firing.lateness // timedelta(milliseconds=1))
            if not await self._go_on(taken):
                return None
            wake = wake._replace(epoch=taken.hold.epoch)

    async def arm(self, run_id: str, wakes: Sequence[Wake]) -> None:
        """Schedule timers; those that are there already stay as they are."""
        await self._flows.arm(run_id, wakes)

    async def _pass_over(self, run_id: str, firing: Firing, left: Left) -> None:
        if left.unknown_flow:
            self._tell("flow.unknown", run_id, flow=left.unknown_flow)
            raise Later(
                timedelta(seconds=UNKNOWN_FLOW_DELAY_S, milliseconds=zlib.crc32(run_id.encode()) % 2000)
            )
        if not left.is_known and firing.deliveries <= len(UNKNOWN_RUN_DELAYS_S):
            raise Later(timedelta(seconds=UNKNOWN_RUN_DELAYS_S[firing.deliveries - 1]))
        if firing.deliveries > 1:
            await self.arm(run_id, left.pending)

    async def _go_on(self, taken: Taken) -> bool:
        run_id = taken.hold.id

        async def arm(memos: list[Memo]) -> None:
            await self.arm(run_id, _wakes(memos))

        turn = Turn(self._journal, taken, self.now_ms, lambda: self.is_stopping, arm)
        self.in_hand.add(taken.hold)
        try:
            change = await self._run(turn, taken)
            again = await self._journal.commit(statements.save(taken.hold, turn.new, change))
            kick = (
                []
                if change.kick is None or again
                else [Wake(change.kick, statements.KICK, change.due_ms or 0)]
            )
            await self.arm(run_id, [*_wakes(turn.new), *kick])
        except Fenced:
            self._tell("flow.fenced", run_id)
            raise
        finally:
            self.in_hand.discard(taken.hold)
            self.counts["flow.step"] += turn.steps
        if not again and change.state is not RunState.SLEEPING:
            await self._flows.disarm(run_id, _wakes(memo for memo in turn.memos.values() if not memo.done))
            self._tell(f"flow.{change.state.lower()}", run_id, error=change.error)
        elif change.error is not None:
            self._tell("flow.retried", run_id, error=change.error)
        return again

    async def _run(self, turn: Turn, taken: Taken) -> Change:
        """Run the function from the top and return what has become of it."""
        flow = self._flows.flows[taken.flow, taken.version]
        run = Run(turn)
        try:
            result = await run.call(flow.function, flow.takes.read(taken.input))
            value = flow.result.write("the result", result)
        except (Suspension, Exception, BaseExceptionGroup) as error:
            if turn.trouble is not None:
                raise turn.trouble from None
            if _is_suspension(error):
                return Change(RunState.SLEEPING)
            return self._failed(turn, taken, error)
        turn.new += run.caught
        return Change(RunState.COMPLETED, result=value)

    def _failed(self, turn: Turn, taken: Taken, error: BaseException) -> Change:
        delays, attempts = self._flows.flows[taken.flow, taken.version].retry_delays, taken.attempts + 1
        message = f"{type(error).__name__}: {error}"[:2000].encode(errors="replace").decode()
        if attempts > len(delays):
            return Change(RunState.FAILED, attempts, error=message)
        due_ms = turn.now_ms() + delays[attempts - 1] // timedelta(milliseconds=1)
        return Change(RunState.SLEEPING, attempts, error=message, kick=turn.next_wake(), due_ms=due_ms)

    def _tell(self, event: str, run_id: str, **fields: object) -> None:
        self.counts[event] += 1
        self._flows.tell(event, run_id, **fields)


def _wakes(memos: Iterable[Memo]) -> list[Wake]:
    return [
        Wake(memo.wake, memo.name, memo.due_ms)
        for memo in memos
        if memo.wake is not None and memo.due_ms is not None
    ]


def _is_suspension(error: BaseException) -> bool:
    """Return whether it is one, or a group of nothing else, as a TaskGroup makes it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Suspension)[1] is None
    return isinstance(error, Suspension)
