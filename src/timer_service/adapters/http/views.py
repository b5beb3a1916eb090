"""Timers as /v1 shows them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from timer_client import wire
from timer_service.adapters import codec
from timer_service.adapters.http import conditions
from timer_service.adapters.http.api import Answer
from timer_service.adapters.http.callbacks import CallbackDesk, delivery_view
from timer_service.adapters.http.problems import Problem
from timer_service.deliveries import Deliveries
from timer_service.domain.callback import Sink
from timer_service.domain.messages import ScheduleTimer
from timer_service.domain.outcomes import accepted_callbacks
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.delivery_store import CallbackRecord


class TimerViews:
    """Shows timers with their callbacks, and answers that carry one."""

    def __init__(self, deliveries: Deliveries, desk: CallbackDesk) -> None:
        self._deliveries = deliveries
        self._desk = desk

    async def record(self, timer: Timer) -> CallbackRecord | None:
        """Return what is kept of a timer's callback; None if it has none."""
        if timer.sink is Sink.BUS:
            return None
        return (await self._deliveries.records([timer.key])).get(timer.key)

    def of(self, timer: Timer, record: CallbackRecord | None = None) -> dict[str, Any]:
        """Return a timer as the API shows it."""
        shown = codec.timer_fields(timer) | {"sink": timer.sink.name.lower()}
        return shown if record is None else shown | self._desk.record_view(timer.key, record)

    def tag(self, timer: Timer, record: CallbackRecord | None) -> str:
        """Return the entity tag of a timer as it is shown."""
        delivery = record and record.delivery
        return conditions.etag_of(timer, delivery and delivery_view(delivery))

    async def answer(
        self,
        status: int,
        outcome: Outcome,
        timer: Timer,
        headers: Mapping[str, str] | None = None,
        *,
        is_ordered: bool = True,
        change: ScheduleTimer | None = None,
    ) -> Answer:
        """Return the answer to a change; what the change has just given to the timer is not read again."""
        record = _given(change, outcome) or await self.record(timer)
        content: dict[str, Any] = {"outcome": outcome.value, "timer": self.of(timer, record)}
        if not is_ordered:
            content["ordered"] = False
        more = {"etag": self.tag(timer, record), **(headers or {})}
        if status == 201:
            more["location"] = f"/v1/timers/{quote(timer.service_call_id, safe='')}"
        return Answer(status, wire.write_json(content), more, outcome=outcome.value)

    async def problem(self, kind: str, detail: str, timer: Timer) -> Problem:
        """Return a refusal that shows the timer as it is."""
        record = await self.record(timer)
        return Problem(
            kind, detail, headers={"etag": self.tag(timer, record)}, more={"timer": self.of(timer, record)}
        )


def _given(change: ScheduleTimer | None, outcome: Outcome) -> CallbackRecord | None:
    """Return the callback that a change has given to its timer, which has not fired since."""
    callback = None if change is None else accepted_callbacks([change], [outcome]).get(change.key)
    return None if callback is None else CallbackRecord(callback, None)
