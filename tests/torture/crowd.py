"""Very many tenants, each with one callback to a receiver of its own: all come once, in little memory."""

import argparse
import asyncio
import re
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.guarantees import conclude, exceeded
from tests.torture.callback_site import Receiver, Site
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.callback import Callback
from timer_service.domain.messages import ScheduleTimer, ServiceCallId, TenantId
from timer_service.timers import NEWEST

LOT = 2_000


async def crowd(folder: Path, count: int) -> dict[str, Any]:
    """Let all of them come due at once, and count what arrives."""
    async with Receiver().receiving("0.0.0.0") as receiver:
        site = Site(folder, receiver, allow="127.0.0.0/8")
        service = site.services[0]
        service.folder.mkdir(parents=True)
        await _fill(service.folder / "timers.db", receiver.port, count)
        async with site.running():
            await site.until(lambda: len(receiver.calls) == count, "the callbacks")
            status = Path(f"/proc/{service.pid}/status").read_text()
    highest = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert highest is not None
    return {
        "tenants, each with a receiver of its own": count,
        "called once": sum(len(calls) == 1 for calls in receiver.calls.values()),
        "called more than once": sum(len(calls) > 1 for calls in receiver.calls.values()),
        "most memory of the service in MB": round(int(highest[1]) * 1024 / 1e6),
    }


async def _fill(path: Path, port: int, count: int) -> None:
    """Keep a timer for each tenant, all of them due."""
    now = datetime.now(UTC)
    async with open_sqlite_store(path, lambda: datetime.now(UTC)) as store:
        for first in range(0, count, LOT):
            asked = [_timer(number, port, now) for number in range(first, min(first + LOT, count))]
            await store.decide(asked, now)


def _timer(number: int, port: int, now: datetime) -> ScheduleTimer:
    tenant, address = (
        f"tenant-{number}",
        f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}",
    )
    return ScheduleTimer(
        TenantId(tenant),
        ServiceCallId(f"order-{number}"),
        now - timedelta(seconds=1),
        None,
        NEWEST,
        callback=Callback(f"http://{address}:{port}/hook"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crowd-", ignore_cleanup_errors=True) as folder:
        counts = asyncio.run(crowd(Path(folder), options.count))
    return conclude(counts, exceeded("make callback-crowd", counts), options.record)


if __name__ == "__main__":
    sys.exit(main())
