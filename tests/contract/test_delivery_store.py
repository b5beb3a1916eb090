"""What every delivery store promises; ports/delivery_store.py says it in words."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from tests.support.timers import ACME, GLOBEX, at, call, cancel, schedule
from timer_service.domain.callback import (
    NO_CALLBACK,
    Callback,
    Method,
    NoCallback,
    RetryPolicy,
    Signing,
    Sink,
)
from timer_service.domain.delivery import (
    KEPT_ATTEMPTS,
    Answered,
    Attempt,
    CallResult,
    Delivery,
    DeliveryState,
    abandon,
    after_attempt,
    describe,
    is_success,
    open_delivery,
    replay,
)
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey, Trace
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.delivery_store import (
    CallbackRecord,
    ClaimedDelivery,
    DeliveryQuery,
    Finished,
)
from timer_service.ports.timer_insight import Failing
from timer_service.ports.timer_store import TimerQuery
from timer_service.wiring.stores import Store

CALLBACK = Callback("https://shop.example/hooks")
WHOLE = Callback(
    url="http://[2001:db8::1]:8080/a?b=c",
    method=Method.PATCH,
    headers=(("X-One", "1"), ("x-two", "ünïcode"), ("X-One", "2")),
    body=bytes(range(256)),
    content_type="application/octet-stream",
    retry=RetryPolicy((timedelta(seconds=1), timedelta(milliseconds=1500))),
    timeout=timedelta(milliseconds=2500),
    expires_after=timedelta(hours=1),
    signing=Signing.HMAC,
    metadata='{"a": [1, null]}',
    fingerprint="f00",
)
FAIL = Answered(500)


def key(name: str, tenant: str = ACME) -> TimerKey:
    return TenantId(tenant), ServiceCallId(name)


async def ask(
    store: Store,
    name: str = "order-1",
    due_s: float = -1,
    callback: Callback | NoCallback | None = CALLBACK,
    *,
    tenant: str = ACME,
    now_s: float = -10,
) -> Outcome:
    request = replace(schedule(name, due_s, tenant=tenant), callback=callback)
    [decided] = await store.decide([request], at(now_s))
    return decided.outcome


async def fire(store: Store, now_s: float = 0, limit: int = 100) -> list[str]:
    """Hand over what is due over HTTP; return its names."""
    async with store.claim_due(at(now_s), limit, sink=Sink.HTTP) as claim:
        await claim.mark_reached([timer.reached(at(now_s)) for timer in claim.timers])
        return [timer.service_call_id for timer in claim.timers]


async def due(store: Store, now_s: float = 0, **parts: object) -> list[str]:
    page = await store.deliveries.due(at(now_s), 100, **parts)  # type: ignore[arg-type]
    return [each.service_call_id for each in page.found]


async def record(store: Store, name: str = "order-1", tenant: str = ACME) -> CallbackRecord:
    return (await store.deliveries.get([key(name, tenant)]))[key(name, tenant)]


async def delivery(store: Store, name: str = "order-1", tenant: str = ACME) -> Delivery:
    found = (await record(store, name, tenant)).delivery
    assert found is not None
    return found


def outcome(claimed: ClaimedDelivery, result: CallResult, now_s: float = 0) -> Finished:
    before = claimed.delivery
    after = after_attempt(before, claimed.callback.retry, result, at(now_s), at(now_s), lambda: 0.0)
    failure = Attempt(after.attempts, at(now_s), timedelta(milliseconds=7), after.status, describe(result))
    return Finished(before, after, None if is_success(result) else failure)


async def attempt(
    store: Store, result: CallResult, name: str = "order-1", now_s: float = 0, tenant: str = ACME
) -> int:
    claimed = await store.deliveries.claim([key(name, tenant)], at(now_s))
    return await store.deliveries.finish([outcome(each, result, now_s) for each in claimed])


async def test_the_callback_is_kept_to_the_byte(store: Store) -> None:
    await ask(store, callback=WHOLE)

    assert await record(store) == CallbackRecord(WHOLE, None, updated_at=at(-10))
    assert await store.deliveries.get([key("order-2")]) == {}


async def test_a_timer_knows_where_it_fires_and_how_many_callbacks_it_had(store: Store) -> None:
    assert await ask(store, due_s=60) is Outcome.SCHEDULED
    assert await ask(store, due_s=60, callback=WHOLE, now_s=-5) is Outcome.UNCHANGED

    timer = await store.get(*key("order-1"))
    assert timer is not None
    assert (timer.sink, timer.callback_revision, timer.generation) == (Sink.HTTP, 2, 1)
    assert await record(store) == CallbackRecord(WHOLE, None, updated_at=at(-5))


async def test_a_command_of_the_stream_moves_the_timer_and_keeps_its_callback(store: Store) -> None:
    await ask(store, due_s=60)

    assert await store.apply([schedule(due_s=5, number=9)], at(0)) == [Outcome.RESCHEDULED]

    assert await fire(store, 5) == ["order-1"]
    assert (await record(store)).callback == CALLBACK


async def test_a_timer_that_expires_by_a_command_of_the_stream_opens_no_delivery(store: Store) -> None:
    await ask(store, due_s=60)
    await store.apply([schedule(due_s=0, number=9, expires_after_s=5)], at(-1))

    async with store.claim_due(at(6), 10, sink=Sink.HTTP) as claim:
        [timer] = claim.timers
        await claim.settle([timer], timer.judged(at(6)))
        await claim.mark_reached([timer.event(timer.judged(at(6)), at(6))])

    kept = await store.get(*key("order-1"))
    assert kept is not None
    assert (kept.state, kept.expired_at) == (TimerState.EXPIRED, at(6))
    assert await record(store) == CallbackRecord(CALLBACK, None, updated_at=at(-10))
    assert await due(store, 6) == []
    assert await store.deliveries.list_deliveries(DeliveryQuery(ACME)) == []


async def test_a_timer_whose_callback_is_taken_away_fires_on_the_bus(store: Store) -> None:
    await ask(store)
    await ask(store, callback=NO_CALLBACK, now_s=-5)

    assert await fire(store) == []
    async with store.claim_due(at(0), 10) as claim:
        assert [timer.service_call_id for timer in claim.timers] == ["order-1"]
    assert await store.deliveries.get([key("order-1")]) == {}


async def test_a_request_that_is_refused_changes_no_callback(store: Store) -> None:
    await ask(store)
    assert await ask(store, callback=WHOLE, now_s=0) is Outcome.DUE
    await fire(store)

    assert await ask(store, callback=WHOLE, now_s=1) is Outcome.ALREADY_REACHED
    assert (await record(store)).callback == CALLBACK


async def test_the_sinks_do_not_see_each_others_timers(store: Store) -> None:
    await ask(store, "http-1", -3)
    await ask(store, "http-2", 30)
    await store.apply([schedule("bus-1", -2), schedule("bus-2", 20)], at(-10))

    async with store.claim_due(at(0), 1) as bus, store.claim_due(at(0), 1, sink=Sink.HTTP) as http:
        assert [timer.service_call_id for timer in bus.timers] == ["bus-1"]
        assert [timer.service_call_id for timer in http.timers] == ["http-1"]
        assert (bus.more, http.more) == (False, False)
    assert await store.next_due_at(at(0)) == at(20)
    assert await store.next_due_at(at(0), Sink.HTTP) == at(30)


async def test_a_backlog_of_one_sink_leaves_the_other_its_turn(store: Store) -> None:
    commands = [schedule(f"bus-{n:03}", -100 + n / 1000, number=n + 1) for n in range(50)]
    await store.apply(commands, at(-200))
    for n in range(20):
        await ask(store, f"http-{n:03}", -50 + n / 1000, now_s=-200)

    async with store.claim_due(at(0), 5) as bus, store.claim_due(at(0), 5, sink=Sink.HTTP) as http:
        assert {timer.service_call_id[:3] for timer in bus.timers} == {"bus"}
        assert {timer.service_call_id[:4] for timer in http.timers} == {"http"}
        assert (len(bus.timers), len(http.timers), bus.more, http.more) == (5, 5, True, True)


async def test_a_list_holds_both_sinks_in_one_order_or_one_of_them(store: Store) -> None:
    await ask(store, "b", 2)
    await store.apply([schedule("a", 1), schedule("c", 3)], at(-10))

    assert [t.service_call_id for t in await store.list_timers(TimerQuery(ACME))] == ["a", "b", "c"]
    http = await store.list_timers(TimerQuery(ACME, sink=Sink.HTTP))
    assert [timer.service_call_id for timer in http] == ["b"]


async def test_pending_and_overdue_timers_of_both_sinks_are_counted(store: Store) -> None:
    await ask(store, "a", -5)
    await ask(store, "b", 7)
    await store.apply([schedule("c", -3), schedule("d", 9)], at(-10))

    counts = await store.count(at(0))

    assert (counts.pending, counts.overdue) == (4, 2)
    assert (counts.oldest_overdue_at, counts.next_due_at) == (at(-5), at(7))


async def test_the_mark_opens_the_delivery_in_one_step(store: Store) -> None:
    await ask(store, callback=WHOLE)

    async with store.claim_due(at(0), 10, sink=Sink.HTTP) as claim:
        [timer] = claim.timers
        event = timer.reached(at(0))
        assert await claim.mark_reached([event]) == 1

    reached = await store.get(*key("order-1"))
    assert reached is not None
    assert reached.state is TimerState.REACHED
    assert await delivery(store) == open_delivery(event, WHOLE)


async def test_a_timer_that_was_changed_meanwhile_gets_no_delivery(store: Store) -> None:
    await ask(store, "moved")
    await ask(store, "cancelled")

    async with store.claim_due(at(0), 10, sink=Sink.HTTP) as claim:
        await store.apply([schedule("moved", 60, number=9), cancel("cancelled", number=9)], at(0))
        events = [timer.reached(at(0)) for timer in claim.timers]
        assert await claim.mark_reached(events) == 0

    assert (await record(store, "moved")).delivery is None
    assert (await record(store, "cancelled")).delivery is None
    assert await due(store) == []


async def test_marking_again_opens_nothing_again(store: Store) -> None:
    await ask(store)
    async with store.claim_due(at(0), 10, sink=Sink.HTTP) as claim:
        event = claim.timers[0].reached(at(0))
        await claim.mark_reached([event])
    await attempt(store, Answered(200))
    delivered = await delivery(store)

    async with store.claim_due(at(0), 10, sink=Sink.HTTP) as claim:
        assert await claim.mark_reached([event]) == 0

    assert await delivery(store) == delivered


async def test_what_waits_is_found_in_the_order_of_its_next_attempt(store: Store) -> None:
    for second, name in enumerate(["c", "a", "b"]):
        await ask(store, name, second)
        await fire(store, second)

    assert await due(store, 0.999) == ["c"]
    assert await due(store, 5) == ["c", "a", "b"]
    assert await due(store, 5, after=(at(1), ACME, call("a"))) == ["b"]
    assert (await store.deliveries.due(at(1), 10)).next_attempt_at == at(2)
    assert (await store.deliveries.due(at(5), 10)).next_attempt_at is None
    assert (await store.deliveries.due(at(5), 2)).next_attempt_at is None


async def test_one_lane_can_be_asked_for(store: Store) -> None:
    other = Callback("https://other.example")
    await ask(store, "a")
    await ask(store, "b", callback=other)
    await ask(store, "c", tenant=GLOBEX)
    await ask(store, "d")
    await fire(store)

    assert await due(store, lane=(ACME, CALLBACK.origin)) == ["a", "d"]
    assert await due(store, lane=(ACME, other.origin)) == ["b"]
    assert await due(store, lane=(ACME, CALLBACK.origin), after=(at(0), ACME, call("a"))) == ["d"]


async def test_the_callbacks_of_a_large_batch_are_each_kept_with_their_timer(store: Store) -> None:
    callbacks = {f"order-{n}": replace(WHOLE, url=f"https://shop.example/{n}") for n in range(250)}
    requests = [replace(schedule(name, 60), callback=callback) for name, callback in callbacks.items()]

    await store.decide(requests, at(0))

    found = await store.deliveries.get([key(name) for name in callbacks])
    assert {name: found[key(name)].callback for name in callbacks} == callbacks


async def test_what_was_just_handed_over_is_found_by_its_key(store: Store) -> None:
    for second, name in enumerate(["delivered", "a", "b", "later"]):
        await ask(store, name, second)
    await fire(store, 0)
    await attempt(store, Answered(200), "delivered")
    for second in (1, 2, 3):
        await fire(store, second)
    keys = [key(name) for name in ("a", "delivered", "later", "nobody", "b")]

    found = await store.deliveries.due_among(keys, at(2))

    page = await store.deliveries.due(at(2), 10)
    assert sorted(found, key=lambda each: each.place) == page.found
    assert [each.service_call_id for each in page.found] == ["a", "b"]


async def test_a_claim_brings_all_that_the_attempt_needs(store: Store) -> None:
    request = replace(schedule(due_s=-1, correlation="c-1", trace="00-1"), callback=WHOLE)
    await store.decide([request], at(-10))
    await fire(store)

    [claimed] = await store.deliveries.claim([key("order-1")], at(0))

    assert claimed == ClaimedDelivery(
        await delivery(store), WHOLE, request.correlation_id, Trace("00-1", None)
    )


async def test_only_what_waits_and_is_due_can_be_claimed(store: Store) -> None:
    for name in ("delivered", "later", "waiting"):
        await ask(store, name)
    await fire(store)
    await attempt(store, Answered(200), "delivered")
    await attempt(store, FAIL, "later")

    names = [key(name) for name in ("delivered", "later", "waiting", "unknown")]
    claimed = await store.deliveries.claim(names, at(1))

    assert [each.delivery.service_call_id for each in claimed] == ["waiting"]


async def test_a_delivered_callback_is_over(store: Store) -> None:
    await ask(store)
    await fire(store)
    [claimed] = await store.deliveries.claim([key("order-1")], at(0))

    assert await store.deliveries.finish([outcome(claimed, Answered(204))]) == 1

    assert await delivery(store) == outcome(claimed, Answered(204)).after
    assert await due(store, 10**6) == []


async def test_a_failed_attempt_is_kept_and_the_next_one_waits_for_its_time(store: Store) -> None:
    await ask(store)
    await fire(store)

    await attempt(store, FAIL, now_s=1)

    assert await due(store, 5.999) == []
    assert await due(store, 6) == ["order-1"]
    found = await record(store)
    assert found.attempts == (Attempt(1, at(1), timedelta(milliseconds=7), 500, describe(FAIL)),)


async def test_what_a_receiver_said_is_kept_with_the_attempt(store: Store) -> None:
    await ask(store)
    await fire(store)
    [claimed] = await store.deliveries.claim([key("order-1")], at(0))
    finished = outcome(claimed, FAIL)
    assert finished.failure is not None
    failure = replace(finished.failure, answer='{"why": "no ♥"}')

    await store.deliveries.finish([replace(finished, failure=failure)])

    assert (await record(store)).attempts == (failure,)


async def test_the_newest_failed_attempts_are_kept(store: Store) -> None:
    retry = RetryPolicy((timedelta(),) * 50)
    await ask(store, callback=replace(CALLBACK, retry=retry))
    await fire(store)

    for number in range(KEPT_ATTEMPTS + 5):
        await attempt(store, FAIL, now_s=number)

    numbers = [each.number for each in (await record(store)).attempts]
    assert numbers == list(range(6, KEPT_ATTEMPTS + 6))


async def test_an_outcome_counts_once(store: Store) -> None:
    await ask(store)
    await fire(store)
    [claimed] = await store.deliveries.claim([key("order-1")], at(0))
    failed = outcome(claimed, FAIL)
    await store.deliveries.finish([failed])

    assert await store.deliveries.finish([failed]) == 0
    assert await store.deliveries.finish([outcome(claimed, Answered(200))]) == 0

    assert await delivery(store) == failed.after


async def test_many_outcomes_are_kept_together(store: Store) -> None:
    names = [f"order-{n}" for n in range(5)]
    for name in names:
        await ask(store, name)
    await fire(store)

    claimed = await store.deliveries.claim([key(name) for name in names], at(0))
    finished = [
        outcome(each, FAIL if each.delivery.service_call_id == "order-3" else Answered(200))
        for each in claimed
    ]
    assert await store.deliveries.finish(finished) == 5

    assert await due(store, 60) == ["order-3"]


async def test_an_outcome_after_the_end_changes_nothing(store: Store) -> None:
    await ask(store)
    await fire(store)
    [claimed] = await store.deliveries.claim([key("order-1")], at(0))
    abandoned = await store.deliveries.abandon(key("order-1"), at(1))

    assert await store.deliveries.finish([outcome(claimed, Answered(200))]) == 0

    assert abandoned == abandon(claimed.delivery, at(1))
    assert await delivery(store) == abandoned
    assert await store.deliveries.abandon(key("order-9"), at(1)) is None


async def test_an_outcome_of_before_a_replay_changes_nothing(store: Store) -> None:
    await ask(store, callback=replace(CALLBACK, retry=RetryPolicy(())))
    await fire(store)
    [claimed] = await store.deliveries.claim([key("order-1")], at(0))
    await store.deliveries.abandon(key("order-1"), at(1))
    await store.deliveries.replay([await delivery(store)], at(2))
    replayed = await delivery(store)

    assert await store.deliveries.finish([outcome(claimed, FAIL, 3)]) == 0

    assert await delivery(store) == replayed
    assert await due(store, 3) == ["order-1"]


async def test_a_replay_waits_at_once_under_the_same_id(store: Store) -> None:
    await ask(store, callback=WHOLE)
    await fire(store)
    await attempt(store, Answered(410))
    failed = await delivery(store)

    assert await store.deliveries.replay([failed], at(9)) == 1
    assert await store.deliveries.replay([failed], at(9)) == 0

    assert await delivery(store) == replay(failed, at(9))
    assert await due(store, 9) == ["order-1"]


async def test_what_waits_or_has_changed_since_it_was_read_is_not_replayed(store: Store) -> None:
    await ask(store)
    await fire(store)
    waiting = await delivery(store)
    await attempt(store, Answered(410))
    failed = await delivery(store)
    await store.deliveries.replay([failed], at(9))
    await attempt(store, Answered(200), now_s=9)
    delivered = await delivery(store)

    assert await store.deliveries.replay([waiting, failed], at(12)) == 0

    assert await delivery(store) == delivered
    assert await store.deliveries.replay([delivered], at(12)) == 1


async def test_many_are_replayed_together(store: Store) -> None:
    for n in range(5):
        await ask(store, f"order-{n}", n - 10, now_s=-20)
        await fire(store, n - 10)
        await attempt(store, Answered(410), f"order-{n}")
    query = DeliveryQuery(ACME, DeliveryState.FAILED, opened_from=at(-9))
    failed = await store.deliveries.list_deliveries(query)

    assert await store.deliveries.replay(failed[:3], at(0)) == 3
    assert await store.deliveries.replay(failed, at(0)) == 1

    assert await due(store) == ["order-1", "order-2", "order-3", "order-4"]


async def test_deliveries_are_listed_in_pages_by_the_time_they_were_opened(store: Store) -> None:
    for n, result in enumerate([Answered(200), Answered(410), FAIL, Answered(410)]):
        await ask(store, f"order-{n}", n)
        await fire(store, n)
        await attempt(store, result, f"order-{n}", n)
    await ask(store, "other", 0, tenant=GLOBEX)
    await fire(store, 9)

    async def names(query: DeliveryQuery) -> list[str]:
        return [each.service_call_id for each in await store.deliveries.list_deliveries(query)]

    assert await names(DeliveryQuery(ACME)) == ["order-0", "order-1", "order-2", "order-3"]
    assert await names(DeliveryQuery(ACME, state=DeliveryState.FAILED)) == ["order-1", "order-3"]
    assert await names(DeliveryQuery(ACME, limit=2)) == ["order-0", "order-1"]
    assert await names(DeliveryQuery(ACME, after=(at(1), call("order-1")))) == ["order-2", "order-3"]
    assert await names(DeliveryQuery(ACME, opened_from=at(1), opened_before=at(3))) == ["order-1", "order-2"]
    assert await names(DeliveryQuery(ACME, origin="https://nobody.example:443")) == []
    assert await names(DeliveryQuery(GLOBEX)) == ["other"]


async def test_callbacks_that_failed_for_good_are_told_of_by_tenant_receiver_and_error(store: Store) -> None:
    gone, large = Answered(410), Answered(413)
    for n, result in enumerate([large, gone, gone, Answered(200), FAIL]):
        await ask(store, f"order-{n}", n)
        await fire(store, n)
        await attempt(store, result, f"order-{n}", n)
    await ask(store, "other", 9, tenant=GLOBEX)
    await fire(store, 9)
    await attempt(store, gone, "other", 9, GLOBEX)
    of_globex = Failing(GLOBEX, CALLBACK.origin, describe(gone), 1, call("other"))
    of_acme = Failing(ACME, CALLBACK.origin, describe(gone), 2, call("order-2"))
    too_large = Failing(ACME, CALLBACK.origin, describe(large), 1, call("order-0"))

    assert list(await store.insight.failing(None, 10)) == [of_globex, of_acme, too_large]
    assert list(await store.insight.failing(None, 2)) == [of_globex, of_acme]
    assert list(await store.insight.failing(frozenset({ACME}), 1)) == [replace(of_acme, count=1)]
    assert list(await store.insight.failing(frozenset(), 10)) == []


async def test_what_waits_is_counted(store: Store) -> None:
    for name in ("a", "b", "c"):
        await ask(store, name)
    await fire(store)
    await attempt(store, FAIL, "a")
    await attempt(store, Answered(200), "b")

    counts = await store.deliveries.count(at(1))

    assert (counts.waiting, counts.overdue, counts.oldest_overdue_at) == (2, 1, at(0))


async def test_a_purge_spares_what_waits_and_forgets_all_of_the_rest(store: Store) -> None:
    for name in ("waits", "delivered", "failed"):
        await ask(store, name)
    await ask(store, "never", 50)
    await store.apply([cancel("never", number=9), schedule("bus", -5)], at(-1))
    await fire(store)
    await attempt(store, Answered(200), "delivered")
    await attempt(store, Answered(410), "failed")

    assert await store.purge(at(100), 10) == 3
    assert await store.purge(at(100), 10) == 0

    names = [key(name) for name in ("waits", "delivered", "failed", "never", "bus")]
    assert set(await store.deliveries.get(names)) == {key("waits")}
    assert await store.get(*key("waits")) is not None
    await attempt(store, Answered(200), "waits")
    assert await store.purge(at(100), 10) == 1


async def test_a_cancel_and_the_hand_over_never_both_happen(store: Store) -> None:
    """A timer reported as `cancelled` never has a delivery; for one that has, the cancel came too late."""
    names = [f"order-{n}" for n in range(40)]
    for name in names:
        await ask(store, name, 1)

    async def cancel_all() -> dict[str, Outcome]:
        outcomes = {}
        for name in names:
            [decided] = await store.decide([cancel(name)], at(0.999))
            outcomes[name] = decided.outcome
        return outcomes

    outcomes, *_ = await asyncio.gather(cancel_all(), fire(store, 1, 7), fire(store, 1, 7))

    opened = {each.service_call_id for each in await store.deliveries.list_deliveries(DeliveryQuery(ACME))}
    cancelled = {name for name, outcome in outcomes.items() if outcome is Outcome.CANCELLED}
    assert not opened & cancelled
    for name in names:
        timer = await store.get(*key(name))
        assert timer is not None
        assert (timer.state is TimerState.REACHED) == (name in opened)
