"""Durable functions on the real service, whose time stands until the test moves it."""

from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from timer_client.flows import Flows, Run, RunState, SqliteJournal
from timer_service.testing.kit import TimerServiceKit


class Order(BaseModel):
    """What a run is started with."""

    id: str
    cents: int


def _define(flows: Flows, done: list[str]) -> None:
    async def charge(order: Order) -> int:
        done.append(f"charged {order.cents}")
        return order.cents

    async def ship(order: Order) -> str:
        done.append(f"shipped {order.id}")
        return "shipped"

    @flows.flow("order")
    async def order(run: Run, order: Order) -> str:
        await run.step("charge", charge, order)
        await run.sleep("cooling-off", timedelta(days=3))
        if await run.wait("approved", timeout=timedelta(days=1)) is None:
            return "refunded"
        return await run.step("ship", ship, order)


async def test_a_run_goes_on_after_three_days_with_another_worker(
    timer_service: TimerServiceKit, tmp_path: Path
) -> None:
    journal, done = SqliteJournal(tmp_path / "journal.db"), list[str]()
    await journal.migrate()
    async with timer_service.timers() as timers:
        flows = Flows(timers, journal, name="billing")
        _define(flows, done)
        async with flows.worker():
            started = [await flows.start("order", id="one", input=Order(id="one", cents=5)) for _ in range(2)]
            await flows.start("order", id="two", input=Order(id="two", cents=7))
            await timer_service.settle()
        asleep = await flows.get("one")
        async with flows.worker():
            await timer_service.advance(days=3)
            await flows.signal("one", "approved", by="ann")
            await timer_service.advance(days=1)
        runs = [(run.id, run.state, run.result) async for run in flows.list()]
    journal.close()

    assert started == [True, False]
    assert (asleep.state, asleep.due_at) == (RunState.SLEEPING, timer_service.now() - timedelta(days=1))
    assert runs == [("one", RunState.COMPLETED, "shipped"), ("two", RunState.COMPLETED, "refunded")]
    assert sorted(done) == ["charged 5", "charged 7", "shipped one"]
