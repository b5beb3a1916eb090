"""What we tell the broker of messages that it has delivered."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nats.errors import Error as NatsError

from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.incoming import Incoming
from timer_service.adapters.nats.positions import CommandPositions

SEND_TIMEOUT_S: Final = 5.0


class Replies:
    """Acknowledges, terminates and gives back; losing a reply only means that its message comes again."""

    def __init__(self, positions: CommandPositions) -> None:
        self._positions = positions
        self._client: TolerantClient | None = None
        self.handled_sequence = 0
        """The newest message that was dealt with since the consumer was looked at."""

    def start(self, client: TolerantClient) -> None:
        """Reply over this connection, now that it is known where the stream stands."""
        self._client = client
        self.handled_sequence = 0

    def lost(self) -> None:
        """Reply to nothing until there is a connection again."""
        self._client = None

    async def send(self, replies: Sequence[tuple[Incoming, bytes]]) -> None:
        """Tell the broker what became of messages."""
        if self._client is None:
            return
        # Since a stream began again or lost something, a sequence may be another message's: leave it alone.
        current = {epoch for epoch in {m.epoch for m, _ in replies} if self._positions.is_current(epoch)}
        known = [pair for pair in replies if pair[0].epoch in current]
        self.handled_sequence = max([self.handled_sequence, *(m.position.sequence for m, _ in known)])
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._client.publish_all([Outgoing(m.reply, word) for m, word in known])
