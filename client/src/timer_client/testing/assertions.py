"""What a test says about the timers that its code has scheduled."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta

from timer_client import due as times
from timer_client import wire
from timer_client.requests import Timer


class TimerAssertions(ABC):
    """Assertions about scheduled timers; a subclass says which there are, and what time it is."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the present moment of the timers."""

    @abstractmethod
    async def all_scheduled(self, *, tenant: str | None = None) -> list[Timer]:
        """Return what is scheduled, by due time; of one tenant or of the one that the test has."""

    async def assert_scheduled(
        self,
        service_call_id: str,
        *,
        in_: timedelta | None = None,
        at: datetime | None = None,
        delta: timedelta = timedelta(),
        tenant: str | None = None,
    ) -> Timer:
        """Fail unless this timer is due `in_` a span from now, or `at` a moment, give or take `delta`."""
        scheduled = await self.all_scheduled(tenant=tenant)
        timer = next((each for each in scheduled if each.service_call_id == service_call_id), None)
        if timer is None:
            raise AssertionError(f"{service_call_id} is not scheduled; {_listed(scheduled, self.now())}")
        wanted = self._moment(in_, at)
        assert timer.due_at is not None
        if wanted is not None and abs(timer.due_at - wanted) > delta:
            raise AssertionError(
                f"{service_call_id} is due {_described(timer.due_at, self.now())}, "
                f"not {_described(wanted, self.now())}" + (f" give or take {delta}" if delta else "")
            )
        return timer

    async def refute_scheduled(self, service_call_id: str, *, tenant: str | None = None) -> None:
        """Fail if this timer is scheduled."""
        for timer in await self.all_scheduled(tenant=tenant):
            if timer.service_call_id == service_call_id and timer.due_at is not None:
                raise AssertionError(
                    f"{service_call_id} is scheduled, due {_described(timer.due_at, self.now())}"
                )

    def _moment(self, in_: timedelta | None, at: datetime | None) -> datetime | None:
        if in_ is not None and at is not None:
            raise TypeError("give in_ or at, not both")
        if in_ is not None:
            return self.now() + timedelta(milliseconds=times.span_ms("in_", in_))
        return None if at is None else times.moment("at", at)


def target_of(
    now: datetime, span: timedelta | None, to: datetime | None, parts: dict[str, float]
) -> datetime:
    """Return where `advance` leads: by a span, by parts of one such as days=3, or to a moment."""
    if (span is not None) + (to is not None) + bool(parts) != 1:
        raise TypeError("say how far, with one of a timedelta, keywords such as days=3, and to=")
    if to is not None:
        return times.moment("to", to)
    return now + timedelta(milliseconds=times.span_ms("span", timedelta(**parts) if span is None else span))


def _described(moment: datetime, now: datetime) -> str:
    gap = moment - now
    return f"at {wire.format_time(moment)} ({'in ' if gap >= timedelta() else '-'}{abs(gap)})"


def _listed(timers: Sequence[Timer], now: datetime) -> str:
    shown = [f"{t.service_call_id} {_described(t.due_at, now)}" for t in timers if t.due_at is not None]
    return f"scheduled: {', '.join(shown)}" if shown else "nothing is scheduled"
