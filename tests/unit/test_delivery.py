"""What becomes of a delivery after each attempt, by the table of outcomes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from timer_service.domain.callback import Callback, RetryPolicy, origin_of
from timer_service.domain.delivery import (
    MAX_JITTER,
    Answered,
    Blocked,
    CallResult,
    Delivery,
    DeliveryState,
    TimedOut,
    Trouble,
    Unreachable,
    abandon,
    after_attempt,
    asks_to_slow_down,
    describe,
    expire,
    is_unwell,
    open_delivery,
    replay,
)
from timer_service.domain.messages import DueTimeReached, ServiceCallId, TenantId

DUE = datetime(2030, 1, 1, tzinfo=UTC)
STARTED = DUE + timedelta(milliseconds=3)
NOW = DUE + timedelta(seconds=1)
CALLBACK = Callback("https://shop.example/hooks")
EVENT = DueTimeReached(TenantId("acme"), ServiceCallId("order-1"), DUE, DUE, 3, None)
OPEN = open_delivery(EVENT, CALLBACK)
TIMED_OUT = TimedOut(timedelta(seconds=30))


def test_a_delivery_begins_at_once_under_the_id_of_the_firing() -> None:
    assert OPEN.id == EVENT.id
    assert (OPEN.state, OPEN.next_attempt_at, OPEN.attempts) == (DeliveryState.WAITING, DUE, 0)
    assert OPEN.origin == "https://shop.example:443"


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_delivers(status: int) -> None:
    after = tried(Answered(status))

    assert after == replace(
        OPEN,
        state=DeliveryState.DELIVERED,
        next_attempt_at=None,
        attempts=1,
        last_attempt_at=STARTED,
        ended_at=NOW,
        status=status,
    )


@pytest.mark.parametrize(
    "result",
    [*(Answered(status) for status in (410, 413, 414, 431, 489)), Answered(500, final=True), Blocked("10/8")],
)
def test_what_is_of_no_use_to_repeat_fails_at_once(result: CallResult) -> None:
    after = tried(result)

    assert (after.state, after.ended_at, after.next_attempt_at) == (DeliveryState.FAILED, NOW, None)
    assert after.error == describe(result)


@pytest.mark.parametrize(
    "result",
    [
        *(Answered(status) for status in (301, 400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503)),
        TIMED_OUT,
        *(Unreachable(trouble) for trouble in Trouble if trouble is not Trouble.STORE),
    ],
)
def test_everything_else_is_tried_again(result: CallResult) -> None:
    after = tried(result)

    assert (after.state, after.next_attempt_at) == (DeliveryState.WAITING, NOW + timedelta(seconds=5))


def test_the_default_schedule_has_ten_attempts_in_45_hours() -> None:
    delivery, now = OPEN, DUE
    moments = []
    while delivery.next_attempt_at is not None:
        now = delivery.next_attempt_at
        moments.append(now - DUE)
        delivery = after_attempt(delivery, CALLBACK.retry, Answered(500), now, now, lambda: 0.0)

    hours = [moment / timedelta(hours=1) for moment in moments]
    assert len(moments) == 10
    assert moments[1:4] == [timedelta(seconds=5), timedelta(seconds=35), timedelta(seconds=155)]
    assert hours[-1] == pytest.approx(44.7, abs=0.1)
    assert (delivery.state, delivery.attempts) == (DeliveryState.FAILED, 10)


def test_chance_only_ever_makes_a_pause_longer() -> None:
    longest = tried(Answered(500), chance=1.0).next_attempt_at

    assert longest == NOW + timedelta(seconds=5) * (1 + MAX_JITTER)


@pytest.mark.parametrize(
    ("asked", "pause_s"),
    [
        ("120", 120),
        ("  7 ", 7),
        ("3", 5),
        ("Tue, 01 Jan 2030 00:10:01 GMT", 600),
        ("Mon, 31 Dec 2029 00:00:00 GMT", 5),
        ("999999999999999999", 86_400),
        ("Tue, 01 Jan 2036 00:00:00 GMT", 86_400),
        ("-1", 5),
        ("1e9", 5),
        ("soon", 5),
        ("Tue, 99 Jan 2030 00:00:00 GMT", 5),
        ("", 5),
    ],
)
def test_a_receiver_may_ask_for_a_longer_pause_up_to_a_day(asked: str, pause_s: int) -> None:
    after = tried(Answered(503, retry_after=asked))

    assert after.next_attempt_at == NOW + timedelta(seconds=pause_s)


def test_a_store_that_is_busy_uses_up_no_attempt() -> None:
    busy = Unreachable(Trouble.STORE, "the store is busy")
    once = RetryPolicy(())

    after = after_attempt(OPEN, once, busy, STARTED, NOW, lambda: 0.0)

    assert after == replace(OPEN, next_attempt_at=NOW + timedelta(seconds=1))
    assert not is_unwell(busy)


def test_the_last_attempt_of_a_schedule_ends_it() -> None:
    once = RetryPolicy(())

    assert after_attempt(OPEN, once, Answered(500), STARTED, NOW, lambda: 0.0).state is DeliveryState.FAILED


def test_no_attempt_begins_after_the_delivery_has_expired() -> None:
    limited = open_delivery(EVENT, replace(CALLBACK, expires_after=timedelta(seconds=4)))

    assert tried(Answered(500), limited).state is DeliveryState.FAILED
    assert expire(limited, DUE + timedelta(seconds=4)) is None
    expired = expire(limited, DUE + timedelta(seconds=5))
    assert expired is not None
    assert (expired.state, expired.attempts) == (DeliveryState.FAILED, 0)


def test_a_replay_keeps_the_id_counts_on_and_has_the_whole_schedule() -> None:
    failed = tried(Answered(410))

    again = replay(failed, NOW)
    after = tried(Answered(500), again)

    assert (again.id, again.state, again.attempts) == (OPEN.id, DeliveryState.WAITING, 1)
    assert (after.attempts, after.next_attempt_at) == (2, NOW + timedelta(seconds=5))
    assert replay(OPEN, NOW) is OPEN


def test_only_what_waits_can_be_abandoned() -> None:
    delivered = tried(Answered(200))

    assert abandon(OPEN, NOW).state is DeliveryState.ABANDONED
    assert abandon(delivered, NOW) is delivered


def test_an_answer_that_is_the_callers_affair_says_nothing_about_the_receiver() -> None:
    assert [is_unwell(Answered(status)) for status in (200, 301, 404, 422)] == [False] * 4
    assert [is_unwell(Answered(status)) for status in (429, 500, 503)] == [True] * 3
    assert [is_unwell(result) for result in (TIMED_OUT, Unreachable(Trouble.TLS), Blocked())] == [
        True,
        True,
        False,
    ]
    assert [asks_to_slow_down(r) for r in (TIMED_OUT, Answered(429), Answered(503), Answered(500))] == [
        True,
        True,
        True,
        False,
    ]


def test_an_error_is_one_bounded_line() -> None:
    assert describe(Answered(302, location="https://a.example/")) == (
        "the receiver answered 302, redirects are not followed: https://a.example/"
    )
    assert describe(TIMED_OUT) == "no answer within 30 s"
    assert describe(Unreachable(Trouble.CONNECT, "refused")) == "unreachable (connect): refused"
    missing = "there is no secret named token"
    assert describe(Unreachable(Trouble.SECRET, missing)) == f"not sent: {missing}"
    assert len(describe(Unreachable(Trouble.DNS, "x" * 10_000))) == 500


def test_by_default_ten_attempts_are_spread_over_45_hours_further_and_further_apart() -> None:
    policy = RetryPolicy()

    assert policy.max_attempts == 10
    assert sum(policy.delays, timedelta()) == timedelta(hours=44, minutes=42, seconds=35)
    assert list(policy.delays) == sorted(policy.delays)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a.example", "http://a.example:80"),
        ("https://A.Example:8443/x?y", "https://a.example:8443"),
        ("http://[2001:db8::1]:8080/", "http://[2001:db8::1]:8080"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def tried(result: CallResult, delivery: Delivery = OPEN, chance: float = 0.0) -> Delivery:
    return after_attempt(delivery, CALLBACK.retry, result, STARTED, NOW, lambda: chance)
