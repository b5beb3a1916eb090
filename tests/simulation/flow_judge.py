"""Whether two workers have kept what durable functions promise, by what callers, steps and the file say."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.simulation.flow_databases import SharedSqlite
from tests.simulation.flow_plan import RETRIES, Call, FlowPlan, Move
from timer_client.flows import RunState, RunView, Worker

EXACT = 1e-6
RECORDED = "SELECT 1 FROM flow_steps WHERE run_id = ? AND name = ? AND done = 1"
EPOCH = "SELECT epoch FROM flow_runs WHERE id = ?"
GOING_ON = "SELECT count(*) FROM flow_runs WHERE state IN ('Sleeping', 'Running')"
DONE = "SELECT name FROM effects"


class Judge:
    """Knows the plan and what was seen, and nothing of how workers go about it."""

    def __init__(self, plan: FlowPlan, database: SharedSqlite) -> None:
        self.problems: list[str] = []
        self.disturbances = 0
        """How often a step under way may have been begun again."""
        self._plan = plan
        self._database = database
        self._done: Counter[str] = Counter()
        self._told: Counter[tuple[str, str]] = Counter()
        self._winners: dict[Call, list[str]] = {}

    def found(self, problem: str) -> None:
        """Keep what is wrong."""
        self.problems.append(problem)

    def have_ended(self) -> bool:
        """Return whether nothing becomes of any run any more."""
        return bool(self._database.ask(GOING_ON)[0][0] == 0)

    def does(self, name: str, worker: Worker | None) -> None:
        """Take in that a step begins: not one that was recorded, unless by a worker that was overtaken."""
        run_id, step = name.split(" ")
        self._done[name] += 1
        [[epoch]] = self._database.ask(EPOCH, run_id)
        holds = {hold.epoch for hold in worker.in_hand if hold.id == run_id} if worker is not None else set()
        if epoch in holds and self._database.ask(RECORDED, run_id, step):
            self.found(f"{name} is recorded and done again")

    def told(self, event: str, run_id: str) -> None:
        """Take in what a worker says."""
        self._told[event, run_id] += 1

    def answered(self, call: Call, caller: str, *, counts: bool) -> None:
        """Take in what a caller was answered."""
        if counts:
            self._winners.setdefault(call, []).append(caller)

    def at_the_end(self, found: Sequence[RunView], scheduled: Sequence[object]) -> None:
        """Compare everything with the plan."""
        runs, cancelled = {run.id: run for run in found}, set()
        effects = Counter(name for [name] in self._database.ask(DONE))
        for planned in self._plan.runs:
            run = runs[planned.id]
            if run.state is RunState.COMPLETED:
                self._compare(planned.id, "", planned.moves, run.result, effects)
            elif run.state is not RunState.CANCELLED or not self._may_be_cancelled(run.id):
                self.found(f"{run.id} ends as {run.state}: {run.error}")
            else:
                cancelled.add(run.id)
        self.problems += [
            f"transaction {name} done {times} times" for name, times in effects.items() if times > 1
        ]
        self.problems += [
            f"step {name} done {n} times" for name, n in self._done.items() if n > self._most(name)
        ]
        self._judge_winners(cancelled)
        if scheduled and not self._plan.faults:
            self.found(f"timers are left behind: {scheduled}")

    def _most(self, name: str) -> int:
        """Return how often a step may be begun; where a run breaks, what failed before is perhaps lost."""
        run_id, step = name.split(" ")
        moves = next(run.moves for run in self._plan.runs if run.id == run_id)
        repeats = RETRIES if "fail-" in step and any(kind == "break" for kind, *_ in moves) else 0
        return 1 + self.disturbances + repeats

    def _may_be_cancelled(self, run_id: str) -> bool:
        return any(call.what == "cancel" and call.run == run_id for call in self._plan.calls)

    def _judge_winners(self, cancelled: set[str]) -> None:
        for call, winners in self._winners.items():
            if len(winners) > 1:
                self.found(f"{call} counts for {winners}")
            if call.what == "cancel" and call.run not in cancelled:
                self.found(f"{call} was answered with yes, and the run went on")
        for (event, run_id), times in self._told.items():
            if event in ("flow.completed", "flow.failed") and times > 1:
                self.found(f"{run_id} ends {times} times")

    def _compare(
        self, run_id: str, prefix: str, moves: list[Move], result: Any, effects: Counter[str]
    ) -> None:
        """Compare what a run returned with what it was to do."""
        if not isinstance(result, list) or len(result) != len(moves):
            self.found(f"{run_id} returns {result}")
            return
        for (kind, name, *more), value in zip(moves, result, strict=True):
            whole = f"{run_id} {prefix}{name}"
            if kind == "gather":
                for branch, inside in more[0].items():
                    self._compare(run_id, f"{prefix}{branch}/", inside, value[branch], effects)
            elif kind in ("sleep", "wait"):
                self._judge_time(run_id, prefix + name, kind, more[0], value)
            elif value != ("ZeroDivisionError" if kind == "fail" else whole):
                self.found(f"{whole} returns {value}")
            if kind == "transaction" and effects[whole] != 1:
                self.found(f"transaction {whole} done {effects[whole]} times")
            if kind in ("step", "fail") and not self._done[whole]:
                self.found(f"step {whole} was never done")

    def _judge_time(self, run_id: str, name: str, kind: str, span: int | None, value: Any) -> None:
        hours, told = value["hours"], value["told"]
        if told is None:
            late = hours - (span or 0)
            if span is None or late < -EXACT or (late > EXACT and not self._plan.is_losing):
                self.found(f"{run_id} {name}: {kind} of {span} h ends after {hours} h")
            return
        call = next(each for each in self._plan.calls if (each.run, each.signal) == (run_id, name))
        if told["by"] not in self._winners.get(call, [told["by"]]):
            self.found(f"{run_id} {name}: told by {told['by']}, who was not answered with yes")
        if span is not None and hours > span + EXACT and not self._plan.is_losing:
            self.found(f"{run_id} {name}: told after {hours} h, waits for {span} h")
