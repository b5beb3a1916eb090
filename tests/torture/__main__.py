"""Torture the real service for a while, or let it work in peace, and count what came of it."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.support.guarantees import conclude
from tests.torture.ledger import Findings
from tests.torture.peace import in_peace
from tests.torture.site import NEMESES, Site

SERVICE, BROKER = "kill -9 of the service", "kill -9 of the broker"


async def torture(
    folder: Path, *, seconds: float, kills: int, per_second: float, seed: int, longest_s: float = 8.0
) -> tuple[Site, Findings]:
    """Put the service through random faults for so long, and longer until it was killed often enough.

    The broker is killed half as often as the service.
    """
    random = Random(seed)
    site = Site(folder, seed, longest_s)
    try:
        await site.open()
        over = asyncio.Event()
        working = asyncio.ensure_future(site.tenants.work(per_second, over))
        ends_at = time.monotonic() + seconds
        try:
            while (kind := _next(site, random, kills, time.monotonic() >= ends_at)) is not None:
                await site.suffer(kind)
                await asyncio.sleep(random.random())
        finally:
            over.set()
            await working
        return site, await site.settle()
    finally:
        await site.close()


def _next(site: Site, random: Random, kills: int, late: bool) -> str | None:
    faults = site.ledger.faults
    missing = [SERVICE] * (kills - faults[SERVICE]) + [BROKER] * (kills // 2 - faults[BROKER])
    if late:
        return random.choice(missing) if missing else None
    return random.choice([random.choice(missing or [SERVICE]), random.choice(sorted(NEMESES))])


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder:
        started = time.monotonic()
        if options.timers:
            counts, broken = asyncio.run(in_peace(Path(folder), options.timers))
        else:
            site, found = asyncio.run(
                torture(
                    Path(folder),
                    seconds=options.minutes * 60,
                    kills=options.kills,
                    per_second=options.rate,
                    seed=options.seed,
                )
            )
            broken = found.violations + site.ended_by_itself
            counts = site.ledger.summary(found, **{f"most {name}": most for name, most in site.most.items()})
            counts["ended by itself"] = len(site.ended_by_itself)
        counts["seconds"] = round(time.monotonic() - started)
    return conclude(counts, broken, options.record)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--kills", type=int, default=0, help="go on until the service was killed so often")
    parser.add_argument("--rate", type=float, default=60, help="new timers per second (60)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the order of the faults (1)")
    parser.add_argument("--timers", type=int, default=0, help="instead: this many timers and no fault at all")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    return parser


if __name__ == "__main__":
    sys.exit(main())
