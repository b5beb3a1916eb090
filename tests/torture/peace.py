"""Many timers and no fault: each fires once, counted before the broker drops repetitions."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from tests.support import messages
from tests.torture.ledger import Order, read_rows
from tests.torture.load import TENANTS, now_ms
from tests.torture.site import Site

AT_ONCE = 500
"""Commands that are on their way together."""
SPREAD_MS = 30_000
"""The timers are due over so long, some of them while others are still being sent."""
LIMIT_S = 1_800.0


async def in_peace(folder: Path, timers: int) -> tuple[dict[str, object], list[str]]:
    """Schedule this many timers, wait for all of them, and count."""
    site = Site(folder, seed=0)
    try:
        await site.open()
        await _schedule(site, timers)

        async def all_fired() -> bool:
            return len(site.ledger.published) == timers

        await site.until(all_fired, "every timer to fire", LIMIT_S)
        await site.until(site.nothing_is_left, "every timer to be marked")
        code = await asyncio.to_thread(site.service.terminate)
        await site.tenants.read_events()
        found = site.ledger.check(read_rows(site.db_path), now_ms())
    finally:
        await site.close()
    counts: dict[str, object] = {
        "timers accepted": found.accepted,
        "fired": found.fired,
        "lost": len(found.lost),
        "early": len(found.early),
        "published more than once": found.published_again,
        "stored more than once": found.stored_again,
    }
    repeated = [f"{found.published_again} published and {found.stored_again} stored more than once"]
    wrong = [] if code == 0 else [f"exit code {code}"]
    again = found.published_again or found.stored_again
    return counts, [*found.violations, *wrong, *(repeated if again else [])]


async def _schedule(site: Site, timers: int) -> None:
    for first in range(0, timers, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, timers))
        await asyncio.gather(*(_one(site, number) for number in numbers))


async def _one(site: Site, number: int) -> None:
    tenant, call = TENANTS[number % len(TENANTS)], f"order-{number}"
    due_ms = now_ms() + number * 7_919 % SPREAD_MS
    site.ledger.attempted += 1
    site.ledger.tried_dues[tenant, call].add(due_ms)
    envelope = messages.schedule(tenant, call, datetime.fromtimestamp(due_ms / 1000, UTC))
    await site.tenants.until_stored(f"timer.commands.{tenant}.ScheduleTimer", envelope)
    site.ledger.orders[tenant, call].append(Order("schedule", due_ms))
