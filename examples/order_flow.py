"""An order that waits: charged, cooled off, then approved and shipped, or refunded.

    timer-service dev                        # in another terminal, or `make run`
    python examples/order_flow.py order-42   # kill it when you like, start it again: the order continues

While a run sleeps, none of it is in memory; what it has done is recorded in orders.db.
"""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta

import nats
from pydantic import BaseModel

from timer_client import Timers
from timer_client.flows import Flows, Run, RunState, SqliteJournal

SECONDS = float(os.environ.get("SECONDS", "5"))
"""How long an order cools off; it waits twice as long for approval."""


class Order(BaseModel):
    id: str
    is_large: bool = False
    cooling_off: timedelta = timedelta(seconds=SECONDS)
    approval: timedelta = timedelta(seconds=2 * SECONDS)


async def charge(order: Order) -> str:
    print("charged", order.id, flush=True)
    return f"receipt of {order.id}"


async def ship(order: Order) -> str:
    print("shipped", order.id, flush=True)
    return "shipped"


async def refund(database: sqlite3.Connection, receipt: str) -> None:
    """Write to the database of the journal: this and the record that it was done are one commit."""
    database.execute("CREATE TABLE IF NOT EXISTS refunds (receipt TEXT NOT NULL)")
    database.execute("INSERT INTO refunds VALUES (?)", (receipt,))


async def process(run: Run, order: Order) -> str:
    """Run from the top whenever it is woken; what is recorded under a name is not done again."""
    receipt = await run.step("charge", charge, order)
    await run.sleep("cooling-off", order.cooling_off)
    if order.is_large and await run.wait("approved", timeout=order.approval) is None:
        await run.transaction("refund", refund, receipt)
        return "refunded"
    return await run.step("ship", ship, order)


def define(flows: Flows) -> None:
    flows.flow("order", version=1)(process)


async def main(order: Order) -> None:
    async with await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as connection:
        with closing(SqliteJournal("orders.db")) as journal:
            await journal.migrate()
            flows = Flows(Timers(connection, tenant="acme"), journal, name="orders")
            define(flows)
            # Another worker may have died with this order in hand: wait 5 s for a sign of life, not 30.
            async with flows.worker(ack_wait=timedelta(seconds=5)):
                is_new = await flows.start("order", id=order.id, input=order)
                print("started" if is_new else "continues", order.id, flush=True)
                while (run := await flows.get(order.id)).state in (RunState.SLEEPING, RunState.RUNNING):
                    await asyncio.sleep(0.1)
    print(run.id, run.result or run.error)


if __name__ == "__main__":
    asyncio.run(main(Order(id=sys.argv[1], is_large="--large" in sys.argv)))
