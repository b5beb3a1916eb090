"""A few races; `make callback-races`, `-kills` and `-cluster` are the long runs."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.messages import iso
from tests.support.postgres import fresh_schema
from tests.torture.callback_site import Receiver, Site
from tests.torture.callbacks import races


async def test_a_cancelled_timer_is_never_called_and_a_refused_one_is_once(tmp_path: Path) -> None:
    counts = await races(tmp_path, 30)

    assert counts["won by the cancel"] + counts["won by the due time"] == counts["races"] == 30
    assert not any(
        counts[name]
        for name in (
            *("cancelled and called all the same", "refused and never called"),
            *("called more than once", "called before the due time"),
        )
    )


@pytest.mark.parametrize("kind", ["sqlite", "two instances on postgres"])
async def test_a_thousand_racing_requests_with_one_key_make_one_timer_and_one_call(
    tmp_path: Path, kind: str
) -> None:
    async with AsyncExitStack() as stack:
        database = None if kind == "sqlite" else await stack.enter_async_context(fresh_schema())
        receiver = await stack.enter_async_context(Receiver().receiving())
        instances = 1 if database is None else 2
        site = await stack.enter_async_context(Site(tmp_path, receiver, database, instances).running())
        body = {"dueAt": iso(datetime.now(UTC) + timedelta(seconds=1)), "callback": site.callback()}

        async def create(number: int) -> tuple[int, str]:
            while True:
                status, answer = await site.ask(
                    *("POST", "/v1/timers", body),
                    instance=number % instances,
                    headers={"idempotency-key": "order 1"},
                )
                if status not in (429, 503):  # In whose place another answer comes.
                    return status, answer["timer"]["serviceCallId"]

        answers = await asyncio.gather(*map(create, range(1_000)))
        await site.until(lambda: receiver.calls and not receiver.unanswered, "the callback")
        again = await create(0)
        _, kept = await site.ask("GET", "/v1/deliveries")

    assert Counter(status for status, _ in answers) == {201: 1, 200: 999}
    assert {name for _, name in answers} == receiver.calls.keys()
    assert [len(calls) for calls in receiver.calls.values()] == [1]
    assert (again[0], len(kept["deliveries"])) == (200, 1)
