"""How callbacks go out, as the core sees it."""

from typing import Protocol

from timer_service.domain.delivery import CallbackRequest, CallResult


class CallbackSender(Protocol):
    """HTTP requests out."""

    async def send(self, request: CallbackRequest) -> CallResult:
        """Sign and send one request and return how it ended, within the time limit of its callback.

        Raises nothing but CancelledError: whatever goes wrong is a result. Sending again is up to the
        caller; the id is the same, so a receiver can drop what it has seen.
        """
        ...
