"""How long and how much the PostgreSQL store works at once; tests choose less."""

from dataclasses import dataclass
from typing import Final

START_TIMEOUT_S: Final = 30.0
"""How long a database that is away is waited for at the start."""
START_PAUSE_S: Final = 0.5
ACQUIRE_TIMEOUT_S: Final = 5.0
"""How long to wait for a free connection of our own before the store counts as busy."""
LOCK_TIMEOUT_S: Final = 3.0
"""How long a command waits for a row that another instance holds."""
STATEMENT_TIMEOUT_S: Final = 8.0
QUESTION_TIMEOUT_S: Final = 3.0
"""How long the server works on a question; it then counts as busy. A caller waits for five seconds."""
CLAIM_TIMEOUT_S: Final = 10.0
"""A claim that is silent for this long is ended by the server; publishing gives up well before that."""
RECONNECT_PAUSE_S: Final = 1.0
"""Before a listener connects again."""
CHEAP_COUNT_S: Final = 0.02
"""A count of all pending timers that takes no longer is made each time."""
PENDING_FRESH_S: Final = 60.0
"""How long a count that takes longer serves."""
MAX_PASSED_OVER: Final = 1_000
"""Due rows of held-back tenants that a look passes over before it goes by tenant."""
MAX_NEWEST_ROWS: Final = 500
"""Of what came due last, read by a look under backlog."""
MAX_SWEEP_STEPS: Final = 1_000
"""Index searches of one look for tenants that have something due."""
MAX_WAITING_TENANTS: Final = 10_000
"""Tenants remembered from one look to the next; the sweep waits while there are more."""
SWEEP_REST_S: Final = 1.0
"""After a sweep that took several looks; what came due meanwhile is found without one."""

LEARN_EVERY: Final = 10_000
"""Commands between two questions whether the server knows the table; autovacuum goes by as many."""


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    """The bounds of one store."""

    start_timeout_s: float = START_TIMEOUT_S
    start_pause_s: float = START_PAUSE_S
    acquire_timeout_s: float = ACQUIRE_TIMEOUT_S
    lock_timeout_s: float = LOCK_TIMEOUT_S
    statement_timeout_s: float = STATEMENT_TIMEOUT_S
    question_timeout_s: float = QUESTION_TIMEOUT_S
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    reconnect_pause_s: float = RECONNECT_PAUSE_S
    cheap_count_s: float = CHEAP_COUNT_S
    pending_fresh_s: float = PENDING_FRESH_S
    max_passed_over: int = MAX_PASSED_OVER
    max_newest_rows: int = MAX_NEWEST_ROWS
    max_sweep_steps: int = MAX_SWEEP_STEPS
    max_waiting_tenants: int = MAX_WAITING_TENANTS
    sweep_rest_s: float = SWEEP_REST_S
    learn_every: int = LEARN_EVERY


DEFAULT_LIMITS: Final = PostgresLimits()
