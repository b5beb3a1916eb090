"""What is done to a journal, each in one transaction: SQL that SQLite and PostgreSQL share.

An operation is a generator: it yields a statement with its parameters and is sent the rows. So the rules
stand here once, and a journal only knows how its database runs a statement.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from timer_client.errors import Fenced
from timer_client.flows.model import FlowError, FlowUnknown, RunNotFound, RunState


class Row(NamedTuple):
    """A run as flow_runs has it."""

    flow: str
    version: int
    state: str
    input: str
    attempts: int
    in_hand: int | None
    """The number of the wake-up that a worker continues with."""
    delivery: int | None
    """How often that had been delivered."""
    epoch: int
    """Raised whenever the run changes hands: a worker with an older one is fenced."""
    woken: int
    """Raised whenever something happens to a run in hand: its holder looks again before it lets go."""
    due_ms: int | None

    @property
    def has_ended(self) -> bool:
        """Return whether nothing becomes of it any more."""
        return self.state not in (RunState.SLEEPING, RunState.RUNNING)


class Memo(NamedTuple):
    """One row of what a run has done, or waits for."""

    name: str
    kind: str
    wake: int | None
    """The number of its timer."""
    due_ms: int | None
    done: int
    value: str | None


class Delivered(NamedTuple):
    """A wake-up as it came from the broker."""

    number: int
    delivery: int
    """How often it was delivered so far."""
    reached_ms: int
    epoch: int | None = None
    """That of the worker which holds it and looks again."""


class Hold(NamedTuple):
    """A run in the hands of one worker; what that worker records counts while the epoch is its own."""

    scope: str
    id: str
    epoch: int
    woken: int


class Taken(NamedTuple):
    """A run that is ours to continue."""

    hold: Hold
    run: Row
    memos: list[Memo]


class Change(NamedTuple):
    """What becomes of a run at the end of a turn."""

    state: RunState
    attempts: int = 0
    result: str | None = None
    error: str | None = None


T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Work = Generator[tuple[Any, ...], Rows, T]

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
    kind text NOT NULL CHECK (kind IN ('step', 'failed', 'sleep', 'wait', 'kick')),
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

KICK: Final = "kick"
"""A wake-up that belongs to no step: a start, a signal, another attempt. Its name has a space in it."""
AT_ONCE_MS: Final = 0
"""Due at once, by a caller who does not know what time it is for the service."""

_RUN: Final = "scope = $1 AND id = $2"
_STEPS: Final = "scope = $1 AND run_id = $2"
_COLUMNS: Final = "flow, version, state, input, attempts, in_hand, delivery, epoch, woken, due_ms"
_FIND: Final = f"SELECT {_COLUMNS} FROM flow_runs WHERE {_RUN} FOR UPDATE"
_START: Final = """\
INSERT INTO flow_runs (scope, id, flow, version, state, input, due_ms)
VALUES ($1, $2, $3, $4, 'Sleeping', $5, 0) ON CONFLICT DO NOTHING RETURNING id"""
# An event of the service says what time it is: all that is due by then is over.
_WAKE_STEPS: Final = f"""\
UPDATE flow_steps SET done = 1, value = CASE kind WHEN 'sleep' THEN CAST($4 - due_ms AS text) END
WHERE {_STEPS} AND done = 0 AND (wake = $3 OR due_ms <= $4) RETURNING name"""
_TAKE: Final = f"""\
UPDATE flow_runs SET state = 'Running', in_hand = $3, delivery = $4, epoch = epoch + 1, due_ms = $5
WHERE {_RUN}"""
_ABSORB: Final = f"UPDATE flow_runs SET woken = woken + 1 WHERE {_RUN}"
_MEMO: Final = "name, kind, wake, due_ms, done, value"
_MEMOS: Final = f"SELECT {_MEMO} FROM flow_steps WHERE {_STEPS}"
_PENDING: Final = f"{_MEMOS} AND done = 0 AND wake IS NOT NULL ORDER BY due_ms"
_RECORD: Final = f"""\
INSERT INTO flow_steps (scope, run_id, {_MEMO})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING {_MEMO}"""
# Under a number that no timer has had: numbers stay in their rows, and a row stays as long as its run.
_KICK: Final = f"""\
INSERT INTO flow_steps (scope, run_id, name, kind, wake, due_ms, done)
SELECT $1, $2, number || ' wake', 'kick', number, CAST($3 AS bigint), 0
FROM (SELECT coalesce(max(wake), -1) + 1 AS number FROM flow_steps WHERE {_STEPS}) AS next
RETURNING {_MEMO}"""
_LEAVE: Final = f"""\
UPDATE flow_runs SET state = $3, attempts = $4, result = $5, error = $6, in_hand = NULL, epoch = epoch + 1,
due_ms = (SELECT min(due_ms) FROM flow_steps WHERE {_STEPS} AND done = 0 AND $3 = 'Sleeping')
WHERE {_RUN}"""
_SIGNAL: Final = f"""\
INSERT INTO flow_steps (scope, run_id, name, kind, done, value) VALUES ($1, $2, $3, 'wait', 1, $4)
ON CONFLICT (scope, run_id, name) DO UPDATE SET done = 1, value = excluded.value
WHERE flow_steps.kind = 'wait' AND flow_steps.done = 0 RETURNING {_MEMO}"""
_VIEW: Final = "SELECT id, flow, version, state, attempts, due_ms, result, error FROM flow_runs"
_GET: Final = f"{_VIEW} WHERE {_RUN}"
_LIST: Final = f"""\
{_VIEW} WHERE scope = $1 AND id > $2 AND ($3 = '' OR state = $3) AND ($4 = '' OR flow = $4)
AND ($5 = 0 OR version = $5) ORDER BY id LIMIT $6"""
_OVERDUE: Final = f"""\
SELECT id, {_COLUMNS} FROM flow_runs
WHERE scope = $1 AND state IN ('Sleeping', 'Running') AND due_ms < $2 ORDER BY due_ms LIMIT $3"""
_LOOK_LATER: Final = f"UPDATE flow_runs SET due_ms = $3 WHERE {_RUN} AND epoch = $4 AND due_ms IS NOT NULL"


def _one(statement: str, scope: str, run_id: str) -> Work[Sequence[Any]]:
    for row in (yield statement, scope, run_id):
        return row
    raise RunNotFound(f"there is no run {run_id!r}")


def _found(scope: str, run_id: str) -> Work[Row]:
    """Lock a run and return it."""
    return Row(*(yield from _one(_FIND, scope, run_id)))


def _kick(scope: str, run_id: str, due_ms: int = AT_ONCE_MS) -> Work[list[Memo]]:
    """Have a run woken; a worker that held it is fenced."""
    kick = yield _KICK, scope, run_id, due_ms
    yield _LEAVE, scope, run_id, *Change(RunState.SLEEPING)
    return [Memo(*row) for row in kick]


def migrate() -> Work[None]:
    """Create what is missing."""
    for table in TABLES:
        yield (table,)


def pending(scope: str, run_id: str) -> Work[list[Memo]]:
    """Return the timers that a run waits for, the first one first."""
    return [Memo(*row) for row in (yield _PENDING, scope, run_id)]


def start(scope: str, run_id: str, flow: str, version: int, value: str) -> Work[tuple[bool, list[Memo]]]:
    """Insert a run; return whether it is new, and the wake-up to arm."""
    if (yield _START, scope, run_id, flow, version, value):
        return True, [Memo(*row) for row in (yield _KICK, scope, run_id, AT_ONCE_MS)]
    run = yield from _found(scope, run_id)
    if run.flow != flow:
        raise FlowError(f"run {run_id!r} belongs to flow {run.flow!r}: give each run its own id")
    return False, [] if run.has_ended else (yield from pending(scope, run_id))


def take(
    scope: str, run_id: str, wake: Delivered, until_ms: int, known: Collection[tuple[str, int]]
) -> Work[Taken | list[Memo]]:
    """Take a run in hand for one wake-up; if there is nothing to do, return what it waits for.

    Raises RunNotFound, FlowUnknown, and Fenced if the wake-up was delivered again since.
    """
    run = yield from _found(scope, run_id)
    is_in_hand = run.in_hand == wake.number
    if is_in_hand and run.epoch != wake.epoch and wake.delivery < (run.delivery or 0):
        raise Fenced(f"wake-up {wake.number} was delivered again, and another worker has it")
    is_copy = is_in_hand and run.epoch != wake.epoch and wake.delivery == run.delivery
    if run.has_ended or is_copy:
        return []
    if (run.flow, run.version) not in known:
        raise FlowUnknown(f"{run.flow} version {run.version}")
    marked = yield _WAKE_STEPS, scope, run_id, wake.number, wake.reached_ms
    if not marked and not is_in_hand:
        return (yield from pending(scope, run_id))
    if run.in_hand not in (None, wake.number):
        # Its holder looks again before it lets go.
        yield _ABSORB, scope, run_id
        return []
    yield _TAKE, scope, run_id, wake.number, wake.delivery, until_ms
    memos = [Memo(*row) for row in (yield _MEMOS, scope, run_id)]
    return Taken(Hold(scope, run_id, run.epoch + 1, run.woken), run, memos)


def save(hold: Hold, memos: Sequence[Memo], change: Change | None = None) -> Work[tuple[bool, list[Memo]]]:
    """Record what a worker has done; return whether the run must be gone on with at once, and what is new.

    A wait that was told meanwhile is not new: its number is still free.
    Raises Fenced, and records nothing, if the run is no longer in its hands.
    """
    run = yield from held(hold)
    new: list[Memo] = []
    for memo in memos:
        new += [Memo(*row) for row in (yield _RECORD, hold.scope, hold.id, *memo)]
    if change is None or (change.state is RunState.SLEEPING and run.woken != hold.woken):
        return change is not None, new
    yield _LEAVE, hold.scope, hold.id, *change
    return False, new


def held(hold: Hold) -> Work[Row]:
    """Lock a run that is in a worker's hands; raise Fenced if it no longer is."""
    run = yield from _found(hold.scope, hold.id)
    if run.epoch != hold.epoch:
        raise Fenced(f"run {hold.id!r} is no longer in our hands")
    return run


def signal(scope: str, run_id: str, name: str, value: str) -> Work[tuple[bool, list[Memo], list[Memo]]]:
    """Record a signal; return whether it counts, the wake-up to arm, and the timeout that is over."""
    run = yield from _found(scope, run_id)
    if run.has_ended:
        return False, [], []
    rows = yield _SIGNAL, scope, run_id, name, value
    if not rows:
        return False, (yield from pending(scope, run_id)), []
    timeout = [Memo(*row) for row in rows]
    if run.in_hand is not None:
        yield _ABSORB, scope, run_id
        return True, [], timeout
    return True, (yield from _kick(scope, run_id)), timeout


def cancel(scope: str, run_id: str) -> Work[tuple[bool, list[Memo]]]:
    """End a run and fence its worker; return whether it was in time, and the timers that are over."""
    run = yield from _found(scope, run_id)
    if not run.has_ended:
        yield _LEAVE, scope, run_id, *Change(RunState.CANCELLED, run.attempts)
    return not run.has_ended, (yield from pending(scope, run_id))


def retry(scope: str, run_id: str) -> Work[list[Memo]]:
    """Let a failed run continue where it was; return the wake-up to arm."""
    run = yield from _found(scope, run_id)
    if run.state == RunState.FAILED:
        return (yield from _kick(scope, run_id))
    return [] if run.has_ended else (yield from pending(scope, run_id))


def get(scope: str, run_id: str) -> Work[Sequence[Any]]:
    """Return what is known of a run."""
    return (yield from _one(_GET, scope, run_id))


def page(scope: str, after: str, state: str, flow: str, version: int, size: int) -> Work[Rows]:
    """Return runs by id."""
    return (yield _LIST, scope, after, state, flow, version, size)


def overdue(scope: str, before_ms: int, size: int) -> Work[list[tuple[str, Row]]]:
    """Return runs that nobody has woken, the oldest first."""
    return [(run_id, Row(*row)) for run_id, *row in (yield _OVERDUE, scope, before_ms, size)]


def wake_again(scope: str, run_id: str, seen: Row, now_ms: int) -> Work[list[Memo]]:
    """Give an overdue run a new wake-up, unless it has moved since; a worker that held it is fenced."""
    if (yield from _found(scope, run_id)) != seen:
        return []
    kick = yield from _kick(scope, run_id, now_ms)
    yield from look_later(scope, run_id, seen.epoch + 1, now_ms)
    return kick


def look_later(scope: str, run_id: str, epoch: int, due_ms: int) -> Work[None]:
    """Put off when a run counts as overdue."""
    yield _LOOK_LATER, scope, run_id, due_ms, epoch
