"""Many timers in one request: everything else goes on beside it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.loop_steps import counted_steps
from tests.support.rest import Site
from tests.support.stores import open_kind
from tests.support.timers import at, schedule
from timer_client.wire import format_time
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.outcomes import DECIDED_AT_ONCE
from timer_service.domain.timer import Outcome

DUE = format_time(at(60))
CALLBACK = {"url": "https://shop.example/hooks", "headers": {"Authorization": "Bearer t0ken"}}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("timer", [{}, {"callback": CALLBACK}], ids=["bus", "callback"])
async def test_no_step_of_a_large_batch_is_more_than_a_tenth_of_it(
    kind: str, timer: dict[str, Any], tmp_path: Path
) -> None:
    body = {"timers": [{"dueAt": DUE, **timer}] * 1_000}
    async with open_kind(kind, tmp_path) as opened:
        site = await Site(store=opened.store).open()
        for status in (201, 200):
            asked = asyncio.create_task(site.ask("POST", "/v1/timers:batch", body, idempotency_key="k"))
            await asyncio.sleep(0)  # Its body is read in one go.
            with counted_steps() as steps:
                reply = await asked

            assert {each["status"] for each in reply.json["results"]} == {status}
            assert steps.longest < steps.total / 10


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_requests_that_are_decided_together_are_kept_together_or_not_at_all(
    kind: str, tmp_path: Path
) -> None:
    requests = [schedule(f"order-{n:04}") for n in range(3 * DECIDED_AT_ONCE)]
    wrong = replace(schedule("order-9999"), expected=frozenset({"a version of no timer"}))
    async with open_kind(kind, tmp_path) as opened:
        with pytest.raises(TimerNotFound):
            await opened.store.decide([*requests, wrong], at(0))
        nothing = await opened.store.count(at(0))
        decided = await opened.store.decide(requests, at(0))
        everything = await opened.store.count(at(0))

    assert [each.outcome for each in decided] == [Outcome.SCHEDULED] * len(requests)
    assert (nothing.pending, everything.pending) == (0, len(requests))
