"""The client's worker on a real broker: what is handled once, given back, kept alive, or refused."""

import asyncio
import itertools
import json
import logging
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tests.support.broker import NatsServer
from tests.support.clients import PREFIX, open_real
from tests.support.patience import PATIENCE_S
from tests.support.worker import effects, prepare, start_worker
from timer_client import ConsumerConflict, Firing, Handler, NotPermitted, ServiceAway, Timers

DUE = "2026-12-01T09:00:00.000Z"
LONG = timedelta(minutes=10)
"""As ack_wait: what got stuck does not come again while the test lives, so that it shows."""
SHORT = timedelta(seconds=1)


class Stream:
    """The events of one tenant, written by the test."""

    def __init__(self, connection: Client, prefix: str, tenant: str = "acme") -> None:
        self.connection = connection
        self.prefix = prefix
        self.tenant = tenant
        self.name = f"{prefix.upper()}_EVENTS"
        self.timers = Timers(connection, tenant="acme", prefix=prefix)
        self.jetstream = connection.jetstream(timeout=PATIENCE_S)

    async def fire(self, call: str, *, firing_id: str = "", generation: int = 1, tenant: str = "") -> str:
        tenant = tenant or self.tenant
        payload = {"tenantId": tenant, "serviceCallId": call, "dueAt": DUE, "reachedAt": DUE}
        event = {
            "id": firing_id or str(uuid.uuid4()),
            "type": "DueTimeReached",
            "tenantId": tenant,
            "timestampMs": 1,
            "payload": {**payload, "generation": generation},
        }
        await self.publish(json.dumps(event).encode())
        return str(event["id"])

    async def publish(self, body: bytes) -> None:
        await self.jetstream.publish(f"{self.prefix}.events.{self.tenant}.DueTimeReached", body)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_all_acknowledged(self, name: str = "acme-billing") -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                info = await self.jetstream.consumer_info(self.name, name)
                if not info.num_pending and not info.num_ack_pending:
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def stream(shared_broker: NatsServer, prefix: str) -> AsyncIterator[Stream]:
    async with await nats.connect(shared_broker.url) as connection:
        made = Stream(connection, prefix)
        await made.jetstream.add_stream(StreamConfig(name=made.name, subjects=[f"{prefix}.events.>"]))
        yield made
        await made.jetstream.delete_stream(made.name)


# Once


async def test_a_handler_slower_than_ack_wait_runs_once(stream: Stream) -> None:
    """With three signs of life in each ack_wait, eight of them span more than two."""
    runs: list[int] = []
    go_on = asyncio.Event()
    said = await stream.connection.subscribe(f"$JS.ACK.{stream.name}.acme-billing.>")

    async def handle(firing: Firing) -> None:
        runs.append(firing.deliveries)
        await go_on.wait()

    async with stream.timers.consume("billing", handle, ack_wait=SHORT):
        await stream.fire("order-1")
        for _ in range(8):
            assert (await said.next_msg(timeout=PATIENCE_S)).data == b"+WPI"
        go_on.set()
        await stream.until_all_acknowledged()

    assert runs == [1]


async def test_a_firing_that_was_published_twice_is_handled_once(stream: Stream) -> None:
    handled: list[str] = []

    async def handle(firing: Firing) -> None:
        await asyncio.sleep(0)
        handled.append(firing.service_call_id)

    first = await stream.fire("order-1")
    await stream.fire("order-2")
    await stream.fire("order-1", firing_id=first)
    async with stream.timers.consume("billing", handle, ack_wait=LONG) as consumer:
        await stream.until(lambda: len(handled) == 2)
        await stream.until_all_acknowledged()
        await stream.fire("order-1", firing_id=first)
        await stream.until_all_acknowledged()

    assert sorted(handled) == ["order-1", "order-2"]
    assert (consumer.counts.handled, consumer.counts.repeated) == (2, 2)


async def test_the_firings_of_one_timer_are_never_handled_side_by_side(stream: Stream) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    handled: list[tuple[str, int]] = []

    async def handle(firing: Firing) -> None:
        call = firing.service_call_id
        running[call] += 1
        most[call] = max(most[call], running[call])
        await asyncio.sleep(0.005)
        running[call] -= 1
        handled.append((call, firing.generation))

    for generation, call in itertools.product(range(1, 11), ("order-1", "order-2")):
        await stream.fire(call, generation=generation)
    async with stream.timers.consume("billing", handle, concurrency=10, prefetch=20, ack_wait=LONG):
        await stream.until(lambda: len(handled) == 20)

    assert most == {"order-1": 1, "order-2": 1}
    assert [g for call, g in handled if call == "order-1"] == list(range(1, 11))


async def test_a_firing_of_a_timer_that_was_moved_is_dropped_where_asked(
    shared_broker: NatsServer,
) -> None:
    async with open_real(shared_broker) as desk:
        timers, handled = desk.timers, list[str]()
        for due in (timedelta(days=1), timedelta(days=2)):
            await timers.schedule("moved", due, confirm=True)
        await timers.schedule("gone", timedelta(days=1), confirm=True)
        await timers.cancel("gone", confirm=True)

        async def handle(firing: Firing) -> None:
            handled.append(firing.service_call_id)

        async with await nats.connect(shared_broker.url) as connection:
            for call in ("moved", "gone", "unknown"):
                await Stream(connection, PREFIX, timers.tenant).fire(call)
        async with timers.consume("billing", handle, drop_stale=True, ack_wait=LONG) as consumer:
            async with asyncio.timeout(PATIENCE_S):
                while consumer.counts.stale < 2 or not handled:
                    await asyncio.sleep(0.01)

    assert handled == ["unknown"]


@pytest.mark.parametrize("workers", [2, 10])
async def test_workers_share_the_work_and_a_slow_one_holds_up_nobody(
    shared_broker: NatsServer, stream: Stream, workers: int
) -> None:
    handled: list[tuple[int, str]] = []
    names = [f"order-{number}" for number in range(200)]

    def handler(number: int) -> Handler:
        async def handle(firing: Firing) -> None:
            await asyncio.sleep(0.05 if number == 0 else 0.005)
            handled.append((number, firing.service_call_id))

        return handle

    async with AsyncExitStack() as stack:
        for number in range(workers):
            connection = await stack.enter_async_context(await nats.connect(shared_broker.url))
            timers = Timers(connection, tenant="acme", prefix=stream.prefix)
            await stack.enter_async_context(
                timers.consume("billing", handler(number), concurrency=2, ack_wait=LONG)
            )
        for name in names:
            await stream.fire(name)
        await stream.until(lambda: len(handled) >= len(names))
        await stream.until_all_acknowledged()

    assert sorted(call for _, call in handled) == sorted(names)
    assert {number for number, _ in handled} == set(range(workers))


# Given back


async def test_what_a_terminated_worker_has_not_begun_goes_to_another_at_once(
    shared_broker: NatsServer, stream: Stream, tmp_path: Path
) -> None:
    """Nothing is redelivered by time: ack_wait is ten minutes."""
    database = str(tmp_path / "effects.db")
    await prepare(database)
    names = {f"order-{number}" for number in range(501)}
    for name in names:
        await stream.fire(name)
    options = {"concurrency": 1, "ack_wait_ms": 600_000}
    first = start_worker(
        shared_broker.url, stream.prefix, "acme", database, prefetch=500, pause_ms=100, **options
    )
    assert first.stdout is not None
    await asyncio.to_thread(_read_until, first, "begun")
    await _until_fetched(stream, "acme-workers", 501)

    first.terminate()
    code = await asyncio.to_thread(first.wait, PATIENCE_S)
    left = 501 - len(await effects(database))
    second = start_worker(
        shared_broker.url, stream.prefix, "acme", database, prefetch=100, pause_ms=0, **options
    )
    await stream.until_all_acknowledged("acme-workers")
    second.terminate()
    await asyncio.to_thread(second.communicate, timeout=PATIENCE_S)
    first.stdout.close()

    assert (code, left > 400) == (0, True)
    assert Counter(await effects(database)) == dict.fromkeys(names, 1)


async def test_a_handler_that_takes_longer_than_the_grace_time_is_cancelled_and_its_firing_given_back(
    stream: Stream,
) -> None:
    deliveries: list[int] = []

    async def handle(firing: Firing) -> None:
        deliveries.append(firing.deliveries)
        if firing.deliveries == 1:
            await asyncio.Event().wait()

    await stream.fire("order-1")
    async with stream.timers.consume("billing", handle, ack_wait=LONG, grace=timedelta()) as first:
        await stream.until(lambda: deliveries == [1])
    async with stream.timers.consume("billing", handle):
        await stream.until(lambda: deliveries == [1, 2])

    assert (first.counts.handled, first.counts.given_back) == (0, 1)


# What is not as it should be


async def test_what_is_not_an_event_is_terminated_and_said(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str] = []

    async def handle(firing: Firing) -> None:
        handled.append(firing.service_call_id)

    await stream.publish(b"not an event")
    await stream.fire("foreign", tenant="globex")
    await stream.fire("order-1")
    with caplog.at_level(logging.ERROR):
        async with stream.timers.consume("billing", handle, ack_wait=LONG):
            await stream.until(lambda: handled == ["order-1"])
            await stream.until_all_acknowledged()

    assert len([record for record in caplog.records if "is not an event" in record.getMessage()]) == 2


async def test_a_consumer_that_somebody_deleted_is_created_again(stream: Stream) -> None:
    handled: list[str] = []

    async def handle(firing: Firing) -> None:
        handled.append(firing.service_call_id)

    async with stream.timers.consume("billing", handle, ack_wait=LONG):
        await stream.fire("order-1")
        await stream.until(lambda: handled == ["order-1"])
        await stream.until_all_acknowledged()
        await stream.jetstream.delete_consumer(stream.name, "acme-billing")
        await stream.fire("order-2")
        await stream.until(lambda: "order-2" in handled)

    assert Counter(handled) == {"order-1": 1, "order-2": 1}


async def test_a_worker_goes_on_after_its_broker_was_killed(tmp_path: Path) -> None:
    handled: list[str] = []

    async def handle(firing: Firing) -> None:
        handled.append(firing.service_call_id)

    broker = NatsServer(tmp_path).start()
    try:
        connection = await nats.connect(
            broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore
        )
        stream = Stream(connection, "timer")
        await stream.jetstream.add_stream(StreamConfig(name=stream.name, subjects=["timer.events.>"]))
        async with stream.timers.consume("billing", handle):
            await stream.fire("order-1")
            await stream.until(lambda: handled == ["order-1"])
            await stream.until_all_acknowledged()
            broker.kill()
            broker.start()
            await _until_fired(stream, "order-2")
            await stream.until(lambda: "order-2" in handled)
        await connection.close()
    finally:
        broker.stop()

    assert handled == ["order-1", "order-2"]


async def test_a_worker_ends_when_its_connection_was_closed_for_good(shared_broker: NatsServer) -> None:
    async with open_real(shared_broker) as desk:
        connection = await nats.connect(shared_broker.url)
        timers = Timers(connection, tenant=desk.timers.tenant, prefix=PREFIX)

        async def consume() -> None:
            async with timers.consume("billing", _never):
                await connection.close()
                await asyncio.sleep(PATIENCE_S)

        with pytest.raises(ServiceAway, match="connection to the broker was closed: consume again on a new"):
            await consume()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ConsumerConfig(filter_subject="{prefix}.events.globex.*"), "it reads {prefix}.events.globex.*"),
        (ConsumerConfig(), "it reads every subject"),
        (
            ConsumerConfig(filter_subject="{prefix}.events.acme.*", ack_policy=AckPolicy.NONE),
            "its messages are not acknowledged one by one",
        ),
        (
            ConsumerConfig(filter_subject="{prefix}.events.acme.*", deliver_subject="somewhere"),
            "it is a push consumer",
        ),
    ],
)
async def test_a_name_that_serves_another_purpose_is_not_taken_over(
    stream: Stream, config: ConsumerConfig, why: str
) -> None:
    filter_subject = config.filter_subject and config.filter_subject.format(prefix=stream.prefix)
    await stream.jetstream.add_consumer(
        stream.name, config.evolve(durable_name="acme-billing", filter_subject=filter_subject)
    )

    with pytest.raises(ConsumerConflict) as refused:
        async with stream.timers.consume("billing", _never):
            pass

    assert str(refused.value).endswith(f"and {why.format(prefix=stream.prefix)}: choose another name")


async def test_a_consumer_that_exists_is_used_as_it_is(stream: Stream) -> None:
    handled: list[str] = []

    async def handle(firing: Firing) -> None:
        handled.append(firing.service_call_id)

    await stream.jetstream.add_consumer(
        stream.name,
        durable_name="acme-billing",
        filter_subject=f"{stream.prefix}.events.acme.DueTimeReached",
        ack_policy=AckPolicy.EXPLICIT,
        max_ack_pending=77,
        ack_wait=600,
    )
    async with stream.timers.consume("billing", handle):
        await stream.fire("order-1")
        await stream.until(lambda: handled == ["order-1"])

    config = (await stream.jetstream.consumer_info(stream.name, "acme-billing")).config
    assert (config.max_ack_pending, config.ack_wait) == (77, 600)


async def test_a_prefix_that_does_not_exist_is_named_with_what_to_do(shared_broker: NatsServer) -> None:
    async with await nats.connect(shared_broker.url) as connection:
        timers = Timers(connection, tenant="acme", prefix="nowhere")

        with pytest.raises(ServiceAway, match=r"no stream for nowhere\.commands\.acme.*TIMER_SUBJECT_PREFIX"):
            await timers.schedule("order-1", timedelta(days=1))
        with pytest.raises(ServiceAway, match=r"no timer-service answers on nowhere\.api.*'nowhere'"):
            await timers.schedule("order-1", timedelta(days=1), confirm=True)
        with pytest.raises(ServiceAway, match=r"no stream for NOWHERE_EVENTS.*TIMER_SUBJECT_PREFIX"):
            async with timers.consume("billing", _never):
                pass
        with pytest.raises(ValueError, match="prefix must be tokens of letters"):
            Timers(connection, tenant="acme", prefix="no.*")
        with pytest.raises(ValueError, match="tenant must be 1 to 64 of"):
            Timers(connection, tenant="a.b")


async def test_a_missing_right_is_named_with_what_to_do(tmp_path: Path) -> None:
    allowed = 'publish: ["other.>"], subscribe: ["_INBOX.>", "timer.events.acme.>"]'
    users = f'authorization {{ users: [{{ user: "acme", password: "p", permissions: {{ {allowed} }} }}] }}'
    broker = NatsServer(tmp_path / "broker", users).start()
    try:
        connection = await nats.connect(broker.url, user="acme", password="p", error_cb=_ignore)
        timers = Timers(connection, tenant="acme")
        for forbidden in (
            lambda: timers.schedule("order-1", timedelta(days=1)),
            lambda: timers.get("order-1"),
            lambda: timers.consume("billing", _never).__aenter__(),
        ):
            with pytest.raises(NotPermitted, match=r"does not let this user publish to .*: grant it"):
                await forbidden()
        await connection.close()
    finally:
        broker.stop()


async def _until_fired(stream: Stream, call: str) -> None:
    """Publish once the connection has found the broker again; one id, so that it is stored once."""
    firing_id = str(uuid.uuid4())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with asyncio.timeout(5):
                    await stream.fire(call, firing_id=firing_id)
                return
            except (NatsError, TimeoutError):
                await asyncio.sleep(0.1)


async def _never(firing: Firing) -> None:
    raise AssertionError(firing)


async def _ignore(error: Exception) -> None:
    """The broker forbids what the test tries."""


def _read_until(worker: "subprocess.Popen[str]", word: str) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(word):
            return
    raise AssertionError(f"the worker ended without {word}")


async def _until_fetched(stream: Stream, name: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            info = await stream.jetstream.consumer_info(stream.name, name)
            done = 0 if info.ack_floor is None else info.ack_floor.stream_seq
            if (info.num_ack_pending or 0) + done >= count:
                return
            await asyncio.sleep(0.02)
