"""One of the Python queues on PostgreSQL: take jobs that are all due, then run them; nothing else of ours.

Run by an interpreter that has the queue installed: postgres_worker.py QUEUE URL COUNT.
"""

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

BATCH: Final = 1_000
CONCURRENCY: Final = 50


async def pgqueuer(url: str, count: int) -> tuple[float, float]:
    """Enqueue in bulk, then drain in batches as large as the service's own."""
    asyncpg = importlib.import_module("asyncpg")
    link = await asyncpg.connect(url)
    driver = importlib.import_module("pgqueuer.db").AsyncpgDriver(link)
    queue = importlib.import_module("pgqueuer").PgQueuer(driver)
    queries = importlib.import_module("pgqueuer.queries").Queries(driver)
    await queries.install()
    ran = 0

    @queue.entrypoint("fire")  # type: ignore[untyped-decorator]
    async def fire(_: Any) -> None:
        nonlocal ran
        ran += 1

    async def take() -> None:
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            await queries.enqueue(["fire"] * size, [b"order"] * size, [0] * size, [timedelta()] * size)

    async def work() -> None:
        types = importlib.import_module("pgqueuer.types")
        await queue.qm.run(
            batch_size=BATCH,
            mode=types.QueueExecutionMode.drain,
            max_concurrent_tasks=2 * BATCH,
            dequeue_timeout=timedelta(seconds=1),
        )

    return await _timed(take), await _timed(work, lambda: ran >= count)


async def procrastinate(url: str, count: int) -> tuple[float, float]:
    """Defer in bulk, then let one worker run until nothing is left."""
    package = importlib.import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=url))
    ran = 0

    @app.task(name="fire")  # type: ignore[untyped-decorator]
    async def fire(number: int) -> None:
        nonlocal ran
        ran += number >= 0

    async def take() -> None:
        due = app.tasks["fire"].configure(schedule_at=datetime.now(UTC))
        for first in range(0, count, BATCH):
            jobs = [{"number": number} for number in range(first, min(first + BATCH, count))]
            await due.batch_defer_async(*jobs)

    async def work() -> None:
        await app.run_worker_async(wait=False, concurrency=CONCURRENCY, delete_jobs="never")

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        return await _timed(take), await _timed(work, lambda: ran >= count)


async def _timed(work: Callable[[], Awaitable[None]], done: Callable[[], bool] = lambda: True) -> float:
    started = time.perf_counter()
    await work()
    taken_s = time.perf_counter() - started
    if not done():
        sys.exit("not all jobs ran")
    return taken_s


if __name__ == "__main__":
    own = {"pgqueuer": pgqueuer, "procrastinate": procrastinate}[sys.argv[1]]
    taken_s, ran_s = asyncio.run(own(sys.argv[2], int(sys.argv[3])))
    print(json.dumps({"taken": int(sys.argv[3]) / taken_s, "ran": int(sys.argv[3]) / ran_s}))
