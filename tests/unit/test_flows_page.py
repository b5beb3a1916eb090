"""The code of docs/flows.md and of examples/order_flow.py, run in virtual time."""

import asyncio
import importlib.util
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import nats
import pytest
from pydantic import BaseModel

from tests.support.documents import ROOT, marked_blocks
from timer_client import Timers
from timer_client.flows import Flows, MemoryJournal, Run, RunState, SqliteJournal, StepFailed
from timer_client.testing import FakeTimers, crash_everywhere

PAGE = "docs/flows.md"
done: list[str] = []


class Order(BaseModel):
    id: str


async def charge(order: Order) -> str:
    done.append("charged")
    return f"receipt of {order.id}"


async def ship(order: Order) -> str:
    done.append("shipped")
    return "shipped"


async def courier(order: Order) -> str:
    raise ConnectionError("nobody there")


async def complain(why: str) -> None:
    done.append(why)


async def remind(order: Order, day: int) -> int:
    done.append(f"day {day}")
    return 1


async def refund(database: sqlite3.Connection, receipt: str) -> None:
    done.append(f"refunded {receipt}")


def written(name: str) -> Any:
    """Return the function of one block of the page; what it uses are the names of this module."""
    names = {**globals(), "Run": Run, "StepFailed": StepFailed, "asyncio": asyncio, "nats": nats}
    if name != "order":
        names["order"] = written("order")
    exec(marked_blocks(PAGE)[f"flow: {name}"], names)
    return next(value for key, value in reversed(names.items()) if callable(value))


@asynccontextmanager
async def flows_with(timers: Timers, function: Callable[..., Any]) -> AsyncIterator[Flows]:
    with closing(MemoryJournal()) as journal:
        await journal.migrate()
        flows = Flows(timers, journal, name="billing")
        flows.flow("order", version=1)(function)
        async with flows.worker():
            yield flows


SIGNALLED = {"approved": {"by": "ann"}}
PASSED: dict[str, tuple[dict[str, dict[str, str]], Any]] = {
    "order": (SIGNALLED, "shipped"),
    "reminders": ({}, 3),
    "cancellable": ({"cancelled": {"why": "too late"}}, "cancelled"),
    "fallback": ({}, "shipped"),
    "branches": ({}, ["shipped", "receipt of 42"]),
}
"""What each flow of the page is told, and what it returns."""
OTHERS = ("program", "outbox", "test", "crash")


def test_no_code_of_the_page_is_left_out() -> None:
    assert {name.removeprefix("flow: ") for name in marked_blocks(PAGE)} == {*PASSED, *OTHERS}


@pytest.mark.parametrize("name", PASSED)
async def test_a_flow_of_the_page_does_what_it_says(name: str) -> None:
    signals, result = PASSED[name]
    timers = FakeTimers()

    async with flows_with(timers, written(name)) as flows:
        assert await flows.start("order", id="order-42", input=Order(id="42"))
        assert not await flows.start("order", id="order-42", input=Order(id="43"))
        for signal, payload in signals.items():
            assert await flows.signal("order-42", signal, **payload)
            assert not await flows.signal("order-42", signal)
        await timers.advance(days=30)
        run = await flows.get("order-42")

    assert (run.state, run.result) == (RunState.COMPLETED, result)
    assert await timers.all_scheduled() == []


@pytest.mark.parametrize("name", ["test", "crash"])
async def test_a_test_of_the_page_passes(name: str) -> None:
    await written(name)()


async def test_a_sleeping_run_is_named_listed_and_cancelled() -> None:
    timers = FakeTimers()

    async with flows_with(timers, written("order")) as flows:
        await flows.start("order", id="order-42", input=Order(id="42"))
        await timers.settle()
        timer = await timers.assert_scheduled("flow/billing/order-42/1/cooling-off", in_=timedelta(days=3))
        [run] = [run async for run in flows.list(flow="order", version=1, state=RunState.SLEEPING)]
        assert (run.id, run.due_at) == ("order-42", timer.due_at)

        assert await flows.cancel("order-42")

        assert not await flows.cancel("order-42")
        await timers.refute_scheduled("flow/billing/order-42/1/cooling-off")
        assert (await flows.get("order-42")).state is RunState.CANCELLED


async def test_a_run_starts_with_the_transaction_of_its_order_or_not_at_all(tmp_path: Path) -> None:
    timers, path = FakeTimers(), tmp_path / "orders.db"
    with closing(SqliteJournal(path)) as journal, closing(sqlite3.connect(path)) as database:
        await journal.migrate()
        database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        flows = Flows(timers, journal, name="billing")
        flows.flow("order")(written("order"))

        await written("outbox")(database, flows, Order(id="42"))
        with pytest.raises(sqlite3.IntegrityError):
            await written("outbox")(database, flows, Order(id="42"))
        await flows.start("order", id="43", input=Order(id="43"), connection=database)
        database.rollback()
        async with flows.worker():
            await timers.advance(days=30)

        assert [(run.id, run.result) async for run in flows.list()] == [("42", "refunded")]


@pytest.mark.parametrize(("is_large", "ends"), [(False, "shipped"), (True, "refunded")])
async def test_the_example_survives_everything(*, is_large: bool, ends: str) -> None:
    example = load_example()
    order = example.Order(
        id="order-42", is_large=is_large, cooling_off=timedelta(days=3), approval=timedelta(days=1)
    )

    rehearsal = await crash_everywhere(example.process, order)

    assert rehearsal.result == ends


def load_example() -> ModuleType:
    """Import examples/order_flow.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("order_flow", ROOT / "examples" / "order_flow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
