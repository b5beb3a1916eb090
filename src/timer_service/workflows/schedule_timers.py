"""Apply commands, then acknowledge them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from timer_service.domain.outcomes import nearest_due_at
from timer_service.domain.timer import Outcome
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandBatch, Refusal
from timer_service.ports.timer_store import TimerStore
from timer_service.workflows.open_questions import OpenQuestions


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """What one batch of commands did."""

    commands: Counter[tuple[str, Outcome]]
    """How many commands of which type did what."""
    refusals: Sequence[Refusal]
    redelivered: int
    nearest_due_at: datetime | None
    """The earliest due time that this batch set."""


async def schedule_timers(
    *, batch: CommandBatch, store: TimerStore, clock: Clock, questions: OpenQuestions
) -> ScheduleReport:
    """Apply a batch of commands in one transaction, acknowledge it, and set aside what is not a command."""
    outcomes: list[Outcome] = []
    if batch.commands:
        outcomes = await store.apply(batch.commands, clock.now())
        # Acknowledge after the commit: a crash in between repeats the commands, which changes nothing.
        # The other order would lose them.
        await questions.answered()
        await batch.acknowledge()
    refusals = await batch.dead_letter()
    return ScheduleReport(
        commands=Counter(zip((type(c).__name__ for c in batch.commands), outcomes, strict=True)),
        refusals=refusals,
        redelivered=batch.redelivered,
        nearest_due_at=nearest_due_at(batch.commands, outcomes),
    )
