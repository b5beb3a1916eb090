"""What every client promises to those who handle firings."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.clients import Desk
from tests.support.patience import PATIENCE_S
from timer_client import ConsumerConflict, Firing, Reject, Timers
from timer_client.waiting import LOOK_AGAIN_S

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)
AT_ONCE = (timedelta(0),)


class Handled:
    """A handler that keeps what it was given, and a way to wait for it."""

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self._arrived = asyncio.Condition()

    async def __call__(self, firing: Firing) -> None:
        async with self._arrived:
            self.firings.append(firing)
            self._arrived.notify_all()

    @property
    def ids(self) -> list[str]:
        return [firing.service_call_id for firing in self.firings]

    async def wait_for(self, count: int) -> list[Firing]:
        async with asyncio.timeout(PATIENCE_S), self._arrived:
            await self._arrived.wait_for(lambda: len(self.firings) >= count)
        return self.firings


@pytest.fixture
def timers(desk: Desk) -> Timers:
    return desk.timers


async def test_a_handler_gets_each_firing_with_what_the_event_says(timers: Timers) -> None:
    handled = Handled()

    async with timers.consume("billing", handled):
        await timers.schedule("order-1", LONG_AGO, correlation_id="request-7")
        [firing] = await handled.wait_for(1)

    # The event is out and the mark on its way: who waits now has missed the one and need not wait for long.
    timer = await timers.wait("order-1", timeout=timedelta(seconds=LOOK_AGAIN_S - 1))
    assert (firing.service_call_id, firing.due_at, firing.reached_at) == (
        "order-1",
        LONG_AGO,
        timer.reached_at,
    )
    assert (firing.tenant_id, firing.generation, firing.correlation_id) == (timers.tenant, 1, "request-7")
    assert (firing.consumer, firing.deliveries) == ("billing", 1)
    assert firing.lateness == firing.reached_at - LONG_AGO


async def test_what_fired_before_the_consumer_was_started_is_handled(timers: Timers) -> None:
    handled = Handled()
    await timers.schedule("order-1", LONG_AGO)
    await timers.wait("order-1")

    async with timers.consume("billing", handled):
        await handled.wait_for(1)

    assert handled.ids == ["order-1"]


async def test_what_was_handled_does_not_come_again(desk: Desk) -> None:
    before, after = Handled(), Handled()
    await desk.timers.schedule("order-1", LONG_AGO)
    async with desk.timers.consume("billing", before):
        await before.wait_for(1)

    async with desk.again() as timers, timers.consume("billing", after):
        await timers.schedule("order-2", LONG_AGO)
        await after.wait_for(1)

    assert (before.ids, after.ids) == (["order-1"], ["order-2"])


async def test_two_names_get_each_firing_once_each(timers: Timers) -> None:
    billing, shipping = Handled(), Handled()

    async with timers.consume("billing", billing), timers.consume("shipping", shipping):
        await timers.schedule("order-1", LONG_AGO)
        await billing.wait_for(1)
        await shipping.wait_for(1)

    assert (billing.ids, shipping.ids) == (["order-1"], ["order-1"])


async def test_workers_of_one_name_share_the_firings(desk: Desk) -> None:
    handled = Handled()

    async with (
        desk.again() as other,
        desk.timers.consume("billing", handled),
        other.consume("billing", handled),
    ):
        for number in range(40):
            await desk.timers.schedule(f"order-{number}", LONG_AGO)
        await handled.wait_for(40)

    assert Counter(handled.ids) == {f"order-{number}": 1 for number in range(40)}


@pytest.mark.parametrize("error", [RuntimeError("not yet"), asyncio.CancelledError()])
async def test_a_handler_that_fails_gets_the_firing_again(timers: Timers, error: BaseException) -> None:
    """Also if what fails is something that it waits for and somebody else has cancelled."""
    handled, failures = Handled(), 2

    async def handle(firing: Firing) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise error
        await handled(firing)

    async with timers.consume("billing", handle, retry_delays=AT_ONCE) as consumer:
        await timers.schedule("order-1", LONG_AGO)
        [firing] = await handled.wait_for(1)

    assert firing.deliveries == 3
    assert (consumer.counts.failed, consumer.counts.handled) == (2, 1)


async def test_a_rejected_firing_does_not_come_again(desk: Desk) -> None:
    seen, handled = Handled(), Handled()

    async def reject(firing: Firing) -> None:
        await seen(firing)
        raise Reject("no such order")

    async with desk.timers.consume("billing", reject, retry_delays=AT_ONCE) as consumer:
        await desk.timers.schedule("order-1", LONG_AGO)
        await seen.wait_for(1)
    async with desk.again() as timers, timers.consume("billing", handled):
        await timers.schedule("order-2", LONG_AGO)
        await handled.wait_for(1)

    assert (seen.ids, handled.ids) == (["order-1"], ["order-2"])
    assert consumer.counts.rejected == 1


async def test_no_more_handlers_run_at_a_time_than_asked_for(timers: Timers) -> None:
    handled, running, most = Handled(), 0, 0

    async def handle(firing: Firing) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        await handled(firing)

    async with timers.consume("billing", handle, concurrency=3, prefetch=20):
        for number in range(30):
            await timers.schedule(f"order-{number}", LONG_AGO)
        await handled.wait_for(30)

    assert most <= 3


async def test_what_is_in_hand_is_finished_at_the_end_and_the_rest_given_back(desk: Desk) -> None:
    begun, go_on, handled, rest = Handled(), asyncio.Event(), Handled(), Handled()

    async def handle(firing: Firing) -> None:
        await begun(firing)
        await go_on.wait()
        await handled(firing)

    for number in range(10):
        await desk.timers.schedule(f"order-{number}", LONG_AGO)
        await desk.timers.wait(f"order-{number}")
    async with desk.timers.consume("billing", handle, concurrency=1, prefetch=20):
        await begun.wait_for(1)
        asyncio.get_running_loop().call_soon(go_on.set)
    async with desk.again() as timers, timers.consume("billing", rest):
        await rest.wait_for(9)

    assert len(handled.ids) == 1
    assert sorted(handled.ids + rest.ids) == sorted(f"order-{number}" for number in range(10))


async def test_what_still_counts_is_handled_where_stale_firings_are_dropped(timers: Timers) -> None:
    handled = Handled()
    await timers.schedule("order-1", LONG_AGO)
    await timers.wait("order-1")

    async with timers.consume("billing", handled, drop_stale=True) as consumer:
        [firing] = await handled.wait_for(1)

    assert (firing.generation, consumer.counts.stale) == (1, 0)


async def test_what_expired_goes_to_its_own_handler(timers: Timers) -> None:
    reached, expired = Handled(), Handled()

    async with timers.consume("billing", reached, expired=expired):
        await timers.schedule("late", LONG_AGO, expires_after=timedelta(minutes=1))
        await timers.schedule("order-1", LONG_AGO)
        [firing] = await expired.wait_for(1)
        await reached.wait_for(1)

    assert (reached.ids, expired.ids) == (["order-1"], ["late"])
    assert (firing.expired, firing.due_at, firing.lateness) == (True, LONG_AGO, firing.reached_at - LONG_AGO)


async def test_what_expired_is_passed_over_without_a_handler_for_it(timers: Timers) -> None:
    reached, expired = Handled(), Handled()
    await timers.schedule("late", LONG_AGO, expires_after=timedelta(minutes=1))
    await timers.wait("late")

    async with timers.consume("billing", reached):
        await timers.schedule("order-1", LONG_AGO)
        await reached.wait_for(1)
    async with timers.consume("billing", reached, expired=expired):
        await timers.schedule("order-2", LONG_AGO)
        await timers.schedule("late-2", LONG_AGO, expires_after=timedelta(minutes=1))
        await expired.wait_for(1)
        await reached.wait_for(2)

    assert (reached.ids, expired.ids) == (["order-1", "order-2"], ["late-2"])


async def test_an_error_in_the_block_ends_the_consumer_and_comes_out_as_it_is(timers: Timers) -> None:
    with pytest.raises(ZeroDivisionError):
        async with timers.consume("billing", Handled()):
            raise ZeroDivisionError

    async with timers.consume("billing", Handled()):
        pass


# Wrong use


async def test_one_name_is_consumed_once_in_a_client(timers: Timers) -> None:
    async with timers.consume("billing", Handled()):
        with pytest.raises(
            ConsumerConflict, match="'billing' is already being consumed: raise its concurrency"
        ):
            async with timers.consume("billing", Handled()):
                pass


@pytest.mark.parametrize("bad", ["", "two words", "a.b", "x" * 65, None])
async def test_a_name_that_breaks_the_rules_is_refused(timers: Timers, bad: Any) -> None:
    with pytest.raises(ValueError, match="name of a consumer must be 1 to 64 of"):
        async with timers.consume(bad, Handled()):
            pass


async def test_a_handler_that_is_not_async_is_refused(timers: Timers) -> None:
    await timers.schedule("order-1", LONG_AGO)

    with pytest.raises(TypeError, match="handler must be an async function"):
        async with timers.consume("billing", lambda firing: None):  # type: ignore[arg-type, return-value]
            await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"handler": None}, "handler must be an async function"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": "2"}, "concurrency must be at least 1"),
        ({"prefetch": -1}, "prefetch must be at least 0"),
        ({"retry_delays": ()}, "retry_delays must have at least one timedelta"),
        ({"retry_delays": (5,)}, "each of retry_delays must be a timedelta, such as"),
        ({"grace": 5}, "grace must be a timedelta, such as"),
        ({"ack_wait": 5}, "ack_wait must be a timedelta, such as"),
        ({"ack_wait": timedelta()}, "ack_wait must be longer than zero"),
    ],
)
async def test_an_option_that_breaks_the_rules_is_refused(
    timers: Timers, options: dict[str, Any], rule: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=rule):
        async with timers.consume("billing", **{"handler": Handled(), **options}):
            pass
