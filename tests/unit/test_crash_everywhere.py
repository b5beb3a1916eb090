"""Crash a user's flow everywhere: mistakes that it would not survive are found, and a good flow passes."""

import asyncio
import gc
import itertools
import random
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import marked_blocks
from timer_client.flows import Run
from timer_client.testing import FlowMistake, crash_everywhere

DAY = timedelta(days=1)
COUNTER = itertools.count()
effects: list[str] = []


async def charge(order: str) -> str:
    effects.append(f"charged {order}")
    return f"receipt of {order}"


async def ship(order: object) -> None:
    effects.append(f"shipped {order}")


async def effect_outside_a_step(run: Run, order: str) -> None:
    effects.append("mailed")
    await run.sleep("nap", DAY)


async def effect_while_it_suspends(run: Run, order: str) -> None:
    try:
        await run.sleep("nap", DAY)
    finally:
        effects.append("released")


async def clock_of_the_machine(run: Run, order: str) -> None:
    await run.sleep_until("nap", datetime.now(UTC) + DAY)


async def chance(run: Run, order: str) -> None:
    await run.sleep("nap", DAY * random.random())


async def new_id(run: Run, order: str) -> None:
    await run.step("ship", ship, str(uuid.uuid4()))


async def order_of_a_set(run: Run, order: str) -> None:
    for number, item in enumerate({"apple", "pear", "plum"}):
        await run.step("ship", ship, item, key=number)
        await run.sleep("nap", DAY, key=number)


async def suspension_swallowed(run: Run, order: str) -> None:
    try:
        await run.sleep("nap", DAY)
    except BaseException:
        effects.append("woken too early")


async def waits_by_itself(run: Run, order: str) -> None:
    await asyncio.sleep(0)
    await run.step("ship", ship, order)


async def gathered_by_asyncio(run: Run, order: str) -> None:
    await asyncio.gather(run.step("charge", charge, order), run.step("ship", ship, order))


async def state_in_memory(run: Run, order: str) -> None:
    await run.step("ship", ship, next(COUNTER))
    await run.sleep("nap", DAY)


async def one_name_for_two(run: Run, order: str) -> None:
    for item in ("apple", "pear"):
        await run.step("ship", ship, item)


async def file_read(run: Run, order: str) -> None:
    with Path(__file__).open() as text:
        await run.step("ship", ship, text.readline())


async def waits_forever(run: Run, order: str) -> None:
    await run.wait("approved")


MISTAKES: dict[Callable[..., Coroutine[Any, Any, None]], str] = {
    effect_outside_a_step: r"test_crash_everywhere.py:\d+: an effect outside a step: 'mailed'",
    effect_while_it_suspends: r"test_crash_everywhere.py:\d+: an effect outside a step: 'released'",
    clock_of_the_machine: r"test_crash_everywhere.py:\d+: asks for the clock outside a step: datetime.now",
    chance: r"test_crash_everywhere.py:\d+: asks for chance outside a step: Random.random",
    new_id: r"test_crash_everywhere.py:\d+: asks for chance outside a step: urandom",
    order_of_a_set: r"step 'ship' with key \d was called with \('\w+'\), and .* again, with \('\w+'\)",
    suspension_swallowed: "was suspended and went on",
    waits_by_itself: r"test_crash_everywhere.py:\d+: waits for something outside a step",
    gathered_by_asyncio: r"test_crash_everywhere.py:\d+: waits for something outside a step",
    state_in_memory: r"step 'ship' was called with \(\d+\), and .* again, with \(\d+\)",
    one_name_for_two: "'ship' is used twice in one run",
    file_read: r"test_crash_everywhere.py:\d+: asks for the machine outside a step: open",
    waits_forever: "the run waits forever: send what it waits for with signals=, or give a timeout",
}


@pytest.mark.parametrize("flow", MISTAKES, ids=lambda flow: flow.__name__)
async def test_a_mistake_is_found(flow: Callable[..., Coroutine[Any, Any, None]]) -> None:
    with pytest.raises(FlowMistake, match=MISTAKES[flow]):
        await crash_everywhere(flow, "order-42", effects=effects)


async def test_a_good_flow_passes_and_everything_it_does_was_interrupted() -> None:
    async def good(run: Run, order: str) -> list[str]:
        receipt = await run.step("charge", charge, order)
        both = await run.gather(
            one=lambda run: run.sleep("nap", DAY),
            other=lambda run: run.step("ship", ship, {"of": order, "at": "noon"}),
        )
        said = await run.wait("approved", timeout=2 * DAY)
        for item in sorted({"apple", "pear"}):
            await run.step("ship", ship, item, key=item)
        at = await run.now()
        return [receipt, str(at), *sorted(both), *(said or {})]

    rehearsal = await crash_everywhere(good, "order-42", effects=effects, signals={"approved": {"by": "ann"}})

    assert rehearsal.result[:1] == ["receipt of order-42"]
    assert rehearsal.result[2:] == ["one", "other", "by"]
    assert rehearsal.crashes > 20


async def test_what_a_look_for_cycles_asks_for_is_no_mistake_of_the_flow() -> None:
    """As libraries have it that measure what it takes."""

    async def good(_: Run, order: str) -> str:
        gc.collect()
        return order

    def measure(*_: object) -> None:
        time.perf_counter()

    gc.callbacks.append(measure)
    try:
        assert (await crash_everywhere(good, "order-42", effects=effects)).result == "order-42"
    finally:
        gc.callbacks.remove(measure)


async def test_the_example_of_the_page_passes() -> None:
    names: dict[str, Any] = {}
    exec(marked_blocks("docs/testing.md")["example: crash everywhere"], names)
    [test] = [function for name, function in names.items() if name.startswith("test_")]

    await test()
