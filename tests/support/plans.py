"""What a statement costs the server: counted in rows and pages, not in time."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

MODES = ("force_custom_plan", "force_generic_plan")
"""As the driver runs a statement: planned for these values, and once for all values."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a statement took."""

    rows: int
    """Read from tables and indexes, those that a filter threw away included."""
    buffers: int
    indexes: frozenset[str]
    scans_table: bool
    heap_fetches: int
    """Rows of the table that an index alone was meant to answer for."""
    text: str


async def costs(url: str, sql: str, parameters: Sequence[object], setting: str = "") -> list[Cost]:
    """Run a statement in each mode, undo it, and return what each run took."""
    connection = await asyncpg.connect(url)
    try:
        found = []
        for mode in MODES:
            await connection.execute(f"SET plan_cache_mode = {mode}")
            transaction = connection.transaction()
            await transaction.start()
            if setting:
                await connection.execute(setting)
            [(text,)] = await connection.fetch(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", *parameters
            )
            await transaction.rollback()
            found.append(_cost(text))
        return found
    finally:
        await connection.close()


def _cost(text: str) -> Cost:
    plan = json.loads(text)[0]["Plan"]
    scans = [node for node in _nodes(plan) if node.get("Relation Name") == "timer_schedules"]
    return Cost(
        rows=round(sum(_rows(node) for node in scans)),
        buffers=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
        indexes=frozenset(node["Index Name"] for node in _nodes(plan) if "Index Name" in node),
        scans_table=any(node["Node Type"] == "Seq Scan" for node in scans),
        heap_fetches=sum(node.get("Heap Fetches", 0) for node in scans),
        text=text,
    )


def _rows(node: dict[str, Any]) -> float:
    kept = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float((kept + node.get("Rows Removed by Index Recheck", 0)) * node["Actual Loops"])


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from _nodes(part)
