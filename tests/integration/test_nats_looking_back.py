"""What somebody who looks back finds in the streams of a real broker: letters, events, readers, instances."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.integration.test_nats_session import new_bus, until_connected
from tests.support.broker import SERVICE_LOGIN, NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.timers import expired, reached
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.letter_box import FIRST_WINDOW, NOT_A_LETTER
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.errors import BusUnavailable, RightMissing
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.ports.broker_view import InstanceSeen
from timer_service.ports.event_trail import Reader, Reading, Trail
from timer_service.testing import ManualClock, MemoryTimerStore

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


class Past:
    """A bus that runs, and somebody who fills its streams past it."""

    def __init__(self, bus: NatsBus, client: Client, prefix: str) -> None:
        self.bus = bus
        self.client = client
        self.prefix = prefix
        self.jetstream = client.jetstream(timeout=PATIENCE_S)

    async def write(self, tenant: str, body: object, **fields: object) -> int:
        """Put a letter into the stream and return its number."""
        letter = {
            "receivedAt": "2026-01-01T09:00:00.000Z",
            "reason": "invalid",
            "detail": "dueAt: is required",
            "subject": f"{self.prefix}.commands.{tenant}.ScheduleTimer",
            "body": body if isinstance(body, str) else json.dumps(body),
            "bodyEncoding": "utf-8",
            **fields,
        }
        return await self.put(tenant, json.dumps(letter).encode())

    async def put(self, tenant: str, body: bytes) -> int:
        stored = await self.jetstream.publish(f"{self.prefix}.deadletter.{tenant}", body, timeout=PATIENCE_S)
        return stored.seq

    async def numbers(self, tenant: TenantId | None, before: int | None = None, limit: int = 10) -> list[int]:
        found = await self.bus.letter_box.page(tenant, before, limit)
        return [letter.number for letter in found.letters]

    async def consumer(self, name: str, **config: Any) -> None:
        await self.jetstream.add_consumer(
            f"{self.prefix.upper()}_EVENTS", ConsumerConfig(name=name, durable_name=name, **config)
        )


@pytest.fixture
async def past(shared_broker: NatsServer, prefix: str) -> AsyncIterator[Past]:
    bus = new_bus(shared_broker.url, prefix)
    client = await nats.connect(shared_broker.url)
    async with bus.running():
        await until_connected(bus)
        yield Past(bus, client, prefix)
    await client.close()


# Letters


async def test_letters_of_a_tenant_are_told_from_the_newest_to_the_oldest(past: Past) -> None:
    numbers = [await past.write(tenant, {}) for tenant in ("acme", "globex", "acme", "_", "acme")]

    whole = await past.bus.letter_box.page(None, None, 10)
    first = await past.bus.letter_box.page(ACME, None, 2)
    second = await past.bus.letter_box.page(ACME, first.older, 2)

    assert [letter.number for letter in whole.letters] == numbers[::-1]
    assert [letter.tenant_id for letter in whole.letters] == [ACME, None, ACME, GLOBEX, ACME]
    assert [letter.number for letter in (*first.letters, *second.letters)] == [5, 3, 1]
    assert (first.older, second.older, whole.older) == (3, None, None)


async def test_the_newest_letters_are_found_behind_more_of_others_than_one_look_covers(past: Past) -> None:
    mine = await past.write("acme", {})
    for _ in range(FIRST_WINDOW + 1):
        await past.put("globex", b"{}")

    assert await past.numbers(ACME) == [mine]


async def test_an_empty_stream_has_no_letters(past: Past) -> None:
    found = await past.bus.letter_box.page(None, None, 10)

    assert (found.letters, found.looked_at, found.older) == ((), 0, None)
    assert await past.bus.letter_box.get(1) is None


async def test_one_letter_is_read_by_its_number_and_only_by_it(past: Past) -> None:
    number = await past.write("acme", "café", bodyTruncated=True)
    binary = await past.write("acme", "/wA=", bodyEncoding="base64")
    broken = await past.write("acme", "a", bodyEncoding="base64")
    await past.jetstream.delete_msg(f"{past.prefix.upper()}_DEADLETTER", broken)
    last = await past.write("acme", "b", bodyEncoding="base64")

    box = past.bus.letter_box
    cut, whole, gone, unreadable = [await box.get(each) for each in (number, binary, broken, last)]

    assert cut is not None
    assert (cut.body, cut.is_cut, cut.reason) == ("café".encode(), True, "invalid")
    assert whole is not None
    assert (whole.body, whole.is_cut) == (b"\xff\x00", False)
    assert gone is None
    assert unreadable is not None
    assert unreadable.body == b"b"


async def test_whatever_else_lies_among_the_letters_is_told_as_such(past: Past) -> None:
    number = await past.put("acme", b'{"stream":"ORDERS","seq":1}')

    found = await past.bus.letter_box.get(number)

    assert found is not None
    assert (found.reason, found.tenant_id) == (NOT_A_LETTER, ACME)
    assert found.body == b'{"stream":"ORDERS","seq":1}'


async def test_something_that_looks_like_a_letter_hides_none(past: Past) -> None:
    """Who can have a service answer to this subject has it store what they like."""
    await past.write("acme", {})
    await past.write("acme", {}, receivedAt="soon")

    found = await past.bus.letter_box.page(ACME, None, 10)

    assert [letter.reason for letter in found.letters] == [NOT_A_LETTER, "invalid"]


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ({"payload": {"serviceCallId": "order-1"}}, True),
        ({"aggregateId": "order-1"}, True),
        ({"serviceCallId": "order-1", "payload": 7}, True),
        ('{"payload": {"serviceCallId": "order-1"', True),
        ({"payload": {"serviceCallId": "order-2"}}, False),
        (["order-1"], False),
        ("order-1, but not as a value", False),
    ],
)
async def test_a_letter_names_a_timer_if_its_message_does(past: Past, body: object, is_named: bool) -> None:
    number = await past.write("acme", body)
    await past.write("globex", {"aggregateId": "order-1"})

    found = await past.bus.letter_box.naming(ACME, ServiceCallId("order-1"))

    assert [letter.number for letter in found.letters] == ([number] if is_named else [])


# Events


async def test_an_event_is_followed_to_each_of_its_readers(past: Past) -> None:
    before, event, after = (reached(f"order-{number}", 0) for number in range(3))
    await past.consumer("all")
    await past.consumer("told", ack_policy=AckPolicy.NONE)
    await past.consumer("acked", filter_subject=f"{past.prefix}.events.acme.*")
    await past.consumer("reading", filter_subjects=[f"{past.prefix}.events.acme.DueTimeReached"])
    await past.consumer("other", filter_subject=f"{past.prefix}.events.globex.>")
    await past.consumer("longer", filter_subject=f"{past.prefix}.events.acme.DueTimeReached.*")
    await past.bus.sink.publish([before, event])
    await past.consumer("late", deliver_policy=DeliverPolicy.NEW)
    await past.bus.sink.publish([after])
    stream = f"{past.prefix.upper()}_EVENTS"
    for name, count in (("told", 3), ("acked", 3), ("reading", 2)):
        taken: list[Msg] = []
        bound = await past.jetstream.pull_subscribe_bind(name, stream)
        while len(taken) < count:
            taken += await bound.fetch(count - len(taken), timeout=PATIENCE_S)
        if name == "acked":
            for message in taken:
                await message.ack_sync(timeout=PATIENCE_S)

    trail = await past.bus.event_trail.follow(event)

    assert (trail.stream, trail.sequence) == (stream, 2)
    assert trail.readers == (
        Reader("acked", Reading.ACKNOWLEDGED, of_tenant=True),
        Reader("all", Reading.WAITING, of_tenant=False),
        Reader("late", Reading.BEGAN_LATER, of_tenant=False),
        Reader("reading", Reading.DELIVERED, of_tenant=True),
        Reader("told", Reading.ACKNOWLEDGED, of_tenant=False),
    )


async def test_an_event_that_is_not_kept_leaves_no_trail(past: Past) -> None:
    await past.bus.sink.publish([reached("order-1", 0)])

    assert await past.bus.event_trail.follow(reached("order-2", 0)) == Trail(
        f"{past.prefix.upper()}_EVENTS", None
    )
    # Another kind of event, under another subject: of the same firing it is not the same.
    assert (await past.bus.event_trail.follow(expired("order-1", expired_s=1))).sequence is None


# Around


async def test_a_look_around_tells_streams_readers_and_whoever_answers(past: Past) -> None:
    async def answer(message: Msg) -> None:
        for body in (
            b'{"instance": "b", "version": "1", "problems": {"store": "full"}, "firedPerSecond": 2}',
            b'{"instance": "a", "latenessP99Seconds": 0.5}',
            b'{"name": "somebody else"}',
            b"[]",
            b"not JSON",
        ):
            await message.respond(body)

    await past.client.subscribe(f"{past.prefix}.status", cb=answer)
    await past.client.flush(timeout=int(PATIENCE_S))
    await past.consumer("billing", filter_subject=f"{past.prefix}.events.acme.>")
    await past.bus.sink.publish([reached("order-1", 0)])

    streams, readers = await past.bus.view.streams(), await past.bus.view.readers()
    instances = await past.bus.view.instances()

    name = past.prefix.upper()
    assert [(each.name, each.messages) for each in streams] == [
        (f"{name}_COMMANDS", 0),
        (f"{name}_EVENTS", 1),
        (f"{name}_DEADLETTER", 0),
    ]
    assert [(each.name, each.waiting, each.unacknowledged) for each in readers] == [("billing", 1, 0)]
    assert instances == [
        InstanceSeen("a", "", is_well=True, fired_per_s=0.0, lateness_p99_s=0.5),
        InstanceSeen("b", "1", is_well=False, fired_per_s=2.0, lateness_p99_s=None),
    ]


# When a look is not possible


async def test_a_look_at_a_stream_that_is_not_there_says_so(past: Past) -> None:
    await past.jetstream.delete_stream(f"{past.prefix.upper()}_DEADLETTER")

    with pytest.raises(BusUnavailable, match="stream not found"):
        await past.bus.reader.ends(f"{past.prefix.upper()}_DEADLETTER")


async def test_without_a_connection_nobody_can_look(shared_broker: NatsServer, prefix: str) -> None:
    bus = new_bus(shared_broker.url, prefix)

    with pytest.raises(BusUnavailable, match="not connected"):
        await bus.letter_box.page(None, None, 10)


async def test_a_look_that_the_broker_forbids_names_the_right_that_is_missing(
    guarded_broker: NatsServer,
) -> None:
    """The shipped permissions without those of the page."""
    options = NatsOptions(
        connect={
            "servers": [guarded_broker.url],
            "user": SERVICE_LOGIN["broker_user"],
            "password": SERVICE_LOGIN["broker_password"],
            "inbox_prefix": SERVICE_LOGIN["broker_inbox_prefix"].encode(),
        }
    )
    bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())

    async with bus.running(), asyncio.timeout(PATIENCE_S):
        await until_connected(bus)
        with pytest.raises(RightMissing, match=r"CONSUMER\.CREATE\.TIMER_EVENTS\.\*\.timer\.events\.acme"):
            await bus.event_trail.follow(reached("order-1", 0))
        with pytest.raises(RightMissing, match=r"publish to timer\.status"):
            await bus.view.instances()
