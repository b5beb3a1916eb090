"""The client's old place, for one more release: import `timer_client` instead."""

import warnings

from timer_client import Accepted, OperatorClient, Reached
from timer_client import RequestRefused as CallRefused
from timer_client import TimerClient as _TimerClient

__all__ = ["Accepted", "CallRefused", "Reached", "TimerClient"]

warnings.warn(
    "timer_service.client is now timer_client, of the distribution timer-service-client",
    DeprecationWarning,
    stacklevel=2,
)


class TimerClient(_TimerClient, OperatorClient):
    """What tenants and what operators ask, in one class as before."""
