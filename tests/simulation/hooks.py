"""Timers with callbacks, and what their receivers do: as stories tell, and as a seed chooses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

from timer_service.domain.callback import DEFAULT_DELAYS
from timer_service.domain.delivery import Answered, CallResult, TimedOut, Trouble, Unreachable
from timer_service.domain.pace import MAX_PAUSE_S

CALLING = 8
"""One seed in this many has callbacks."""
CHANGING, CHANGING_AT = 16, 13
"""One seed in this many has callbacks whose tenants change their minds: they move, expire, are given up."""
PATIENT = 4
"""Of these, one in this many has the usual schedule, of days, and a service that is away most of the time."""
MOST_S = 600.0
"""What is left of a schedule of days once the service is back."""
AWAY_S = 1.25 * DEFAULT_DELAYS[-1].total_seconds()
"""So long that every next attempt is due when the service is back."""
FASTEST = (0.1, 0.1, 0.2, 0.2)
_SCHEDULES = (FASTEST, (1.0, 5.0), (5.0, 30.0, 120.0), ())
_USUAL = tuple(delay.total_seconds() for delay in DEFAULT_DELAYS)
_ANSWERS: tuple[CallResult, ...] = (
    Answered(200),
    Answered(500),
    Answered(404),
    Answered(410),
    Answered(429, retry_after="7"),
    Answered(503, retry_after="2"),
    Answered(503, retry_after="soon"),
    TimedOut(timedelta(seconds=1)),
    Unreachable(Trouble.RESET),
    Unreachable(Trouble.DNS),
)
_MORE_ANSWERS: tuple[CallResult, ...] = (
    *_ANSWERS,
    Answered(413),
    Answered(500, final=True),
    Answered(302),
    TimedOut(timedelta(seconds=30)),
    Unreachable(Trouble.TLS),
)
SCHEDULE, CANCEL, RETRY, ABANDON = "schedule", "cancel", "retry", "abandon"


@dataclass(frozen=True, slots=True)
class Want:
    """Something that a tenant asks of its timer, from a moment on, until it is told what came of it."""

    at: float
    kind: str
    due_s: float = 0.0
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Hook:
    """A timer with a callback that a tenant asks for over the REST API, and what its receiver does."""

    at: float
    tenant: str
    call: str
    due_s: float
    answers: tuple[CallResult, ...] = ()
    """What becomes of one request after the other; whatever comes later is taken."""
    delays_s: tuple[float, ...] = FASTEST
    receiver: str = "receiver"
    cancel_at: float | None = None
    in_batch: bool = False
    """Whether it is asked for together with all others of the same moment of which this holds."""
    if_absent: bool = False
    expires_s: float | None = None
    """No attempt is of use later than this after the due time."""
    later: tuple[Want, ...] = ()
    """What its tenant asks for after it has asked for the timer."""

    def wants(self) -> Iterator[Want]:
        """Yield all that its tenant asks for, in order."""
        yield Want(self.at, SCHEDULE, self.due_s, self.if_absent)
        cancel = () if self.cancel_at is None else (Want(self.cancel_at, CANCEL),)
        yield from sorted((*self.later, *cancel), key=lambda want: want.at)

    @property
    def longest_s(self) -> float:
        """How long its attempts may take while the service is well and its receiver is left alone once."""
        answers_s = sum(
            answer.after.total_seconds() if isinstance(answer, TimedOut) else retry_after_s(answer)
            for answer in self.answers
        )
        return min(1.25 * sum(self.delays_s) + answers_s + MAX_PAUSE_S, MOST_S)


def some_hooks(random: Random, lasts: float, *, patient: bool) -> list[Hook]:
    """Let receivers be well, unwell or gone, and tenants cancel some callbacks just when they are due."""
    receivers = [(f"receiver-{n}", random.choice((0.0, 0.3, 0.9))) for n in range(random.randint(1, 4))]
    hooks = []
    for number in range(5 if patient else random.choice((3, 10, 40))):
        at = 1.0 + random.random() * lasts
        due_s = at + random.choice((-1.0, 0.0, 0.01, 0.5, 3.0))
        receiver, unwell = random.choice(receivers)
        answers = [random.choice(_ANSWERS) for _ in range(5) if random.random() < unwell]
        if patient:
            answers = [Answered(500)] * random.randint(5, 10)
        hooks.append(
            Hook(
                at,
                f"shop-{random.randrange(3)}",
                f"hook-{number}",
                due_s,
                tuple(answers),
                _USUAL if patient else random.choice(_SCHEDULES),
                receiver,
                max(at, due_s + random.gauss(0.0, 0.02)) if random.random() < 0.3 else None,
            )
        )
    return hooks


def changed(random: Random, hook: Hook) -> Hook:
    """Let a tenant change its mind about a callback, most of the time just when it is due."""
    later, due_s = [], hook.due_s
    for _ in range(random.choice((0, 0, 1, 3))):
        at = max(hook.at, due_s + random.gauss(0.0, 0.05))
        due_s = at + random.choice((-1.0, 0.0, 0.02, 0.5, 5.0))
        later.append(Want(at, SCHEDULE, due_s, if_absent=random.random() < 0.3))
    ends_s = max(due_s, hook.at)
    if random.random() < 0.2:
        later.append(Want(ends_s + random.choice((0.0, 0.05, 1.0, 10.0)), ABANDON))
    if random.random() < 0.3:
        later.append(Want(ends_s + random.choice((0.1, 2.0, 20.0, 60.0)), RETRY))
    return replace(
        hook,
        answers=tuple(
            random.choice(_MORE_ANSWERS) if random.random() < 0.3 else answer for answer in hook.answers
        ),
        if_absent=random.random() < 0.2,
        expires_s=random.choice((0.0, 0.05, 2.0, 30.0)) if random.random() < 0.3 else None,
        later=tuple(later),
    )


def retry_after_s(result: CallResult) -> float:
    """Return how long the receiver wants to be left alone, if it says so clearly."""
    retry_after = result.retry_after if isinstance(result, Answered) else None
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
