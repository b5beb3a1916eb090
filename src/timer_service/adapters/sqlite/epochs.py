"""The epochs of command streams in a SQLite file; every statement runs in its caller's transaction."""

from collections.abc import Sequence
from typing import Final

import aiosqlite

from timer_service.adapters import rows
from timer_service.domain.epochs import StreamEpoch, newest_by_epoch
from timer_service.domain.messages import Command

READ: Final = f"SELECT {rows.EPOCH_COLUMNS} FROM timer_stream_epochs ORDER BY epoch"  # noqa: S608 - constants
_BEGIN: Final = (
    f"INSERT INTO timer_stream_epochs ({rows.EPOCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
)

# The newest command of a batch; most of what is delivered again changes nothing.
_ADVANCE: Final = """
UPDATE timer_stream_epochs
SET last_sequence = max(last_sequence, :sequence), last_stored_us = max(last_stored_us, :stored_us)
WHERE epoch = :epoch AND (last_sequence < :sequence OR last_stored_us < :stored_us)
"""


async def read_epochs(connection: aiosqlite.Connection) -> list[StreamEpoch]:
    """Return every epoch in their order."""
    return [StreamEpoch(*row) for row in await connection.execute_fetchall(READ)]


async def insert_epochs(connection: aiosqlite.Connection, epochs: Sequence[StreamEpoch]) -> int:
    """Add epochs whose numbers are free; return how many were."""
    cursor = await connection.executemany(_BEGIN, [rows.epoch_row(epoch) for epoch in epochs])
    return cursor.rowcount


async def advance_epochs(connection: aiosqlite.Connection, commands: Sequence[Command]) -> None:
    """Note the newest command of each epoch."""
    for newest in newest_by_epoch(commands):
        await connection.execute(
            _ADVANCE,
            {
                "epoch": newest.stream_created_us,
                "sequence": newest.sequence,
                "stored_us": newest.stored_us,
            },
        )
