"""The status of a timer with a callback, in one word: derived from its state and its delivery's."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from timer_service.domain.delivery import DeliveryState
from timer_service.domain.timer import TimerState


class CallbackStatus(StrEnum):
    """The words of the compact dialect."""

    PENDING = "pending"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


OF_DELIVERY: Final[Mapping[DeliveryState, CallbackStatus]] = {
    DeliveryState.WAITING: CallbackStatus.EXECUTING,
    DeliveryState.DELIVERED: CallbackStatus.COMPLETED,
    DeliveryState.FAILED: CallbackStatus.FAILED,
    DeliveryState.ABANDONED: CallbackStatus.FAILED,
}
OF_TIMER: Final[Mapping[TimerState, CallbackStatus]] = {
    TimerState.SCHEDULED: CallbackStatus.PENDING,
    TimerState.CANCELLED: CallbackStatus.CANCELED,
    TimerState.EXPIRED: CallbackStatus.FAILED,
}
"""A timer in any other state has a delivery."""


def callback_status(timer: TimerState, delivery: DeliveryState | None) -> CallbackStatus:
    """Return the status of a timer and its delivery, if it has one."""
    if timer in OF_TIMER:
        return OF_TIMER[timer]
    return CallbackStatus.COMPLETED if delivery is None else OF_DELIVERY[delivery]
