"""The one stable id of a firing."""

from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.timers import ACME, at, call, correlation, reached
from timer_service.domain.messages import ServiceCallId, TenantId, TimerExpired, epoch_ms, firing_id


def test_the_id_of_a_firing_stays_what_it_was_in_every_release() -> None:
    due_at = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)

    assert firing_id(ACME, call("order-42"), 1, due_at) == UUID("01a2309e-2400-727c-a3f5-870d5f6aecc1")


@pytest.mark.parametrize(
    ("tenant", "name", "generation", "due_at", "made"),
    [
        (
            "acme",
            "order-42",
            1,
            datetime(2025, 6, 2, 7, 30, tzinfo=UTC),
            "01972f8c-18c0-7408-9e53-852324dca19e",
        ),
        ("acme", "ünïcode-☃", 7, datetime(1969, 1, 1, tzinfo=UTC), "00000000-0000-7157-89b8-3cedcb70cab2"),
        (
            "globex",
            "order-1",
            2,
            datetime(2026, 12, 1, 9, 0, 0, 1000, tzinfo=UTC),
            "01a230d5-1281-7009-a796-af9002ba292d",
        ),
    ],
)
def test_the_id_of_an_expiry_stays_what_it_was_and_is_not_that_of_the_firing(
    tenant: str, name: str, generation: int, due_at: datetime, made: str
) -> None:
    key = TenantId(tenant), ServiceCallId(name)

    expiry = TimerExpired(*key, due_at, due_at, generation, None)

    assert str(expiry.id) == made
    assert expiry.id != firing_id(*key, generation, due_at)


def test_the_bits_behind_the_time_are_the_hash_of_what_fires() -> None:
    due_at = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
    digest = sha256(f"acme\norder-42\n3\n{epoch_ms(due_at)}".encode()).digest()
    bits = int.from_bytes(digest[:10], "big")

    made = firing_id(ACME, call("order-42"), 3, due_at)

    assert (made.int >> 64) & 0xFFF == bits >> 68
    assert made.int & (2**62 - 1) == bits & (2**62 - 1)


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.integers(1, 10**6),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1),
)
def test_every_id_is_a_uuid7_whose_time_part_is_the_due_time(
    due_at: datetime, generation: int, name: str
) -> None:
    made = firing_id(ACME, ServiceCallId(name), generation, due_at)

    assert (made.version, made.variant) == (7, RFC_4122)
    assert made.int >> 80 == max(0, epoch_ms(due_at))


@pytest.mark.parametrize(
    ("due_at", "time_part"),
    [
        (datetime(1, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC), 1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), 253_402_300_799_999),
    ],
)
def test_the_time_part_is_zero_before_1970_and_the_milliseconds_since_then(
    due_at: datetime, time_part: int
) -> None:
    assert firing_id(ACME, call("order-1"), 1, due_at).int >> 80 == time_part


def test_two_due_times_before_1970_still_have_two_ids() -> None:
    first = firing_id(ACME, call("order-1"), 1, datetime(1969, 1, 1, tzinfo=UTC))
    second = firing_id(ACME, call("order-1"), 1, datetime(1968, 1, 1, tzinfo=UTC))

    assert first != second


def test_a_repeated_publication_of_one_firing_has_the_same_id() -> None:
    first = reached("order-1", 60, reached_s=60)
    again = replace(first, at=at(99), correlation_id=correlation("request-1"))

    assert again.id == first.id == firing_id(ACME, call("order-1"), 1, at(60))


def test_tenant_timer_generation_and_due_time_each_make_another_id() -> None:
    firings = [
        firing_id(ACME, call("order-1"), 1, at(60)),
        firing_id(TenantId("globex"), call("order-1"), 1, at(60)),
        firing_id(ACME, call("order-2"), 1, at(60)),
        firing_id(ACME, call("order-1"), 2, at(60)),
        firing_id(ACME, call("order-1"), 1, at(60.001)),
    ]

    assert len(set(firings)) == len(firings)


def test_the_boundary_between_tenant_and_timer_counts() -> None:
    assert firing_id(TenantId("ab"), call("c"), 1, at(60)) != firing_id(TenantId("a"), call("bc"), 1, at(60))


def test_the_boundary_between_timer_and_generation_counts() -> None:
    assert firing_id(ACME, call("a1"), 1, at(60)) != firing_id(ACME, call("a"), 11, at(60))


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), -1),
        (datetime(2026, 1, 1, 12, 0, 0, 1_000, tzinfo=UTC), 1_767_268_800_001),
    ],
)
def test_epoch_milliseconds_are_exact_on_both_sides_of_1970(moment: datetime, expected: int) -> None:
    assert epoch_ms(moment) == expected
