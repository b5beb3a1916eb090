"""Timers that fire over HTTP: one loop hands them over when they are due, another one delivers."""

import asyncio
from datetime import datetime

from timer_service.domain.messages import TimerKey
from timer_service.ports.explanation import Obstacle
from timer_service.service.deliver import Delivering
from timer_service.service.fire import Firing
from timer_service.service.surroundings import Surroundings
from timer_service.workflows.schedule_timers import ScheduleReport


class Callbacks:
    """Both loops, beside those of the bus, to which every step of theirs gives way."""

    def __init__(self, around: Surroundings, handing_over: Firing, delivering: Delivering) -> None:
        self._around = around
        self._handing_over = handing_over
        self.delivering = delivering

    def start(self, loops: asyncio.TaskGroup) -> None:
        """Begin both loops."""
        in_turns = self._around.in_turns(loops)
        in_turns.create_task(self._handing_over.run(in_turns), name="hand over")
        in_turns.create_task(self.delivering.run(), name="deliver")

    def stop(self) -> None:
        """Ask both loops to end at their next safe point."""
        self._handing_over.stop()
        self.delivering.stop()

    def obstacle(self, key: TimerKey) -> Obstacle | None:
        """Return why a due timer is not handed over; None if nothing is in its way."""
        return self._handing_over.obstacle(key)

    def wake_for(self, due_at: datetime) -> None:
        """Wake the loop if a timer with a callback is due before it would look again."""
        self._handing_over.wake_for(due_at)

    def wake_before(self, due_at: datetime) -> None:
        """Do so only if a timer with a callback is known to come later: this one may be it."""
        self._handing_over.wake_before(due_at)

    def commands_applied(self, report: ScheduleReport) -> None:
        """Look for timers with a callback that commands of the stream may have moved."""
        self._handing_over.commands_applied(report, only_before=True)
