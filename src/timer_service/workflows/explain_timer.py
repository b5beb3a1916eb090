"""Explain why a timer is in its state: facts in, a sentence and a word for programs out."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from timer_service.domain.callback import Sink
from timer_service.domain.cause import Cause
from timer_service.domain.spoken import count_text, outage_text, span_text
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.explanation import Explanation, Facts, Obstacle
from timer_service.ports.letter_box import LettersFound
from timer_service.workflows.explain_ending import Ending, ending_of

BEING_FIRED_FOR: Final = timedelta(seconds=1)
"""A timer that is due for no longer than this is simply being fired."""
MANY_DUE: Final = 2
"""From this many due timers on, the others count as a reason."""


def explain(facts: Facts) -> Explanation:
    """Explain why a timer is in its state; its tenant may read the text."""
    timer = facts.timer
    if timer is None:
        found = _absent(facts)
    elif timer.state is not TimerState.SCHEDULED:
        found = _of_ending(ending_of(timer, facts.record, facts.receiver_back_at, facts.trail, facts.now))
    else:
        found = _scheduled(facts, timer)
    return Explanation(
        found.cause,
        _sentence(found.text),
        found.is_well,
        facts,
        since=facts.since.get(found.part) if found.part else None,
        detail=found.detail or (facts.health.problems.get(found.part) if found.part else None),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    cause: Cause
    text: str
    is_well: bool = False
    part: str | None = None
    """Which part of the service is to blame."""
    detail: str | None = None


def _of_ending(ending: Ending) -> _Found:
    return _Found(ending.cause, ending.text, ending.is_well)


def _absent(facts: Facts) -> _Found:
    letters = facts.letters.letters if facts.letters is not None else ()
    if letters:
        newest = letters[0]
        older = len(letters) - 1
        do = "does" if older == 1 else "do"
        others = f" (so {do} {count_text(older, 'older one')})" if older else ""
        return _Found(
            Cause.REFUSED, f"No such timer; letter {newest.number} names this id{others}: {newest.detail}"
        )
    for part, cause in (("store", Cause.STORE_TROUBLE), ("broker", Cause.BROKER_AWAY)):
        if part in facts.health.problems:
            text = f"No such timer; {_problem(facts, part)}, so a command for it may not be applied yet"
            return _Found(cause, text, part=part)
    if facts.commands_wait:
        text = "No such timer yet: commands of this tenant are stored and not applied"
        return _Found(Cause.COMMANDS_WAITING, text)
    looked = "" if facts.letters is None or facts.letters.older is None else _looked(facts.letters)
    text = f"No such timer: no command for it has arrived, or it ended long ago and was deleted{looked}"
    return _Found(Cause.NOT_FOUND, text)


def _looked(letters: LettersFound) -> str:
    return f"; of the letters only the newest {letters.looked_at:,} were looked at"


def _scheduled(facts: Facts, timer: Timer) -> _Found:
    assert timer.due_at is not None
    trouble = _trouble(facts, timer)
    if timer.due_at > facts.now:
        return _not_due(facts, timer.due_at, trouble)
    late = facts.now - timer.due_at
    overdue = f"Overdue by {span_text(late)}"
    if trouble is not None:
        return _Found(trouble.cause, f"{overdue}: {trouble.text}", part=trouble.part, detail=trouble.detail)
    if late <= BEING_FIRED_FOR:
        return _Found(Cause.BEING_FIRED, f"Due {span_text(late)} ago: it is being fired", is_well=True)
    if facts.due >= MANY_DUE:
        pace = f", and {facts.fired_per_s:,.0f} per second were fired in the last minute"
        return _Found(Cause.BACKLOG, f"{overdue}: {count_text(facts.due, 'timer')} are due{pace}")
    text = f"{overdue}, and this instance knows no reason: its log may, or another instance"
    return _Found(Cause.UNEXPLAINED, text)


def _not_due(facts: Facts, due_at: datetime, trouble: _Found | None) -> _Found:
    due = f"Due in {span_text(due_at - facts.now)}"
    if trouble is None:
        return _Found(Cause.NOT_DUE, f"{due}; nothing is wrong", is_well=True)
    if trouble.cause is Cause.CLOCK_HELD and due_at <= facts.now + facts.held_step:
        text = f"{due} by the service's clock, due already by the machine's: {trouble.text}"
        return _Found(trouble.cause, text, part=trouble.part)
    return _Found(Cause.NOT_DUE, f"{due}; it would be late now: {trouble.text}", part=trouble.part)


def _trouble(facts: Facts, timer: Timer) -> _Found | None:
    """Return what keeps timers of this kind from firing, the gravest first."""
    health, on_the_bus = facts.health, timer.sink is Sink.BUS
    if health.stuck is not None:
        text = "the loop that fires timers is stuck; a restart helps"
        return _Found(Cause.WORKER_STUCK, text, detail=health.stuck)
    if facts.held_step:
        text = (
            f"the machine's clock leapt forward by {span_text(facts.held_step)}, "
            "and the service waits for a person to confirm that (timer-service clock accept)"
        )
        return _Found(Cause.CLOCK_HELD, text, part="clock")
    if "store" in health.problems:
        return _Found(Cause.STORE_TROUBLE, _problem(facts, "store"), part="store")
    if on_the_bus and not facts.has_broker:
        text = "the service has no broker (TIMER_BROKER_URL=none), and this timer has no callback"
        return _Found(Cause.NO_BROKER, text)
    if on_the_bus and "broker" in health.problems:
        return _Found(Cause.BROKER_AWAY, _problem(facts, "broker"), part="broker")
    obstacle = facts.obstacle
    return None if obstacle is None else _obstacle(facts, obstacle)


_OBSTACLES: Final = {
    Cause.STREAM_REFUSES: "the event stream accepts nothing",
    Cause.TENANT_HELD_BACK: "the events of this tenant cannot be published",
    Cause.TIMER_HELD_BACK: "its event cannot be published",
    Cause.WAITS_FOR_COMMANDS: "the tenant has commands that were stored before it was due; they go first",
    Cause.COMMANDS_SILENT: "the command stream does not answer, so timers wait for TIMER_CATCH_UP",
}


def _obstacle(facts: Facts, obstacle: Obstacle) -> _Found:
    text = _OBSTACLES[obstacle.cause]
    if obstacle.attempts:
        text += f" ({count_text(obstacle.attempts, 'try', 'tries')} so far)"
    if obstacle.until is not None and obstacle.until > facts.now:
        text += f"; tried again in {span_text(obstacle.until - facts.now)}"
    return _Found(obstacle.cause, text, detail=obstacle.detail or None)


def _problem(facts: Facts, part: str) -> str:
    return outage_text(part, facts.since.get(part), facts.now)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
