"""What every client promises: the real one on the real service, and those that stand in for it."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.clients import CLIENTS, Desk
from tests.support.patience import PATIENCE_S
from timer_client import Accepted, Outcome, TimerCancelled, TimerNotFound, Timers

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)
PATIENCE = timedelta(seconds=PATIENCE_S)


@pytest.fixture
def timers(desk: Desk) -> Timers:
    return desk.timers


# Schedule


async def test_a_confirmed_schedule_returns_the_timer(timers: Timers) -> None:
    decision = await timers.schedule("order-1", FAR_AHEAD, correlation_id="request-7", confirm=True)

    found = await timers.get("order-1")
    assert decision.outcome is Outcome.SCHEDULED
    assert decision.timer == found
    assert (found.service_call_id, found.state, found.due_at) == ("order-1", "Scheduled", FAR_AHEAD)
    assert (found.tenant_id, found.generation, found.correlation_id) == (timers.tenant, 1, "request-7")


async def test_a_command_is_accepted_and_carried_out_later(timers: Timers) -> None:
    accepted = await timers.schedule("order-1", LONG_AGO)
    timer = await timers.wait("order-1", timeout=PATIENCE)

    assert isinstance(accepted, Accepted)
    assert (timer.state, timer.due_at) == ("Reached", LONG_AGO)


async def test_scheduling_again_moves_the_timer(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    same = await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    moved = await timers.schedule("order-1", FAR_AHEAD - timedelta(days=1), confirm=True)

    assert (same.outcome, same.timer.generation) == (Outcome.UNCHANGED, 1)
    assert (moved.outcome, moved.timer.generation) == (Outcome.RESCHEDULED, 2)
    assert moved.timer.due_at == FAR_AHEAD - timedelta(days=1)


async def test_a_reached_timer_is_not_scheduled_again(timers: Timers) -> None:
    await timers.schedule("order-1", LONG_AGO)
    reached = await timers.wait("order-1", timeout=PATIENCE)

    decision = await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    assert decision.outcome is Outcome.ALREADY_REACHED
    assert (decision.timer.state, decision.timer.due_at) == ("Reached", reached.due_at)


async def test_a_span_counts_from_now(timers: Timers) -> None:
    sooner = await timers.schedule("order-1", timedelta(days=3), confirm=True)
    later = await timers.schedule("order-2", timedelta(days=3), confirm=True)

    assert sooner.timer.due_at is not None
    assert later.timer.due_at is not None
    assert later.timer.due_at >= sooner.timer.registered_at + timedelta(days=3)
    assert sooner.timer.due_at <= later.timer.due_at


async def test_with_if_absent_the_first_due_time_counts(timers: Timers) -> None:
    first = await timers.schedule("order-1", FAR_AHEAD, if_absent=True, confirm=True)
    second = await timers.schedule("order-1", timedelta(days=1), if_absent=True, confirm=True)
    await timers.cancel("order-1", confirm=True)
    third = await timers.schedule("order-1", timedelta(days=1), if_absent=True, confirm=True)

    assert [each.outcome for each in (first, second, third)] == [
        Outcome.SCHEDULED,
        Outcome.UNCHANGED,
        Outcome.ALREADY_CANCELLED,
    ]
    assert [each.timer.due_at for each in (first, second, third)] == [FAR_AHEAD] * 3


async def test_what_comes_too_late_expires(timers: Timers) -> None:
    await timers.schedule("order-1", LONG_AGO, expires_after=timedelta(minutes=1))

    timer = await timers.wait("order-1", timeout=PATIENCE)
    again = await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    assert (timer.state, timer.due_at) == ("Expired", LONG_AGO)
    assert timer.expired_at is not None
    assert again.outcome is Outcome.ALREADY_EXPIRED


async def test_a_due_time_is_kept_to_the_millisecond_and_never_early(timers: Timers) -> None:
    due = datetime(2100, 1, 1, 10, 0, 0, 1, tzinfo=timezone(timedelta(hours=1)))

    decision = await timers.schedule("order-1", due, confirm=True)

    assert decision.timer.due_at == datetime(2100, 1, 1, 9, 0, 0, 1000, tzinfo=UTC)


# Cancel


async def test_a_cancelled_timer_does_not_fire(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    decision = await timers.cancel("order-1", confirm=True)

    assert (decision.outcome, decision.timer.state) == (Outcome.CANCELLED, "Cancelled")
    assert (await timers.wait("order-1", timeout=PATIENCE)).state == "Cancelled"


async def test_a_cancel_says_when_it_comes_too_late(timers: Timers) -> None:
    await timers.schedule("order-1", LONG_AGO)
    await timers.wait("order-1", timeout=PATIENCE)

    assert (await timers.cancel("order-1", confirm=True)).outcome is Outcome.ALREADY_REACHED


async def test_a_cancel_of_an_unknown_timer_says_so(timers: Timers) -> None:
    assert (await timers.cancel("order-1", confirm=True)).outcome is Outcome.NOT_FOUND


async def test_a_cancelled_timer_can_be_scheduled_again(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    await timers.cancel("order-1", confirm=True)

    decision = await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    assert (decision.outcome, decision.timer.generation) == (Outcome.SCHEDULED, 2)


async def test_a_cancel_that_is_a_command_is_carried_out_later(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    accepted = await timers.cancel("order-1")

    assert isinstance(accepted, Accepted)
    await _until_state(timers, "order-1", "Cancelled")


# Get and list


async def test_an_unknown_timer_is_not_found(timers: Timers) -> None:
    with pytest.raises(TimerNotFound):
        await timers.get("order-1")


async def test_an_explanation_says_what_time_it_is_also_where_there_is_no_timer(timers: Timers) -> None:
    absent = await timers.explain("order-1")
    scheduled = await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    present = await timers.explain("order-1")

    assert (absent.cause, absent.timer) == ("not_found", None)
    assert (present.cause, present.timer) == ("not_due", scheduled.timer)
    assert absent.at <= scheduled.timer.registered_at <= present.at


async def test_a_list_has_the_tenants_timers_by_due_time(timers: Timers) -> None:
    for number in (3, 1, 2):
        await timers.schedule(f"order-{number}", FAR_AHEAD + timedelta(days=number), confirm=True)

    found = [timer.service_call_id async for timer in timers.list()]

    assert found == ["order-1", "order-2", "order-3"]


async def test_a_list_is_narrowed_by_each_argument(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    await timers.schedule("order-2", FAR_AHEAD + timedelta(days=1), correlation_id="request-7", confirm=True)
    await timers.schedule("order-3", FAR_AHEAD + timedelta(days=2), confirm=True)
    await timers.cancel("order-3", confirm=True)
    border = FAR_AHEAD + timedelta(days=1)

    async def ids(**narrowed: Any) -> list[str]:
        return [timer.service_call_id async for timer in timers.list(**narrowed)]

    assert await ids(state="Scheduled") == ["order-1", "order-2"]
    assert await ids(state="Cancelled") == ["order-3"]
    assert await ids(correlation_id="request-7") == ["order-2"]
    assert await ids(due_from=border) == ["order-2", "order-3"]
    assert await ids(due_before=border) == ["order-1"]
    assert await ids(limit=2) == ["order-1", "order-2"]
    assert await ids(limit=0) == []


async def test_tenants_do_not_see_each_other(desk: Desk, request: pytest.FixtureRequest) -> None:
    await desk.timers.schedule("order-1", FAR_AHEAD, confirm=True)

    kind = request.node.callspec.params["desk"]
    async with CLIENTS[kind](lambda: request.getfixturevalue("shared_broker")) as other:
        with pytest.raises(TimerNotFound):
            await other.timers.get("order-1")


# Wait


async def test_waiting_ends_when_the_timer_fires(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    waiting = [asyncio.ensure_future(timers.wait("order-1", timeout=PATIENCE)) for _ in range(2)]
    await asyncio.sleep(0)

    await timers.schedule("order-1", LONG_AGO)
    ended = await asyncio.gather(*waiting)

    assert [(timer.state, timer.generation) for timer in ended] == [("Reached", 2)] * 2
    assert all(timer.reached_at is not None for timer in ended)


async def test_waiting_for_a_timer_that_has_ended_returns_at_once(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)
    await timers.cancel("order-1", confirm=True)

    assert (await timers.wait("order-1")).state == "Cancelled"


async def test_waiting_ends_with_an_error_when_it_takes_too_long(timers: Timers) -> None:
    await timers.schedule("order-1", FAR_AHEAD, confirm=True)

    with pytest.raises(TimeoutError, match="order-1 has not ended within 0:00:00"):
        await timers.wait("order-1", timeout=timedelta())


# Sleep


async def test_a_sleep_ends_when_its_time_is_over(timers: Timers) -> None:
    slept = await timers.sleep("nightly-7", timedelta(milliseconds=1))

    assert (slept.service_call_id, slept.state) == ("nightly-7", "Reached")


async def test_a_sleep_that_was_cancelled_says_so(timers: Timers) -> None:
    sleeping = asyncio.ensure_future(timers.sleep("nightly-7", timedelta(days=3)))
    await _until_state(timers, "nightly-7", "Scheduled")

    await timers.cancel("nightly-7", confirm=True)
    sleeping.cancel()
    await asyncio.wait({sleeping})

    with pytest.raises(TimerCancelled, match="nightly-7"):
        await timers.sleep("nightly-7", timedelta(days=3))


async def test_one_name_is_slept_once_at_a_time(timers: Timers) -> None:
    sleeping = asyncio.ensure_future(timers.sleep("nightly-7", timedelta(days=3)))
    await _until_state(timers, "nightly-7", "Scheduled")

    with pytest.raises(
        ValueError, match="a sleep named 'nightly-7' is already under way: give every sleep its own name"
    ):
        await timers.sleep("nightly-7", timedelta(days=3))

    sleeping.cancel()
    await asyncio.wait({sleeping})


# Wrong use


@pytest.mark.parametrize("due", [3600, 0.5, "2026-12-01T09:00:00Z", None, True])
async def test_a_bare_number_is_not_a_due_time(timers: Timers, due: Any) -> None:
    with pytest.raises(
        TypeError, match=r"due: give a timedelta, such as timedelta\(hours=3\), or a datetime"
    ):
        await timers.schedule("order-1", due)


async def test_a_moment_without_a_zone_is_refused(timers: Timers) -> None:
    naive = datetime(2100, 1, 1)

    for use in (
        lambda: timers.schedule("order-1", naive),
        lambda: anext(timers.list(due_from=naive)),
        lambda: anext(timers.list(due_before=naive)),
    ):
        with pytest.raises(ValueError, match=r"must have a time zone.*write datetime\.now\(UTC\)"):
            await use()


@pytest.mark.parametrize("name", ["due", "expires_after"])
async def test_a_span_of_more_than_ten_years_is_refused(timers: Timers, name: str) -> None:
    spans: dict[str, Any] = {"due": timedelta(days=1), name: timedelta(days=3660)}

    with pytest.raises(ValueError, match=f"{name} must not be longer than 10 years"):
        await timers.schedule("order-1", spans.pop("due"), **spans)


async def test_a_negative_span_is_refused(timers: Timers) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        await timers.schedule("order-1", timedelta(seconds=-1))


@pytest.mark.parametrize("span", [3600, datetime(2100, 1, 1, tzinfo=UTC)])
async def test_a_sleep_takes_a_span_and_nothing_else(timers: Timers, span: Any) -> None:
    with pytest.raises(TypeError, match="span must be a timedelta"):
        await timers.sleep("nightly-7", span)


@pytest.mark.parametrize("bad", ["", "two words", "x" * 256, 42])
async def test_an_id_that_breaks_the_rules_is_refused_at_once(timers: Timers, bad: Any) -> None:
    for use in (
        lambda: timers.schedule(bad, FAR_AHEAD),
        lambda: timers.cancel(bad),
        lambda: timers.get(bad),
        lambda: timers.wait(bad),
        lambda: timers.sleep(bad, timedelta(days=1)),
    ):
        with pytest.raises(ValueError, match="id must be 1 to 255 characters"):
            await use()


async def _until_state(timers: Timers, service_call_id: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await timers.get(service_call_id)).state == state:
                    return
            except TimerNotFound:
                pass
            await asyncio.sleep(0.02)
