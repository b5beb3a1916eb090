"""A broker that comes back without its newest messages: what is new counts, what is old stays old."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from tests.support import messages
from tests.support.broker import NatsServer, told
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, at, call
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.messages import Command, Position
from timer_service.domain.timer import TimerState
from timer_service.ports.command_source import CommandBatch
from timer_service.testing import START, ManualClock, MemoryTimerStore


class Site:
    """A broker with a tenant, a bus and a store; what is received is applied, as the service does it."""

    def __init__(self, server: NatsServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.store = MemoryTimerStore()
        self.clock = ManualClock()
        self.bus = self._bus()

    def _bus(self) -> NatsBus:
        options = NatsOptions(connect={"servers": [self.server.url]}, ack_wait_s=2.0)
        return NatsBus(options, self.clock, lambda: 0.5, self.store)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Run a bus that knows nothing but what the store has kept."""
        self.bus = self._bus()
        async with self.bus.running():
            await self.until_connected()
            yield

    async def until_connected(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.bus.source.problem is not None:
                await asyncio.sleep(0.01)

    async def until_noticed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while "commands" not in self.bus.warnings:
                await asyncio.sleep(0.01)

    async def send(self, name: str, due_s: float | None = 3600) -> int:
        """Schedule a timer as a tenant, or cancel it."""
        envelope = (
            messages.cancel("acme", name) if due_s is None else messages.schedule("acme", name, at(due_s))
        )
        subject = f"timer.commands.acme.{envelope['type']}"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self.client.jetstream(timeout=5).publish(
                        subject, messages.encode(envelope)
                    )
                except (nats.errors.Error, TimeoutError):
                    await asyncio.sleep(0.05)  # The broker is not back yet.
                else:
                    return int(answer.seq)

    async def receive(self, *, acknowledge: bool = True) -> tuple[CommandBatch, list[Position]]:
        """Receive one batch, apply it, and say where its commands stand."""
        async with asyncio.timeout(PATIENCE_S):
            batch = await self.bus.source.receive()
        await self.apply(*batch.commands)
        if acknowledge:
            await batch.acknowledge()
        return batch, [command.position for command in batch.commands]

    async def receive_until(self, sequence: int) -> set[Position]:
        """Receive until this one has come: what was acknowledged just before the end may come again."""
        found: set[Position] = set()
        while sequence not in {position.sequence for position in found}:
            _, positions = await self.receive()
            found.update(positions)
        return found

    async def apply(self, *commands: Command) -> None:
        await self.store.apply(commands, START)

    async def created_us(self) -> int:
        [first, *_] = await self.store.stream_epochs()
        return first.stream_created_us

    def state(self, name: str) -> TimerState:
        return self.store.timers[ACME, call(name)].state

    async def until_acknowledged(self) -> None:
        """Wait until the broker has forgotten all that was handled: an acknowledgement is not answered."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.left():
                await asyncio.sleep(0.01)

    async def left(self) -> int:
        return int(
            (await self.client.jetstream(timeout=PATIENCE_S).stream_info("TIMER_COMMANDS")).state.messages
        )


async def _ignore(_: Exception) -> None:
    pass


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    server = NatsServer(tmp_path / "nats").start()
    options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.05, "error_cb": _ignore}
    client = await nats.connect(server.url, **options)
    try:
        yield Site(server, client)
    finally:
        await client.close()
        server.kill()


async def keep_going(site: Site) -> None:
    """Apply one command, let the broker remember that much, and apply two more."""
    await site.send("order-1")
    await site.receive()
    await site.until_acknowledged()
    site.server.keep_data()
    await site.until_connected()
    for name in ("order-2", "order-1"):
        await site.receive_until(await site.send(name))
    await site.until_acknowledged()


async def test_a_command_after_the_loss_is_newer_than_all_that_was_applied(site: Site) -> None:
    with capture_logs() as logs:
        async with site.connected():
            await keep_going(site)
            created_us = await site.created_us()

            site.server.lose_tail()
            await site.until_noticed()
            sequence = await site.send("order-1", due_s=None)
            positions = await site.receive_until(2)

    assert sequence == 2
    assert Position(created_us + 1, 2) in positions
    assert site.state("order-1") is TimerState.CANCELLED
    assert [
        (entry["expected"], entry["found"]) for entry in logs if entry["event"] == "stream.tail_lost"
    ] == [(3, 1)]


async def test_a_loss_while_the_service_was_away_is_noticed_when_it_starts(site: Site) -> None:
    async with site.connected():
        await keep_going(site)
    site.server.lose_tail()

    async with site.connected():
        assert "commands" in site.bus.warnings
        await site.receive_until(await site.send("order-1", due_s=None))

    assert site.state("order-1") is TimerState.CANCELLED


async def test_a_loss_that_new_commands_have_hidden_is_noticed_when_they_are_read(site: Site) -> None:
    """The stream is longer again than what was applied, so that only the messages themselves tell of it."""
    async with site.connected():
        await keep_going(site)
        created_us = await site.created_us()
    site.server.lose_tail()
    await site.send("order-1", due_s=None)
    for number in range(3, 7):
        await site.send(f"order-{number}")

    async with site.connected():
        found = await site.receive_until(6)
        assert "commands" in site.bus.warnings

    assert found >= {Position(created_us + 1, sequence) for sequence in range(2, 7)}
    assert {position.sequence for position in found - {Position(created_us, 1)}} == set(range(2, 7))
    assert site.state("order-1") is TimerState.CANCELLED


async def test_a_command_that_outlived_the_loss_does_not_undo_a_newer_one(site: Site) -> None:
    async with site.connected():
        await site.send("order-1")
        await site.receive(acknowledge=False)
        site.server.keep_data()
        await site.until_connected()
        await site.receive()
        await site.send("order-1", due_s=None)
        await site.receive()

        site.server.lose_tail()
        await site.until_noticed()
        batch, _ = await site.receive()

    assert batch.redelivered == 1
    assert site.state("order-1") is TimerState.CANCELLED


async def test_what_the_broker_has_lost_is_not_acknowledged_in_the_place_of_what_came_after(
    site: Site,
) -> None:
    async with site.connected():
        await site.send("order-1")
        await site.receive()
        await site.until_acknowledged()
        site.server.keep_data()
        await site.until_connected()
        await site.send("order-2")
        lost, _ = await site.receive(acknowledge=False)
        site.server.lose_tail()
        await site.until_noticed()
        await site.send("order-3")
        new, _ = await site.receive(acknowledge=False)

        await lost.acknowledge()
        await told(site.client)
        assert await site.left() == 1

        await new.acknowledge()
        await site.until_acknowledged()


async def test_a_request_after_the_loss_counts_as_newer_than_all_that_was_applied(site: Site) -> None:
    async with site.connected():
        await keep_going(site)
        before = await site.bus.source.last_position()

        site.server.lose_tail()
        await site.until_noticed()
        await site.until_connected()  # It is noticed while the session is still being prepared.
        after = await site.bus.source.last_position()

    assert after > before
    assert after.sequence == 1


async def test_a_broker_that_lost_nothing_is_not_suspected(site: Site) -> None:
    async with site.connected():
        await keep_going(site)
        created_us = await site.created_us()

        site.server.kill()
        site.server.start()
        await site.send("order-1", due_s=None)
        positions = await site.receive_until(4)

        assert site.bus.warnings == {}
    assert {position.stream_created_us for position in positions} == {created_us}


async def test_what_was_lost_is_told_for_a_day(site: Site) -> None:
    async with site.connected():
        await keep_going(site)
        site.server.lose_tail()
        await site.until_noticed()

        site.clock.advance(86_399)
        assert "commands" in site.bus.warnings
        site.clock.advance(2)
        assert site.bus.warnings == {}
