"""The epochs of command streams in a PostgreSQL database that several instances share."""

from collections.abc import Iterable, Sequence
from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.postgres.connections import Connection, Row
from timer_service.domain.epochs import StreamEpoch, newest_by_epoch
from timer_service.domain.messages import Command

READ: Final = f"SELECT {rows.EPOCH_COLUMNS} FROM timer_stream_epochs ORDER BY epoch"  # noqa: S608 - constants

# Of two instances that notice the same loss, the second finds the number taken and reads again.
_BEGIN: Final = f"""
INSERT INTO timer_stream_epochs ({rows.EPOCH_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING RETURNING epoch
"""  # noqa: S608

# The newest command of a batch; most of what is delivered again changes nothing.
_ADVANCE: Final = """
UPDATE timer_stream_epochs
SET last_sequence = greatest(last_sequence, $2), last_stored_us = greatest(last_stored_us, $3)
WHERE epoch = $1 AND (last_sequence < $2 OR last_stored_us < $3)
"""


def stream_epochs(found: Iterable[Row]) -> list[StreamEpoch]:
    """Return the epochs of rows that READ has found."""
    return [StreamEpoch(*row) for row in found]


async def insert_epochs(connection: Connection, epochs: Sequence[StreamEpoch]) -> int:
    """Add epochs whose numbers are free; return how many were."""
    added = 0
    for epoch in epochs:
        number = await connection.fetchval(_BEGIN, *rows.epoch_row(epoch))
        added += number is not None
    return added


async def advance_epochs(connection: Connection, commands: Sequence[Command]) -> None:
    """Note the newest command of each epoch; last in a transaction, because all instances share the rows."""
    for newest in newest_by_epoch(commands):
        await connection.execute(_ADVANCE, newest.stream_created_us, newest.sequence, newest.stored_us)
