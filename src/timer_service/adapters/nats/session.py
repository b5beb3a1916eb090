"""What lives on one connection to the broker."""

from typing import Protocol

from timer_service.adapters.nats.tolerant_client import TolerantClient


class SessionPart(Protocol):
    """Something that works over whichever connection there is."""

    async def start(self, client: TolerantClient) -> None:
        """Begin on a new connection. Raises NatsError or OSError where it is lost already."""
        ...

    def lost(self) -> None:
        """Stop waiting for what cannot come any more."""
        ...
