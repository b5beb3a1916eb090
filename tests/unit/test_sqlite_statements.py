"""Timers are saved by few statements, however they differ: each that SQLite keeps takes 43 KB."""

import gc
import sys
from dataclasses import replace
from itertools import combinations

from tests.support.timers import GLOBEX, at, scheduled_timer
from timer_service.adapters.sqlite import statements
from timer_service.domain.messages import CorrelationId, TenantId, Trace
from timer_service.domain.timer import Timer, TimerState

DIFFERENCES: list[dict[str, object]] = [
    {"tenant_id": TenantId(GLOBEX)},
    {"state": TimerState.CANCELLED, "cancelled_at": at(1)},
    {"due_at": at(70)},
    {"generation": 2},
    {"registered_at": at(1)},
    {"correlation_id": CorrelationId("order")},
    {"trace": Trace("00-1", None)},
]
LARGE = 100
REPEATS = 200


def _batches(size: int) -> list[list[Timer]]:
    """Return a batch for each pair of ways in which one of its timers differs from the others."""
    alike = [scheduled_timer(f"order-{n}") for n in range(size)]
    return [
        [*alike[1:], replace(alike[0], **one | other)]  # type: ignore[arg-type]
        for one, other in combinations(DIFFERENCES, 2)
    ]


def _statements(batches: list[list[Timer]]) -> set[str]:
    return {statements.save(timers)[0] for timers in batches}


def test_small_batches_are_saved_by_one_statement_whatever_differs() -> None:
    assert len(_statements(_batches(2) + _batches(8))) == 1


def test_single_timers_are_saved_by_one_statement() -> None:
    assert len(_statements([[timer] for batch in _batches(2) for timer in batch])) == 1


def test_a_large_batch_reads_only_what_differs() -> None:
    sql, _ = statements.save(_batches(LARGE)[0])
    differs = ["tenant_id", "service_call_id", "state", "cancelled_at", "pending_due_ms"]
    assert sql.count("value ->>") == len(differs), "what all have in common is bound once"


def test_what_was_saved_leaves_nothing_in_memory() -> None:
    def save() -> int:
        for _ in range(REPEATS):
            statements.save(few)
            statements.save(many)
        return sys.getallocatedblocks()

    few, many = _batches(2)[0], _batches(LARGE)[0]
    gc.collect()
    save()

    before = save()
    assert save() - before < REPEATS / 2
