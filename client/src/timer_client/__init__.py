"""The Python client of timer-service: schedule and cancel timers, wait for them, handle their firings."""

from timer_client.consumer import Consumer, Handler
from timer_client.errors import (
    AlreadyHandled,
    ConsumerConflict,
    NotPermitted,
    Reject,
    RequestRefused,
    ServiceAway,
    TimerCancelled,
    TimerError,
    TimerNotFound,
)
from timer_client.events import Expired, Reached
from timer_client.firing import Firing
from timer_client.once import POSTGRES_FIRINGS_TABLE, SQLITE_FIRINGS_TABLE, create_firings_table
from timer_client.operator import OperatorClient
from timer_client.requests import Accepted, Decision, Outcome, Timer
from timer_client.timers import Timers

__version__ = "0.1.0"
__all__ = [
    "POSTGRES_FIRINGS_TABLE",
    "SQLITE_FIRINGS_TABLE",
    "Accepted",
    "AlreadyHandled",
    "Consumer",
    "ConsumerConflict",
    "Decision",
    "Expired",
    "Firing",
    "Handler",
    "NotPermitted",
    "OperatorClient",
    "Outcome",
    "Reached",
    "Reject",
    "RequestRefused",
    "ServiceAway",
    "Timer",
    "TimerCancelled",
    "TimerError",
    "TimerNotFound",
    "Timers",
    "create_firings_table",
]
