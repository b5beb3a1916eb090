"""A constant load for hours, and what the service takes meanwhile: it must not take more and more."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, linear_regression

from tests.support.guarantees import conclude, exceeded
from tests.torture.site import Site

EVERY_S = 5.0
"""How often is looked."""
WARM_S = 600.0
"""Until then it may grow: caches fill, and Python keeps what it has once taken."""
STALL_EVERY_S = 30.0
"""How often it is stopped for some seconds while it warms up: each stall of the machine that is longer than
those before it leaves a larger backlog than there ever was, and takes memory that is then kept."""
STALLED_PART = 0.8
"""Of the time in which it warms up."""
JUDGED_AFTER_S = 1_800.0
"""Growth in less time than this is mostly chance: it is counted, but fails nothing."""
HOUR_S = 3_600.0
PROGRESS_S = 600.0

Look = tuple[float, dict[str, float]]


async def soak(
    folder: Path, *, seconds: float, per_second: float, warm_s: float = WARM_S, every_s: float = EVERY_S
) -> tuple[dict[str, object], list[str]]:
    """Load the service for so long; count what came of it, and how much more it took per hour."""
    site = Site(folder, seed=0)
    looks: list[Look] = []
    try:
        await site.open()
        over = asyncio.Event()
        working = asyncio.ensure_future(site.tenants.work(per_second, over))
        stalling = asyncio.ensure_future(_stall(site, STALLED_PART * min(warm_s, seconds / 2)))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (passed_s := loop.time() - began_s) < seconds:
            looks.append((passed_s, site.measured()))
            if passed_s // PROGRESS_S > (passed_s - every_s) // PROGRESS_S:
                told = ", ".join(f"{name} {value:.1f}" for name, value in looks[-1][1].items())
                print(f"after {passed_s / 60:.0f} min: {told}", file=sys.stderr, flush=True)
            await asyncio.sleep(every_s)
        over.set()
        await asyncio.gather(working, stalling)
        found = await site.settle()
    finally:
        await site.close()
    warm = [look for look in looks if look[0] >= min(warm_s, seconds / 2)]
    counts: dict[str, object] = {
        "timers accepted": found.accepted,
        "fired": found.fired,
        "lost": len(found.lost),
        "early": len(found.early),
        **{f"most {name}": round(max(look[name] for _, look in looks), 1) for name in looks[0][1]},
        **{f"growth per hour: {name}": round(growth(warm, name), 2) for name in looks[0][1]},
        **{f"memory in MB, {part} third": round(each, 1) for part, each in thirds(warm, "memory in MB")},
        "seconds": round(seconds),
    }
    return counts, found.violations + site.ended_by_itself


async def _stall(site: Site, seconds: float) -> None:
    """Let the service have had every backlog that a busy machine leaves."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while loop.time() + STALL_EVERY_S < until_s:
        await asyncio.sleep(STALL_EVERY_S)
        await site.freeze_service()


def growth(looks: Sequence[Look], name: str) -> float:
    """Return how much more of it is taken per hour, by a straight line through all looks."""
    return linear_regression([at for at, _ in looks], [look[name] for _, look in looks]).slope * HOUR_S


def thirds(looks: Sequence[Look], name: str) -> Iterator[tuple[str, float]]:
    """Return the mean of each third of all looks: what fills up grows less and less, what leaks does not."""
    size = -(-len(looks) // 3)
    for number, part in enumerate(("first", "second", "last")):
        values = [look[name] for _, look in looks[number * size : (number + 1) * size]]
        yield part, fmean(values or [looks[-1][1][name]])


def main() -> int:
    """Soak, print what was counted, and keep it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (60)")
    parser.add_argument("--rate", type=float, default=200, help="new timers per second (200)")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        counts, broken = asyncio.run(
            soak(Path(folder), seconds=options.minutes * 60, per_second=options.rate)
        )
    if options.minutes * 60 >= JUDGED_AFTER_S:
        broken += exceeded("make soak", counts)
    return conclude(counts, broken, options.record)


if __name__ == "__main__":
    sys.exit(main())
