"""The Python client of timer-service: schedule and cancel timers, receive DueTimeReached."""

from timer_client.connection import RequestRefused
from timer_client.operator import OperatorClient
from timer_client.timers import Accepted, Reached, TimerClient

__version__ = "0.1.0"
__all__ = ["Accepted", "OperatorClient", "Reached", "RequestRefused", "TimerClient"]
