"""What is done to a journal, each in one transaction: SQL that SQLite and PostgreSQL share.

An operation is a generator: it yields a statement with its parameters and is sent the rows. So the rules
stand here once, and a journal only knows how its database runs a statement.
"""

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from timer_client.errors import Fenced
from timer_client.flows.model import (
    Change,
    Delivered,
    FlowError,
    Hold,
    Left,
    Memo,
    Overdue,
    RunNotFound,
    RunState,
    Taken,
    Wake,
)


class _Row(NamedTuple):
    """A row of flow_runs."""

    flow: str
    version: int
    state: str
    input: str
    attempts: int
    wake: int
    kick: int | None
    in_hand: int | None
    delivery: int | None
    epoch: int
    woken: int
    due_ms: int | None

    @property
    def has_ended(self) -> bool:
        return self.state not in (RunState.SLEEPING, RunState.RUNNING)

    @property
    def kicked(self) -> Wake | None:
        """Return the wake-up that somebody may have died before arming."""
        return None if self.kick is None else Wake(self.kick, KICK, self.due_ms or AT_ONCE_MS)


T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Work = Generator[tuple[Any, ...], Rows, T]
Names = frozenset[tuple[str, int]]

TABLES: Final = (
    """\
CREATE TABLE IF NOT EXISTS flow_runs (
    scope text NOT NULL,
    id text NOT NULL,
    flow text NOT NULL,
    version integer NOT NULL,
    state text NOT NULL CHECK (state IN ('Sleeping', 'Running', 'Completed', 'Failed', 'Cancelled')),
    input text NOT NULL,
    result text,
    error text,
    attempts integer NOT NULL DEFAULT 0,
    wake integer NOT NULL DEFAULT 0,
    kick integer,
    in_hand integer,
    delivery integer,
    epoch integer NOT NULL DEFAULT 0,
    woken integer NOT NULL DEFAULT 0,
    due_ms bigint,
    PRIMARY KEY (scope, id)
)""",
    """\
CREATE TABLE IF NOT EXISTS flow_steps (
    scope text NOT NULL,
    run_id text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('step', 'failed', 'sleep', 'wait')),
    wake integer,
    due_ms bigint,
    done integer NOT NULL CHECK (done IN (0, 1)),
    value text,
    PRIMARY KEY (scope, run_id, name)
)""",
    """\
CREATE INDEX IF NOT EXISTS flow_runs_due ON flow_runs (scope, due_ms)
    WHERE state IN ('Sleeping', 'Running')""",
)
"""For your own migrations, where `journal.migrate()` is not wanted."""

KICK: Final = "wake"
"""The name of a wake-up that belongs to no step: a start, a signal, another attempt."""
AT_ONCE_MS: Final = 0
"""Due at once, by a caller who does not know what time it is for the service."""

_RUN: Final = "scope = $1 AND id = $2"
_STEPS: Final = "scope = $1 AND run_id = $2"
_FIND: Final = f"""\
SELECT flow, version, state, input, attempts, wake, kick, in_hand, delivery, epoch, woken, due_ms
FROM flow_runs WHERE {_RUN} FOR UPDATE"""  # noqa: S608 - no input, here and below
_START: Final = """\
INSERT INTO flow_runs (scope, id, flow, version, state, input, kick, due_ms)
VALUES ($1, $2, $3, $4, 'Sleeping', $5, 0, 0) ON CONFLICT DO NOTHING RETURNING id"""
# An event of the service says what time it is: all that is due by then is over.
_WAKE_STEPS: Final = f"""\
UPDATE flow_steps SET done = 1, value = CASE kind WHEN 'sleep' THEN CAST($4 - due_ms AS text) END
WHERE {_STEPS} AND done = 0 AND (wake = $3 OR due_ms <= $4) RETURNING name"""  # noqa: S608
_TAKE: Final = f"""\
UPDATE flow_runs SET state = 'Running', in_hand = $3, delivery = $4, epoch = epoch + 1, kick = NULL,
due_ms = $5 WHERE {_RUN}"""  # noqa: S608
_ABSORB: Final = f"UPDATE flow_runs SET woken = woken + 1, kick = NULL WHERE {_RUN}"  # noqa: S608
_MEMOS: Final = f"SELECT name, kind, wake, due_ms, done, value FROM flow_steps WHERE {_STEPS}"  # noqa: S608
_PENDING: Final = f"""\
SELECT wake, name, due_ms FROM flow_steps WHERE {_STEPS} AND done = 0 AND wake IS NOT NULL
ORDER BY due_ms"""  # noqa: S608
_RECORD: Final = """\
INSERT INTO flow_steps (scope, run_id, name, kind, wake, due_ms, done, value)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING"""
_LEAVE: Final = f"""\
UPDATE flow_runs
SET state = $3, in_hand = NULL, attempts = $4, result = $5, error = $6, kick = $7, due_ms = $8 WHERE {_RUN}"""  # noqa: S608
_COUNT_WAKES: Final = f"UPDATE flow_runs SET wake = $3 WHERE {_RUN} AND wake < $3"  # noqa: S608
_SIGNAL: Final = """\
INSERT INTO flow_steps (scope, run_id, name, kind, done, value) VALUES ($1, $2, $3, 'wait', 1, $4)
ON CONFLICT (scope, run_id, name) DO UPDATE SET done = 1, value = excluded.value
WHERE flow_steps.kind = 'wait' AND flow_steps.done = 0 RETURNING wake, due_ms"""
_KIND: Final = f"SELECT kind FROM flow_steps WHERE {_STEPS} AND name = $3"  # noqa: S608
_KICK: Final = f"""\
UPDATE flow_runs SET state = 'Sleeping', in_hand = NULL, attempts = 0, wake = $3, kick = $3, epoch = $4,
due_ms = $5 WHERE {_RUN}"""  # noqa: S608
_CANCEL: Final = f"""\
UPDATE flow_runs SET state = 'Cancelled', in_hand = NULL, kick = NULL, due_ms = NULL, epoch = epoch + 1
WHERE {_RUN}"""  # noqa: S608
_VIEW: Final = "SELECT id, flow, version, state, attempts, due_ms, result, error FROM flow_runs"
_GET: Final = f"{_VIEW} WHERE {_RUN}"
_LIST: Final = f"""\
{_VIEW} WHERE scope = $1 AND id > $2 AND ($3 = '' OR state = $3) AND ($4 = '' OR flow = $4)
AND ($5 = 0 OR version = $5) ORDER BY id LIMIT $6"""
_OVERDUE: Final = """\
SELECT id, state, epoch, due_ms, kick FROM flow_runs
WHERE scope = $1 AND state IN ('Sleeping', 'Running') AND due_ms < $2 ORDER BY due_ms LIMIT $3"""
_LOOK_LATER: Final = f"UPDATE flow_runs SET due_ms = $3 WHERE {_RUN} AND epoch = $4 AND due_ms IS NOT NULL"  # noqa: S608


def _found(scope: str, run_id: str) -> Work[_Row]:
    rows = yield _FIND, scope, run_id
    if not rows:
        raise RunNotFound(f"there is no run {run_id!r}")
    return _Row(*rows[0])


def _pending(scope: str, run_id: str, run: _Row) -> Work[tuple[Wake, ...]]:
    rows = yield _PENDING, scope, run_id
    timed = tuple(Wake(*row) for row in rows)
    return timed if run.kicked is None else (run.kicked, *timed)


def _kick(scope: str, run_id: str, run: _Row, due_ms: int) -> Work[Wake]:
    """Have a run woken at once, under a number that no timer has had."""
    number, epoch = run.wake + 1, run.epoch + (run.in_hand is not None)
    yield _KICK, scope, run_id, number, epoch, due_ms
    return Wake(number, KICK, AT_ONCE_MS)


def migrate() -> Work[None]:
    """Create what is missing."""
    for table in TABLES:
        yield (table,)


def start(scope: str, run_id: str, flow: str, version: int, value: str) -> Work[tuple[bool, Wake | None]]:
    """Insert a run; return whether it is new, and the wake-up to arm."""
    if (yield _START, scope, run_id, flow, version, value):
        return True, Wake(0, KICK, AT_ONCE_MS)
    run = yield from _found(scope, run_id)
    if run.flow != flow:
        raise FlowError(f"run {run_id!r} is one of flow {run.flow!r}: give each run an id of its own")
    return False, run.kicked


def take(scope: str, run_id: str, wake: Delivered, until_ms: int, known: Names) -> Work[Taken | Left]:
    """Take a run in hand for one wake-up, unless another worker has it or there is nothing to do."""
    rows = yield _FIND, scope, run_id
    if not rows:
        return Left(is_known=False)
    run = _Row(*rows[0])
    is_ours = run.in_hand == wake.number and run.epoch == wake.epoch
    if run.has_ended or (run.in_hand == wake.number and not is_ours and _is_old(run, wake)):
        return Left()
    if (run.flow, run.version) not in known:
        return Left(unknown_flow=f"{run.flow} version {run.version}")
    marked = yield _WAKE_STEPS, scope, run_id, wake.number, wake.reached_ms
    if not marked and run.kick is None and run.in_hand != wake.number:
        return Left(pending=(yield from _pending(scope, run_id, run)))
    if run.in_hand not in (None, wake.number):
        # Its holder looks again before it lets go.
        yield _ABSORB, scope, run_id
        return Left()
    yield _TAKE, scope, run_id, wake.number, wake.delivery, until_ms
    memos = [Memo(*row) for row in (yield _MEMOS, scope, run_id)]
    hold = Hold(scope, run_id, run.epoch + 1, run.woken)
    return Taken(hold, run.flow, run.version, run.input, run.wake, run.attempts, memos)


def _is_old(run: _Row, wake: Delivered) -> bool:
    """Return whether a wake-up in hand has come as a copy; raise Fenced if it was delivered again since."""
    if wake.delivery < (run.delivery or 0):
        raise Fenced(f"wake-up {wake.number} was delivered again, and another worker has it")
    return wake.delivery == run.delivery


def save(hold: Hold, memos: Sequence[Memo], change: Change | None = None) -> Work[bool]:
    """Record what a worker has done; return whether the run must be gone on with at once.

    Raises Fenced, and records nothing, if the run is no longer in its hands.
    """
    run = yield from held(hold)
    place = hold.scope, hold.id
    for memo in memos:
        yield _RECORD, *place, *memo
    numbers = [memo.wake for memo in memos if memo.wake is not None]
    if change is not None and change.kick is not None:
        numbers.append(change.kick)
    if numbers:
        yield _COUNT_WAKES, *place, max(numbers)
    if change is None or (change.state is RunState.SLEEPING and run.woken != hold.woken):
        return change is not None
    due_ms = None
    if change.state is RunState.SLEEPING:
        pending = yield from _pending(*place, run._replace(kick=change.kick, due_ms=change.due_ms))
        due_ms = min((wake.due_ms for wake in pending), default=None)
    end = change.state, change.attempts, change.result, change.error, change.kick, due_ms
    yield _LEAVE, *place, *end
    return False


def held(hold: Hold) -> Work["_Row"]:
    """Lock a run that is in a worker's hands; raise Fenced if it no longer is."""
    rows = yield _FIND, hold.scope, hold.id
    if not rows or _Row(*rows[0]).epoch != hold.epoch:
        raise Fenced(f"run {hold.id!r} is no longer in our hands")
    return _Row(*rows[0])


def signal(scope: str, run_id: str, name: str, value: str) -> Work[tuple[bool, Wake | None, Wake | None]]:
    """Record a signal; return whether it counts, the wake-up to arm, and the timeout that is over."""
    run = yield from _found(scope, run_id)
    if run.has_ended:
        return False, None, None
    rows = yield _SIGNAL, scope, run_id, name, value
    if not rows:
        if (yield _KIND, scope, run_id, name)[0][0] != "wait":
            raise FlowError(f"run {run_id!r} has a step {name!r}: a signal needs a name of its own")
        return False, run.kicked, None
    ((number, due_ms),) = rows
    timeout = None if number is None else Wake(number, name, due_ms)
    if run.in_hand is not None:
        yield _ABSORB, scope, run_id
        return True, None, timeout
    return True, (yield from _kick(scope, run_id, run, AT_ONCE_MS)), timeout


def cancel(scope: str, run_id: str) -> Work[tuple[bool, tuple[Wake, ...]]]:
    """End a run and fence its worker; return whether it was in time, and the timers that are over."""
    run = yield from _found(scope, run_id)
    pending = yield from _pending(scope, run_id, run)
    if not run.has_ended:
        yield _CANCEL, scope, run_id
    return not run.has_ended, pending


def retry(scope: str, run_id: str) -> Work[Wake | None]:
    """Have a run that has failed go on where it was; return the wake-up to arm."""
    run = yield from _found(scope, run_id)
    if run.state != RunState.FAILED:
        return run.kicked
    return (yield from _kick(scope, run_id, run, AT_ONCE_MS))


def get(scope: str, run_id: str) -> Work[Sequence[Any]]:
    """Return what is known of a run."""
    rows = yield _GET, scope, run_id
    if not rows:
        raise RunNotFound(f"there is no run {run_id!r}")
    return rows[0]


def page(scope: str, after: str, state: str, flow: str, version: int, size: int) -> Work[Rows]:
    """Return runs by id."""
    return (yield _LIST, scope, after, state, flow, version, size)


def overdue(scope: str, before_ms: int, size: int) -> Work[list[Overdue]]:
    """Return runs that nobody has woken, and the timer that should have, the oldest first."""
    found = []
    for run_id, state, epoch, due_ms, kick in (yield _OVERDUE, scope, before_ms, size):
        pending = yield _PENDING, scope, run_id
        wakes = [Wake(*row) for row in pending] if kick is None else [Wake(kick, KICK, due_ms)]
        found.append(Overdue(run_id, state, epoch, due_ms, wakes[0] if wakes else None))
    return found


def wake_again(scope: str, seen: Overdue, now_ms: int) -> Work[Wake | None]:
    """Give an overdue run a new wake-up, unless it has moved since; whoever held it is fenced."""
    rows = yield _FIND, scope, seen.id
    run = _Row(*rows[0])
    if (run.state, run.epoch, run.due_ms) != (seen.state, seen.epoch, seen.due_ms):
        return None
    return (yield from _kick(scope, seen.id, run, now_ms))


def look_later(scope: str, run_id: str, epoch: int, due_ms: int) -> Work[None]:
    """Put off when a run counts as overdue."""
    yield _LOOK_LATER, scope, run_id, due_ms, epoch
