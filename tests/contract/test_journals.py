"""What durable functions promise, on every journal."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from nats.aio.client import Client
from pydantic import BaseModel

from tests.support.flows import JOURNALS, NIGHT, Overheard, Shop
from tests.support.patience import PATIENCE_S
from timer_client import Timers
from timer_client.errors import Fenced, Later, ServiceAway
from timer_client.flows import FlowError, Flows, Run, RunNotFound, RunState, StepFailed, Suspension, Worker
from timer_client.flows.reconcile import GRACE_MS, reconcile
from timer_client.requests import Explanation
from timer_client.testing import FakeTimers
from timer_service.testing import START

ONCE = [timedelta(seconds=1)]
ENDLESS = timedelta(days=900_000_000)
MAX_TURNS = 30
"""Of the event loop, more than a transaction in memory takes."""


@pytest.fixture(params=list(JOURNALS))
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """A shop with each kind of journal."""
    async with JOURNALS[request.param](tmp_path) as connect, connect() as journal:
        opened = Shop(journal)
        await opened.prepare()
        yield opened


async def _run(shop: Shop, flows: Flows, *, days: int = 100) -> tuple[RunState, Any, str | None]:
    """Start the one flow of these and let time pass until it has ended."""
    ((name, _),) = flows.flows
    async with flows.worker():
        await flows.start(name, id="one")
        await shop.timers.advance(days=days)
    run = await flows.get("one")
    return run.state, run.result, run.error


# Steps


async def test_a_recorded_step_is_not_run_again(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[str]:
        first = await run.step("first", shop.do, "a")
        await run.sleep("night", NIGHT)
        return [first, await run.step("second", shop.do, "b"), run.id]

    assert await _run(shop, flows) == (RunState.COMPLETED, ["a", "b", "one"], None)
    assert shop.done == ["a", "b"]


async def test_values_are_kept_by_their_annotations(shop: Shop) -> None:
    flows = shop.flows()

    class Receipt(BaseModel):
        at: datetime
        cents: int

    async def charge(cents: int) -> Receipt:
        return Receipt(at=START, cents=cents)

    async def bare(cents: int):  # type: ignore[no-untyped-def]
        return {"cents": (cents,)}

    @flows.flow("order")
    async def order(run: Run, cents: int) -> tuple[Receipt, Any]:
        receipt = await run.step("charge", charge, cents)
        assert isinstance(receipt, Receipt)
        plain = await run.step("bare", bare, cents)
        assert plain == {"cents": [cents]}
        await run.sleep("night", NIGHT)
        return receipt, plain

    async with flows.worker():
        await flows.start("order", id="one", input=7)
        await shop.timers.advance(days=1)

    assert (await flows.get("one")).result == (Receipt(at=START, cents=7), {"cents": [7]})


@pytest.mark.parametrize("value", [float("nan"), {1: object()}, "x" * 300_000, "\ud800"])
async def test_a_value_that_cannot_be_kept_is_refused_when_it_is_recorded(shop: Shop, value: object) -> None:
    flows = shop.flows()

    async def give() -> Any:
        return value

    @flows.flow("order", retry_delays=[])
    async def order(run: Run, _: Any) -> None:
        await run.step("give", give)

    state, _, error = await _run(shop, flows)

    assert state is RunState.FAILED
    assert error is not None
    assert error.startswith("StepFailed: give: FlowError: the result of 'give' ")
    with pytest.raises(FlowError, match="input"):
        await flows.start("order", id="two", input=value)


async def test_a_name_that_is_used_twice_is_an_error_at_once(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order", retry_delays=[])
    async def order(run: Run, _: None) -> None:
        for number in range(2):
            await run.step("item", shop.do, f"keyed {number}", key=number)
        await run.step("same", shop.do, "a")
        await run.step("same", shop.do, "b")

    state, _, error = await _run(shop, flows)

    assert (state, error) == (
        RunState.FAILED,
        "FlowError: 'same' is used twice in one run: give key= in a loop",
    )
    assert shop.done == ["keyed 0", "keyed 1", "a"]


async def test_a_name_stands_for_one_kind_of_step(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order", retry_delays=[])
    async def order(run: Run, _: None) -> None:
        if not shop.done:  # As if the function were changed while it sleeps.
            await run.step("item", shop.do, "a")
        else:
            await run.sleep("item", NIGHT)
        await run.sleep("night", NIGHT)

    state, _, error = await _run(shop, flows)

    assert (state, error) == (
        RunState.FAILED,
        "FlowError: 'item' was recorded as a step: give the sleep another name",
    )


async def test_a_step_is_whatever_can_be_called(shop: Shop) -> None:
    class Doubled:
        async def __call__(self, text: str) -> str:
            return text * 2

    flows = shop.flows()

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[str]:
        first = await run.step("first", partial(shop.do, "a"))
        return [first, await run.step("second", Doubled(), "b")]

    assert await _run(shop, flows) == (RunState.COMPLETED, ["a", "bb"], None)


async def test_what_is_defined_wrongly_is_refused_at_once(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order")
    async def order(run: Run, _: None) -> None:
        pass

    with pytest.raises(ValueError, match="flow 'order' version 1 is already defined"):
        flows.flow("order")
    with pytest.raises(ValueError, match="name must be 1 to 40 of"):
        Flows(flows.timers, flows.journal, name="order service")


async def test_results_are_found_by_name_whatever_the_order(shop: Shop) -> None:
    old, new = shop.flows(), shop.flows()

    @old.flow("order")
    async def before(run: Run, _: None) -> None:
        for name in ("first", "second", "third"):
            await run.step(name, shop.do, name)
        await run.sleep("night", NIGHT)

    @new.flow("order")
    async def after(run: Run, _: None) -> list[str]:
        found = [await run.step(name, shop.do, f"new {name}") for name in ("third", "fourth", "first")]
        await run.sleep("night", NIGHT)
        return found

    async with old.worker():
        await old.start("order", id="one")
        await shop.timers.settle()
    async with new.worker():
        await shop.timers.advance(days=1)

    assert (await new.get("one")).result == ["third", "new fourth", "first"]
    assert shop.done == ["first", "second", "third", "new fourth"]


async def test_what_a_run_knows_never_reaches_the_broker(shop: Shop) -> None:
    said: list[tuple[str, bytes]] = []
    broker = Overheard(shop.timers._service.broker, said)
    flows = Flows(Timers(cast(Client, broker), tenant=shop.timers.tenant), shop.journal, name="shop")
    flows.timers.stopwatch = shop.timers.stopwatch

    async def fail(secret: str) -> None:
        raise ZeroDivisionError(secret)

    @flows.flow("order", retry_delays=ONCE)
    async def order(run: Run, secret: str) -> str:
        await run.step("step", shop.do, f"{secret} result")
        await run.transaction("transaction", shop.insert, f"{secret} effect")
        await run.wait("told", timeout=NIGHT)
        await run.step("fail", fail, f"{secret} failure")
        return secret

    async with flows.worker():
        await flows.start("order", id="one", input="secret")
        await shop.timers.settle()
        await flows.signal("one", "told", text="secret")
        await shop.timers.advance(days=1)

    assert "secret failure" in ((await flows.get("one")).error or "")
    assert len(said) > 0
    assert [each for each in said if "secret" in each[0] or b"secret" in each[1]] == []


async def test_a_failure_that_was_caught_stays_one(shop: Shop) -> None:
    flows = shop.flows()

    async def decline() -> str:
        await shop.do("declined")
        raise ZeroDivisionError("no money")

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        try:
            await run.step("charge", decline)
        except StepFailed as failure:
            await run.sleep("night", NIGHT)
            return f"{failure.step} {failure.kind} {failure.message}"
        return "paid"

    assert await _run(shop, flows) == (RunState.COMPLETED, "charge ZeroDivisionError no money", None)
    assert shop.done == ["declined"]


async def test_a_step_whose_work_somebody_else_has_cancelled_has_failed(shop: Shop) -> None:
    flows = shop.flows()

    async def interrupted() -> None:
        raise asyncio.CancelledError

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        try:
            await run.step("step", interrupted)
        except StepFailed as failure:
            return failure.kind
        return "done"

    assert (await _run(shop, flows))[1] == "RuntimeError"


@pytest.mark.parametrize("sleeps", [True, False], ids=["sleep", "wait"])
async def test_what_would_end_after_the_last_year_is_an_error(shop: Shop, sleeps: bool) -> None:
    flows = shop.flows()

    @flows.flow("order", retry_delays=[timedelta(minutes=1)])
    async def order(run: Run, _: None) -> None:
        await (run.sleep("long", ENDLESS) if sleeps else run.wait("long", timeout=ENDLESS))

    state, _, error = await _run(shop, flows)

    assert (state, "must not be longer than 1,000 years" in str(error)) == (RunState.FAILED, True)
    assert [run.id async for run in flows.list()] == ["one"]


async def test_a_failure_that_was_caught_before_branches_or_in_one_that_has_ended_stays_one(
    shop: Shop,
) -> None:
    flows = shop.flows()

    async def fail_at_first(name: str) -> str:
        await shop.do(name)
        if shop.done.count(name) == 1:
            raise ZeroDivisionError
        return "done"

    async def attempt(run: Run, name: str) -> str:
        try:
            return await run.step(name, fail_at_first, name)
        except StepFailed as failure:
            return failure.kind

    async def sleep(run: Run) -> str:
        await run.sleep("night", NIGHT)
        return "awake"

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[Any]:
        return [
            await attempt(run, "before"),
            await run.gather(ends=partial(attempt, name="inside"), sleeps=sleep),
            await attempt(run, "after"),
            await run.gather(),
        ]

    failed = "ZeroDivisionError"
    result = [failed, {"ends": failed, "sleeps": "awake"}, failed, {}]
    assert await _run(shop, flows) == (RunState.COMPLETED, result, None)
    assert shop.done == ["before", "inside", "after"]


async def test_a_transaction_has_its_effect_with_its_record_or_not_at_all(shop: Shop) -> None:
    flows = shop.flows()
    tries = 0

    async def effect(connection: Any, name: str) -> str:
        nonlocal tries
        tries += 1
        await shop.insert(connection, name)
        if tries == 1:
            raise ZeroDivisionError
        return name

    @flows.flow("order", retry_delays=ONCE)
    async def order(run: Run, _: None) -> str:
        refund = await run.transaction("refund", effect, "refund")
        await run.sleep("night", NIGHT)
        return refund

    assert await _run(shop, flows) == (RunState.COMPLETED, "refund", None)
    assert (await shop.effects(), tries) == (["refund"], 2)


async def test_a_transaction_that_is_cancelled_anywhere_keeps_nobody_out(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        return await run.transaction("refund", shop.insert, "refund")

    await flows.start("order", id="one")
    for turns in range(MAX_TURNS):
        firing = shop.firing(flows, "one", deliveries=1 + turns)
        handling = asyncio.ensure_future(Worker(flows).handle(firing))
        for _ in range(turns):
            await asyncio.sleep(0)
        handling.cancel()
        await asyncio.wait({handling})
    await Worker(flows).handle(shop.firing(flows, "one", deliveries=1 + MAX_TURNS))

    assert (await flows.get("one")).result == "refund"
    assert await shop.effects() == ["refund"]


# Sleeps and waits


async def test_a_sleep_says_how_late_it_was(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[Any]:
        began = await run.now()
        late = await run.sleep("night", NIGHT)
        passed = await run.sleep_until("passed", began)
        return [began, late, passed, await run.now()]

    async with flows.worker():
        await flows.start("order", id="one")
        await shop.timers.settle()
    await shop.timers.advance(NIGHT)
    # Not for so long that the run counts as overdue, and is woken again beside its event.
    await shop.timers.advance(seconds=GRACE_MS // 2_000)
    async with flows.worker():
        await shop.timers.settle()
    run = await flows.get("one")

    # The service was in time, the worker was not: what the run sees is the time of the event.
    assert run.result == ["2026-01-01T12:00:00Z", "PT0S", "PT8H30S", "2026-01-01T20:00:30Z"]


async def test_now_stands_between_steps_and_is_the_same_when_the_function_runs_again(shop: Shop) -> None:
    flows = shop.flows()
    seen: list[list[datetime]] = []

    async def wait_for_time() -> None:
        await asyncio.get_running_loop().create_task(_pass(shop, timedelta(minutes=1)))

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[datetime]:
        moments: list[datetime] = []
        seen.append(moments)
        moments += [await run.now(), await run.now()]
        await run.step("work", wait_for_time)
        moments.append(await run.now())
        await run.gather(a=lambda run: run.sleep("nap", NIGHT), b=lambda run: run.now())
        moments.append(await run.now())
        await run.sleep("night", NIGHT)
        return moments

    await flows.start("order", id="one")
    async with flows.worker():
        await shop.timers.advance(days=2)

    minute = timedelta(minutes=1)
    moments = [START, START, START + minute, START + minute + NIGHT]
    assert seen == [moments[:3], moments, moments]


async def _pass(shop: Shop, span: timedelta) -> None:
    """Let time pass while a handler is at work."""
    shop.timers._service.now += span


async def test_a_span_is_a_timedelta_and_a_moment_has_a_zone(shop: Shop) -> None:
    flows = shop.flows()
    wrong: dict[str, Callable[[Run], Any]] = {
        "span": lambda run: run.sleep("nap", 3600),  # type: ignore[arg-type]
        "timeout": lambda run: run.wait("told", timeout=3600),  # type: ignore[arg-type]
        "moment": lambda run: run.sleep_until("nap", datetime(2030, 1, 1)),
        "name must be": lambda run: run.sleep("a nap", NIGHT),
    }
    for name, call in wrong.items():
        flows.flow(name, retry_delays=[])(lambda run, _, call=call: call(run))

    async with flows.worker():
        for number, name in enumerate(wrong):
            await flows.start(name, id=f"run-{number}")
        await shop.timers.settle()

    errors = [run.error or "" async for run in flows.list(state=RunState.FAILED)]
    assert [name in error for name, error in zip(wrong, errors, strict=True)] == [True] * len(wrong)


async def test_branches_sleep_side_by_side_and_none_ends_another(shop: Shop) -> None:
    flows = shop.flows()

    async def nap(run: Run, span: timedelta) -> str:
        await run.step("down", shop.do, f"{span}")
        await run.sleep("nap", span)
        return (await run.now()).isoformat()

    @flows.flow("order")
    async def order(run: Run, _: None) -> dict[str, str]:
        return await run.gather(
            long=lambda run: nap(run, timedelta(days=3)), short=lambda run: nap(run, timedelta(days=1))
        )

    state, result, _ = await _run(shop, flows)

    assert state is RunState.COMPLETED
    assert result == {
        "long": (START + timedelta(days=3)).isoformat(),
        "short": (START + timedelta(days=1)).isoformat(),
    }
    assert sorted(shop.done) == ["1 day, 0:00:00", "3 days, 0:00:00"]


async def test_a_branch_that_fails_fails_the_run_after_the_others_have_stopped(shop: Shop) -> None:
    flows = shop.flows()

    async def fail() -> None:
        raise ZeroDivisionError("no")

    @flows.flow("order", retry_delays=[])
    async def order(run: Run, _: None) -> None:
        await run.gather(
            bad=lambda run: run.step("fail", fail),
            good=lambda run: run.step("do", shop.do, "good"),
            asleep=lambda run: run.sleep("night", NIGHT),
        )

    assert await _run(shop, flows, days=0) == (
        RunState.FAILED,
        None,
        "StepFailed: bad/fail: ZeroDivisionError: no",
    )
    assert shop.done == ["good"]
    assert await shop.timers.all_scheduled() == []


def _approval(shop: Shop, flows: Flows, limit: timedelta | None = NIGHT) -> None:
    @flows.flow("order")
    async def order(run: Run, _: None) -> Any:
        await run.sleep("first", timedelta(hours=1))
        return await run.wait("approved", timeout=limit)


async def test_a_signal_counts_before_the_wait_and_during_it_and_the_first_one_wins(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows, None)

    async with flows.worker():
        for name in ("early", "late"):
            await flows.start("order", id=name)
        await shop.timers.settle()
        counts = [await flows.signal("early", "approved", by=name) for name in ("ann", "bob")]
        await shop.timers.advance(hours=2)
        asleep = await flows.get("late")
        counts += [await flows.signal("late", "approved", by=name) for name in ("cid", "dan")]
        await shop.timers.settle()
        counts.append(await flows.signal("late", "approved", by="eve"))
    results = [(await flows.get(name)).result for name in ("early", "late")]

    assert counts == [True, False, True, False, False]
    assert (asleep.state, asleep.due_at) == (RunState.SLEEPING, None)
    assert results == [{"by": "ann"}, {"by": "cid"}]
    with pytest.raises(RunNotFound):
        await flows.signal("nobody", "approved")
    await flows.start("order", id="third")
    async with flows.worker():
        await shop.timers.settle()
        assert not await flows.signal("third", "first")  # It sleeps under that name.


async def test_a_wait_that_is_over_leaves_no_timer(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows)

    async with flows.worker():
        for name in ("told", "not-told"):
            await flows.start("order", id=name)
        await shop.timers.advance(hours=1)
        await flows.signal("told", "approved")
        left = [timer.service_call_id for timer in await shop.timers.all_scheduled()]
        await shop.timers.advance(NIGHT)
    results = [(await flows.get(name)).result for name in ("told", "not-told")]

    assert left == ["flow/shop/not-told/2/approved"]
    assert results == [{}, None]


async def test_a_wait_that_is_told_while_its_run_is_in_hand_ends_no_sleep_after_it(shop: Shop) -> None:
    flows = shop.flows()

    async def tell() -> bool:
        return await flows.signal("one", "approved")

    @flows.flow("order")
    async def order(run: Run, _: None) -> timedelta:
        await run.step("tell", tell)
        await run.wait("approved", timeout=timedelta(hours=1))
        return await run.sleep("night", NIGHT)

    async with flows.worker():
        await flows.start("order", id="one")
        await shop.timers.settle()
        timers = [(timer.service_call_id, timer.due_at) for timer in await shop.timers.all_scheduled()]
        await shop.timers.advance(days=1)

    assert timers == [("flow/shop/one/1/night", START + NIGHT)]
    assert (await flows.get("one")).result == timedelta()


async def test_suspension_cannot_be_taken_for_an_error(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("careful")
    async def careful(run: Run, _: None) -> str:
        try:
            await run.sleep("night", NIGHT)
        except Exception:
            return "caught"
        finally:
            # While it suspends this does nothing.
            await run.step("tidy", shop.do, "tidied")
        return "slept"

    @flows.flow("careless", retry_delays=[])
    async def careless(run: Run, _: None) -> str:
        try:
            await run.sleep("night", NIGHT)
        except BaseException:
            pass
        return "awake"

    @flows.flow("grouped")
    async def grouped(run: Run, _: None) -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.sleep("night", NIGHT))
        return "slept"

    async with flows.worker():
        for name in ("careful", "careless", "grouped"):
            await flows.start(name, id=name)
        await shop.timers.advance(days=1)
    found = [(run.id, run.state, run.result) async for run in flows.list()]

    assert found == [
        ("careful", RunState.COMPLETED, "slept"),
        ("careless", RunState.FAILED, None),
        ("grouped", RunState.COMPLETED, "slept"),
    ]
    assert "catch Exception, not BaseException" in ((await flows.get("careless")).error or "")
    assert shop.done == ["tidied"]


# Runs


async def test_a_run_is_started_once_and_keeps_its_flow(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("order")
    @flows.flow("other")
    async def order(run: Run, number: int) -> int:
        return number

    async with flows.worker():
        started = [await flows.start("order", id="one", input=number) for number in (1, 2)]
        await shop.timers.settle()
        started.append(await flows.start("order", id="one", input=3))

    assert started == [True, False, False]
    assert (await flows.get("one")).result == 1
    with pytest.raises(FlowError, match="belongs to flow 'order'"):
        await flows.start("other", id="one", input=1)
    for wrong in ("", "with space", "with/slash", "x" * 81):
        with pytest.raises(ValueError, match="id must be"):
            await flows.start("order", id=wrong)
    with pytest.raises(FlowError, match="not defined here"):
        await flows.start("unknown", id="two")


async def test_a_start_is_part_of_the_callers_transaction(shop: Shop) -> None:
    flows = shop.flows()

    @flows.flow("child")
    async def child(run: Run, _: None) -> str:
        return "done"

    async def start_and_fail(connection: Any) -> None:
        await flows.start("child", id="rolled-back", connection=connection)
        raise ZeroDivisionError

    async def start(connection: Any) -> None:
        await shop.insert(connection, "order")
        await flows.start("child", id="committed", connection=connection)

    @flows.flow("order", retry_delays=[])
    async def order(run: Run, _: None) -> None:
        await run.transaction("start", start)
        await run.transaction("fail", start_and_fail)

    async with flows.worker():
        await flows.start("order", id="one")
        await shop.timers.advance(days=1)

    assert (await flows.get("committed")).result == "done"
    assert await shop.effects() == ["order"]
    with pytest.raises(RunNotFound):
        await flows.get("rolled-back")


async def test_in_a_transaction_on_sqlite_a_start_without_its_connection_is_refused_instead_of_hanging(
    tmp_path: Path,
) -> None:
    async with JOURNALS["sqlite"](tmp_path) as connect, connect() as journal:
        shop = Shop(journal)
        await shop.prepare()
        flows = shop.flows()

        async def start(_: Any) -> None:
            await flows.start("order", id="two")

        @flows.flow("order", retry_delays=[])
        async def order(run: Run, _: None) -> None:
            await run.transaction("start", start)

        state, _, error = await _run(shop, flows)

    assert (state, str(error).partition(", ")[0]) == (
        RunState.FAILED,
        "StepFailed: start: FlowError: inside run.transaction",
    )


async def test_a_run_that_fails_is_tried_again_and_then_waits_for_somebody(shop: Shop) -> None:
    flows = shop.flows()
    is_broken = True

    @flows.flow("order", retry_delays=[timedelta(minutes=1), timedelta(minutes=5)])
    async def order(run: Run, _: None) -> str:
        await run.step("first", shop.do, "first")
        shop.done.append((await run.now()).isoformat())
        if is_broken:
            raise ZeroDivisionError("broken")
        return "mended"

    failed = await _run(shop, flows)
    attempts = (await flows.get("one")).attempts
    is_broken = False
    async with flows.worker():
        await flows.retry("one")
        await flows.retry("one")
        await shop.timers.settle()
        await flows.retry("one")

    assert (failed, attempts) == ((RunState.FAILED, None, "ZeroDivisionError: broken"), 3)
    assert (await flows.get("one")).result == "mended"
    assert shop.done == ["first", *[START.isoformat()] * 4]


async def test_a_cancelled_run_is_left_where_it_is(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows)

    async with flows.worker():
        await flows.start("order", id="one")
        await shop.timers.settle()
        cancelled = [await flows.cancel("one") for _ in range(2)]
        left = await shop.timers.all_scheduled()
        await shop.timers.advance(days=9)

    assert (cancelled, left) == ([True, False], [])
    assert (await flows.get("one")).state is RunState.CANCELLED
    assert not await flows.signal("one", "approved")
    flows.timers = type(shop.timers)()  # A service that has forgotten the timers.
    await flows.retry("one")
    assert not await flows.start("order", id="one")
    assert await flows.timers.all_scheduled() == []


async def test_a_run_keeps_its_version_and_a_worker_without_it_gives_it_back(shop: Shop) -> None:
    old, new = shop.flows(), shop.flows()

    async def describe(run: Run, version: str) -> str:
        await run.sleep("night", NIGHT)
        return version

    old.flow("order")(lambda run, _: describe(run, "old"))
    new.flow("order", version=2)(lambda run, _: describe(run, "new"))
    async with old.worker():
        await old.start("order", id="one")
        await shop.timers.settle()
    await new.start("order", id="two")

    worker = Worker(new)
    with pytest.raises(Later):
        await worker.handle(shop.firing(new, "one", "1/night"))
    untouched = await new.get("one")
    async with old.worker(), new.worker():
        await shop.timers.advance(days=1)

    assert (untouched.state, untouched.version) == (RunState.SLEEPING, 1)
    assert [(run.version, run.result) async for run in new.list()] == [(1, "old"), (2, "new")]
    assert [run.id async for run in new.list(version=1, state=RunState.COMPLETED)] == ["one"]
    assert [run.id async for run in new.list(flow="another")] == []


async def test_runs_of_one_name_do_not_show_under_another(shop: Shop) -> None:
    mine, yours = shop.flows("mine"), shop.flows("yours")
    for flows in (mine, yours):
        flows.flow("order")(_named(flows.name))

    async with mine.worker(), yours.worker():
        await mine.start("order", id="one")
        await yours.start("order", id="one")
        await shop.timers.settle()

    assert [run.result async for run in mine.list()] == ["mine"]
    assert (await yours.get("one")).result == "yours"


def _named(name: str) -> Callable[..., Any]:
    async def give(run: Run, _: None) -> str:
        return name

    return give


# Workers


class _Stuck:
    """A step that waits until it may go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def wait(self, name: str) -> str:
        self.begun.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.may_end.wait()
        return name


async def test_what_a_worker_does_after_another_took_over_is_dropped(shop: Shop) -> None:
    first, second, stuck = shop.flows(), shop.flows(), _Stuck()

    async def order(run: Run, flow: str, step: Callable[[str], Any]) -> str:
        return await run.step("step", step, flow)

    first.flow("order")(lambda run, _: order(run, "first", stuck.wait))
    second.flow("order")(lambda run, _: order(run, "second", shop.do))
    await first.start("order", id="one")
    handling = asyncio.ensure_future(Worker(first).handle(shop.firing(first, "one")))
    await stuck.begun.wait()

    worker = Worker(second)
    await worker.handle(shop.firing(second, "one"))
    after_a_copy = await second.get("one")
    await worker.handle(shop.firing(second, "one", deliveries=2))
    stuck.may_end.set()

    with pytest.raises(Fenced):
        await handling
    assert after_a_copy.state is RunState.RUNNING
    assert (await second.get("one")).result == "second"


async def test_a_cancel_fences_the_worker_that_has_the_run(shop: Shop) -> None:
    flows, stuck = shop.flows(), _Stuck()

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        await run.step("step", stuck.wait, "a")
        return await run.transaction("effect", shop.insert, "effect")

    await flows.start("order", id="one")
    handling = asyncio.ensure_future(Worker(flows).handle(shop.firing(flows, "one")))
    await stuck.begun.wait()
    await flows.cancel("one")
    stuck.may_end.set()

    with pytest.raises(Fenced):
        await handling
    assert ((await flows.get("one")).state, await shop.effects()) == (RunState.CANCELLED, [])


async def test_a_signal_to_a_run_in_hand_is_seen_before_it_sleeps(shop: Shop) -> None:
    flows, stuck = shop.flows(), _Stuck()

    @flows.flow("order")
    async def order(run: Run, _: None) -> Any:
        await run.step("step", stuck.wait, "a")
        return await run.wait("approved")

    await flows.start("order", id="one")
    handling = asyncio.ensure_future(Worker(flows).handle(shop.firing(flows, "one")))
    await stuck.begun.wait()
    await flows.signal("one", "approved", by="ann")
    stuck.may_end.set()
    await handling

    assert (await flows.get("one")).result == {"by": "ann"}


async def test_a_worker_that_stops_finishes_its_step_and_gives_the_run_back(shop: Shop) -> None:
    flows, stuck = shop.flows(), _Stuck()

    @flows.flow("order")
    async def order(run: Run, _: None) -> list[str]:
        return [await run.step("first", stuck.wait, "a"), await run.step("second", shop.do, "b")]

    await flows.start("order", id="one")
    worker = Worker(flows)
    handling = asyncio.ensure_future(worker.handle(shop.firing(flows, "one")))
    await stuck.begun.wait()
    worker.is_stopping = True
    stuck.may_end.set()
    with pytest.raises(Later):
        await handling
    done = list(shop.done)
    await Worker(flows).handle(shop.firing(flows, "one", deliveries=2))

    assert (done, (await flows.get("one")).result) == ([], ["a", "b"])


async def test_a_wake_up_is_armed_again_by_whoever_gets_it_again(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows)
    await flows.start("order", id="one")
    await Worker(flows).handle(shop.firing(flows, "one"))
    armed = await shop.timers.all_scheduled()
    await shop.timers.cancel("flow/shop/one/1/first", confirm=True)
    other = shop.flows()
    other.timers = type(shop.timers)(now=shop.timers.now())  # A service that has lost it.
    other.flows = flows.flows

    await Worker(other).handle(shop.firing(other, "one"))
    after_a_copy = await other.timers.all_scheduled()
    await Worker(other).handle(shop.firing(other, "one", deliveries=2))

    assert [timer.service_call_id for timer in armed] == ["flow/shop/one/1/first"]
    assert after_a_copy == []
    again = await other.timers.all_scheduled()
    assert [(timer.service_call_id, timer.due_at) for timer in again] == [
        (timer.service_call_id, timer.due_at) for timer in armed
    ]


async def test_events_are_told_and_counted(shop: Shop) -> None:
    told: list[tuple[str, str, dict[str, object]]] = []
    flows = shop.flows(observer=lambda event, run, fields: told.append((event, run, dict(fields))))
    _approval(shop, flows)

    async with flows.worker():
        await flows.start("order", id="one")
        await shop.timers.advance(hours=1)
        await flows.signal("one", "approved")
        await shop.timers.settle()

    woken = ("flow.woken", "one", {"lateness_ms": 0})
    assert told == [woken, woken, woken, ("flow.completed", "one", {"error": None})]
    assert flows.counts == {"flow.woken": 3, "flow.completed": 1}


# The reconciler


async def _woken(worker: Worker) -> int:
    """Reconcile; return how many runs were woken."""
    before = worker.flows.counts["flow.found_overdue"]
    await reconcile(worker)
    return worker.flows.counts["flow.found_overdue"] - before


async def test_a_run_that_nobody_wakes_is_found(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows)
    worker = Worker(flows)
    # Started and slept, each while the timers did not get through.
    lost = shop.flows()
    lost.timers, lost.flows = type(shop.timers)(now=shop.timers.now()), flows.flows
    await lost.start("order", id="one")
    found = []
    for _ in range(3):
        found.append(await _woken(worker))
        await shop.timers.advance(minutes=2)
    await Worker(lost).handle(shop.firing(lost, "one", "1/wake"))
    for _ in range(3):
        found.append(await _woken(worker))
        await shop.timers.advance(minutes=40)
    async with flows.worker():
        await shop.timers.advance(days=1)

    # Seen first, then woken, and again each time its event does not come.
    assert found[:2] == [0, 1]
    assert (await flows.get("one")).state is RunState.COMPLETED


async def test_a_run_that_sleeps_with_its_timer_is_left_alone(shop: Shop) -> None:
    flows = shop.flows()
    _approval(shop, flows)
    worker = Worker(flows)
    await flows.start("order", id="one")
    await worker.handle(shop.firing(flows, "one"))

    found = await _woken(worker)

    assert (found, [timer.service_call_id for timer in await shop.timers.all_scheduled()]) == (
        0,
        ["flow/shop/one/1/first"],
    )


async def test_a_run_whose_worker_died_with_its_event_is_freed_and_one_in_hand_is_not(shop: Shop) -> None:
    flows, stuck = shop.flows(), _Stuck()

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        return await run.step("step", stuck.wait, "a")

    await flows.start("order", id="one")
    worker = Worker(flows)
    handling = asyncio.ensure_future(worker.handle(shop.firing(flows, "one")))
    await stuck.begun.wait()
    found = []
    for _ in range(4):
        await shop.timers.advance(minutes=5)
        found.append(await _woken(worker))
    handling.cancel()
    await asyncio.wait({handling})
    for _ in range(4):
        await shop.timers.advance(minutes=5)
        found.append(await _woken(worker))
    stuck.may_end.set()
    async with flows.worker():
        await shop.timers.settle()

    assert (found[:4], found[4:].count(1) > 0) == ([0] * 4, True)
    assert (await flows.get("one")).result == "a"


class _Away(FakeTimers):
    """Timers of a service that answers no question while it is away."""

    is_away = False

    async def explain(self, service_call_id: str) -> Explanation:
        if self.is_away:
            raise ServiceAway("it is away")
        return await super().explain(service_call_id)


async def test_a_run_in_hand_stays_so_while_the_service_is_away(shop: Shop) -> None:
    stuck, timers = _Stuck(), _Away()
    flows = Flows(timers, shop.journal, name="shop")

    @flows.flow("order")
    async def order(run: Run, _: None) -> str:
        return await run.step("step", stuck.wait, "a")

    await flows.start("order", id="one")
    holder, other = Worker(flows), Worker(flows)
    handling = asyncio.ensure_future(holder.handle(shop.firing(flows, "one")))
    await stuck.begun.wait()
    timers.is_away = True
    for _ in range(12):
        await timers.advance(minutes=1)
        with pytest.raises(ServiceAway):
            await reconcile(holder)
    timers.is_away = False

    assert await _woken(other) == 0
    stuck.may_end.set()
    await handling


async def test_a_journal_without_tables_names_the_one_that_is_missing(tmp_path: Path) -> None:
    for name, opened in JOURNALS.items():
        (tmp_path / name).mkdir()
        async with opened(tmp_path / name) as connect, connect() as journal:
            with pytest.raises((sqlite3.OperationalError, asyncpg.UndefinedTableError), match="flow_runs"):
                await Shop(journal).flows().get("one")


async def test_each_suspension_is_a_new_one_that_no_except_clause_takes_for_an_error(shop: Shop) -> None:
    flows = shop.flows()
    seen: list[BaseException] = []

    @flows.flow("order")
    async def order(run: Run, _: None) -> None:
        for night in range(2):
            try:
                await run.sleep("night", NIGHT, key=night)
            except BaseException as suspension:
                seen.append(suspension)
                raise

    assert (await _run(shop, flows))[0] is RunState.COMPLETED
    assert [type(suspension) for suspension in seen] == [Suspension, Suspension]
    assert seen[0] is not seen[1]
    assert not issubclass(Suspension, Exception)
