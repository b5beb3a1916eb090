"""Timers with callbacks, and what their receivers do: as stories tell, and as a seed chooses."""

from dataclasses import dataclass
from datetime import timedelta
from random import Random

from timer_service.domain.callback import DEFAULT_DELAYS
from timer_service.domain.delivery import Answered, CallResult, TimedOut, Trouble, Unreachable
from timer_service.domain.pace import MAX_PAUSE_S

CALLING = 8
"""One seed in this many has callbacks."""
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


def retry_after_s(result: CallResult) -> float:
    """Return how long the receiver wants to be left alone, if it says so clearly."""
    retry_after = result.retry_after if isinstance(result, Answered) else None
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
