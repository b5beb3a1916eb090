"""How long and how much the SQLite store works at once; tests and the simulation choose less."""

from dataclasses import dataclass
from typing import Final

BUSY_TIMEOUT_MS: Final = 5_000
"""How long a statement waits for another connection's lock."""
QUESTION_TIMEOUT_S: Final = 2.0
"""From asking to the answer, with the wait for a connection; then the question is interrupted."""
HOLD_TIMEOUT_S: Final = 0.25
"""How long those who have asked are left alone before they are interrupted, while nobody new may ask."""
MAX_LOG_BYTES: Final = 64 * 1024 * 1024
"""Beyond this the log is emptied, and questions wait for that."""
LOG_GROWTH_BYTES: Final = MAX_LOG_BYTES // 4
"""How much it grows before emptying it is tried again."""
RESET_TIMEOUT_MS: Final = 250
"""How long commands wait for other readers, such as a backup; then the log may keep growing."""
MAX_SCANNED_ROWS: Final = 20_000
"""Due timers that one look passes to learn whose they are."""
MAX_VISITED_TENANTS: Final = 2_000
"""Tenants with pending timers that one look visits to learn whether one is due."""


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """The bounds of one store."""

    busy_timeout_ms: int = BUSY_TIMEOUT_MS
    question_timeout_s: float = QUESTION_TIMEOUT_S
    hold_timeout_s: float = HOLD_TIMEOUT_S
    max_log_bytes: int = MAX_LOG_BYTES
    log_growth_bytes: int = LOG_GROWTH_BYTES
    reset_timeout_ms: int = RESET_TIMEOUT_MS
    max_scanned_rows: int = MAX_SCANNED_ROWS
    max_visited_tenants: int = MAX_VISITED_TENANTS


DEFAULT_LIMITS: Final = SqliteLimits()
