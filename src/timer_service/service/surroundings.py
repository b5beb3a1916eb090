"""What all loops of the service work with."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from timer_service.observability.metrics import Metrics
from timer_service.observability.work_log import WorkLog
from timer_service.ports.callback_sender import CallbackSender
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.delivery_store import DeliveryQueue
from timer_service.ports.event_sink import EventSink
from timer_service.ports.timer_store import PatientStore
from timer_service.waiting import RightOfWay
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
    work_log: WorkLog = field(default_factory=WorkLog)
    questions: OpenQuestions = field(default_factory=OpenQuestions)
    elapsed_s: Callable[[], float] = time.monotonic
    right_of_way: RightOfWay = field(default_factory=RightOfWay)
    """Taken by what fires; whatever can wait asks for it."""
    before_callbacks: RightOfWay = field(default_factory=RightOfWay)
    """Taken by timers on the bus, where milliseconds count; callbacks that come in numbers ask for it."""
    gives_way_s: float = 0.005
    """How long callbacks wait at most, each time: beside a bus that is always busy they go on."""
