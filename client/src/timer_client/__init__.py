"""The Python client of timer-service: schedule and cancel timers, wait for them, handle their firings."""

from timer_client.errors import (
    NotPermitted,
    RequestRefused,
    ServiceAway,
    TimerCancelled,
    TimerError,
    TimerNotFound,
)
from timer_client.events import Reached
from timer_client.operator import OperatorClient
from timer_client.timers import Accepted, Decision, Outcome, Timer, Timers

__version__ = "0.1.0"
__all__ = [
    "Accepted",
    "Decision",
    "NotPermitted",
    "OperatorClient",
    "Outcome",
    "Reached",
    "RequestRefused",
    "ServiceAway",
    "Timer",
    "TimerCancelled",
    "TimerError",
    "TimerNotFound",
    "Timers",
]
