"""Firings in our hands: kept by signs of life, and answered for only while they are ours."""

import asyncio
import time
from contextlib import suppress
from typing import cast

from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.unit.test_client_package import TIMER
from timer_client.firing import Firing
from timer_client.leases import Lease, Leases
from timer_client.wire import parse_time

DUE = parse_time(TIMER["dueAt"])  # type: ignore[arg-type]
FIRING = Firing("id-1", "acme", "order-1", DUE, DUE, 1, None, "billing")


class Wire:
    """A connection that keeps what was said, and is told that the broker has it unless it is away."""

    def __init__(self) -> None:
        self.said: list[tuple[str, bytes]] = []
        self.is_away = False

    async def publish(self, subject: str, body: bytes) -> None:
        self.said.append((subject, body))

    async def flush(self) -> None:
        if self.is_away:
            raise TimeoutError


def _message(delivery: int = 1) -> Msg:
    return Msg(cast("Client", None), reply=f"$JS.ACK.EVENTS.billing.{delivery}.7.{delivery}.1.0")


def _leases() -> tuple[Wire, Leases]:
    wire = Wire()
    return wire, Leases(cast("Client", wire), 10.0)


def _lease(seconds_left: float) -> Lease:
    return Lease(_message(), FIRING, time.monotonic() + seconds_left)


class Absorbing(Wire):
    """A connection whose answer comes with the cancellation, which nats-py then forgets on Python 3.11."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def flush(self) -> None:
        self.is_asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_who_keeps_firings_ends_when_it_is_cancelled_just_as_the_broker_answers() -> None:
    wire = Absorbing()
    leases = Leases(cast("Client", wire), 10.0)
    leases.add(_lease(5))
    keeping = asyncio.ensure_future(leases.keep())
    await wire.is_asked.wait()

    keeping.cancel()
    await asyncio.wait({keeping})

    assert keeping.cancelled()


async def test_who_has_lost_a_firing_stays_silent() -> None:
    wire, leases = _leases()
    lost = _lease(-1)
    leases.add(lost)

    answered = await leases.answer(lost, b"+ACK")
    await leases.keep()

    assert (answered, wire.said) == (False, [])


async def test_a_firing_is_kept_by_signs_of_life_that_the_broker_has() -> None:
    wire, leases = _leases()
    lease = _lease(1)
    leases.add(lease)
    before = lease.until

    wire.is_away = True
    await leases.keep()
    unheard = lease.until
    wire.is_away = False
    await leases.keep()

    assert wire.said == [(lease.message.reply, b"+WPI")] * 2
    assert unheard == before
    assert lease.until > before


async def test_a_firing_that_came_again_is_answered_by_its_newest_delivery() -> None:
    wire, leases = _leases()
    lease = _lease(-1)
    leases.add(lease)

    known = leases.renew(_message(delivery=2), time.monotonic() + 10)
    answered = await leases.answer(lease, b"+ACK")

    assert (known, answered) == (True, True)
    assert wire.said == [(_message(delivery=2).reply, b"+ACK")]


async def test_a_firing_that_is_not_ours_is_new() -> None:
    _, leases = _leases()
    lease = _lease(1)
    leases.add(lease)
    leases.drop(lease)

    assert not leases.renew(_message(), 0)
    assert len(leases) == 0
