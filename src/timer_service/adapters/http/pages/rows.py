"""Timers as screens show them, and as `?format=json` gives them."""

from typing import Any

from timer_service.domain.timer import Timer, TimerState


def timer_row(timer: Timer) -> dict[str, Any]:
    """Return what a list shows of a timer."""
    return {
        "tenant_id": timer.tenant_id,
        "service_call_id": timer.service_call_id,
        "state": timer.state.value,
        "due_at": timer.due_at,
        "ended_at": timer.reached_at or timer.cancelled_at or timer.expired_at,
        "late_s": lateness_s(timer),
        "correlation_id": timer.correlation_id,
        "sink": timer.sink,
        "version": timer.version,
    }


def lateness_s(timer: Timer) -> float | None:
    """Return how late a timer fired; None if it has not."""
    if timer.state is not TimerState.REACHED or timer.reached_at is None or timer.due_at is None:
        return None
    return max(0.0, (timer.reached_at - timer.due_at).total_seconds())
