"""What all loops of the service work with."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from timer_service.domain.lanes import MAX_QUEUED
from timer_service.observability.metrics import Metrics
from timer_service.observability.work_log import WorkLog
from timer_service.ports.callback_sender import CallbackSender
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.delivery_store import DeliveryQueue
from timer_service.ports.event_sink import EventSink
from timer_service.ports.timer_store import PatientStore
from timer_service.right_of_way import GIVE_WAY_S, RightOfWay, TasksInTurns
from timer_service.workflows.open_questions import OpenQuestions


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The ports, chance and the passing of time, and where to report what was done."""

    store: PatientStore
    source: CommandSource
    sink: EventSink
    clock: Clock
    chance: Callable[[], float]
    metrics: Metrics
    deliveries: DeliveryQueue | None = None
    sender: CallbackSender | None = None
    """Without these two no timer fires over HTTP."""
    spares_receivers: bool = True
    """Whether a receiver that fails is given a rest."""
    max_queued: int = MAX_QUEUED
    """Attempts of callbacks in memory."""
    work_log: WorkLog = field(default_factory=WorkLog)
    questions: OpenQuestions = field(default_factory=OpenQuestions)
    elapsed_s: Callable[[], float] = time.monotonic
    right_of_way: RightOfWay = field(default_factory=RightOfWay)
    """Taken by what fires; whatever can wait asks for it."""
    before_callbacks: RightOfWay = field(default_factory=RightOfWay)
    """Taken by timers on the bus, where milliseconds count; every step of a callback gives way."""
    gives_way_s: float = GIVE_WAY_S
    """For this long after the bus began to look: beside one that is always busy callbacks go on."""

    def in_turns(self, tasks: asyncio.TaskGroup) -> TasksInTurns:
        """Return what begins the tasks of callbacks in a group."""
        return TasksInTurns(tasks, self.before_callbacks, self.gives_way_s)
