"""The epochs of command streams, kept beside the timers."""

from collections.abc import Sequence
from typing import Protocol

from timer_service.domain.epochs import StreamEpoch


class StreamEpochs(Protocol):
    """What must be remembered of the command streams, so that a new command is newer than all before.

    Applying commands notes the newest of each epoch in the same transaction.
    """

    async def stream_epochs(self) -> Sequence[StreamEpoch]:
        """Return every epoch of every stream, in their order."""
        ...

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch; return False, with nothing changed, if its number is already taken.

        Of several instances that notice the same loss one begins the epoch, and the others find it.
        """
        ...
