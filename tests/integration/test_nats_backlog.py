"""What NATS tells about the commands that wait, and what it must not be taken for."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import RetentionPolicy
from structlog.testing import capture_logs

from tests.support import messages
from tests.support.broker import NatsServer, told
from tests.support.lines import BATCH_SIZE, until
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at
from timer_client import wire
from timer_service.adapters.nats.backlog import BacklogQuestions
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.client import Outgoing
from timer_service.adapters.nats.options import NatsOptions
from timer_service.testing import ManualClock, MemoryTimerStore


async def _connected(bus: NatsBus) -> None:
    async def connected() -> bool:
        return bus.source.problem is None

    await until(connected, "the bus to be connected")


async def test_however_many_subjects_a_tenant_makes_up_the_answer_does_not_grow(
    shared_broker: NatsServer, prefix: str
) -> None:
    client = await nats.connect(shared_broker.url)
    options = NatsOptions(connect={"servers": [shared_broker.url]}, prefix=prefix, batch_size=BATCH_SIZE)
    sizes: list[int] = []
    try:
        bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
        async with bus.running():
            await _connected(bus)
            for _ in range(2):
                for number in range(2_000):
                    await client.publish(f"{prefix}.commands.acme.made-up-{number}-{len(sizes)}", b"")
                await told(client)
                stream = f"{prefix.upper()}_COMMANDS"
                asked = json.dumps({"subjects_filter": f"{prefix}.commands.*.ScheduleTimer"}).encode()
                sizes.append(
                    len(
                        (
                            await client.request(f"$JS.API.STREAM.INFO.{stream}", asked, timeout=PATIENCE_S)
                        ).data
                    )
                )
                assert (await bus.source.backlog({})).tenants == frozenset()
    finally:
        await client.close()

    # Counts and times differ in a few digits.
    assert abs(sizes[1] - sizes[0]) < 100


@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.INTEREST])
async def test_where_commands_stay_although_they_are_applied_nobody_is_said_to_have_some_waiting(
    shared_broker: NatsServer, prefix: str, retention: RetentionPolicy
) -> None:
    client = await nats.connect(shared_broker.url)
    stream, subject = f"{prefix.upper()}_COMMANDS", f"{prefix}.commands.acme.ScheduleTimer"
    options = NatsOptions(connect={"servers": [shared_broker.url]}, prefix=prefix, batch_size=BATCH_SIZE)
    try:
        jetstream = client.jetstream(timeout=PATIENCE_S)
        await jetstream.add_stream(name=stream, subjects=[f"{prefix}.commands.>"], retention=retention)
        await jetstream.add_consumer(stream, durable_name="audit")
        bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
        async with bus.running():
            await _connected(bus)
            await jetstream.publish(subject, messages.encode(messages.schedule(ACME, "order-1", at(60))))
            await (await bus.source.receive()).acknowledge()

            told = await bus.source.backlog({ACME: 0})
    finally:
        await client.close()

    assert (told.tenants, told.last_sequence) == (frozenset(), 1)


class _AnsweringClient:
    """A client whose broker tells what it is told to tell."""

    def __init__(self, messages: int, listed: int) -> None:
        self._state = {"messages": messages, "first_seq": 1, "last_seq": messages}
        self._listed = listed
        self.asked: list[int] = []
        """How many messages each round trip took."""

    def new_inbox(self) -> str:
        return "_INBOX.a.b"

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> None:
        self._answer = cb

    def deliver_at_once(self, subscription: None) -> None:
        pass

    def becomes_empty(self) -> None:
        self._state, self._listed = {"messages": 0, "first_seq": 9, "last_seq": 8}, 0

    async def publish_all(self, requests: list[Outgoing], replies: list[str]) -> list[int]:
        self.asked.append(len(requests))
        for reply, request in zip(replies, requests, strict=True):
            # Subjects are told only where they are asked for.
            told = {"timer.commands.acme.ScheduleTimer": 1} if request.body and self._listed else {}
            state, total = {**self._state, "subjects": told}, self._listed if request.body else 0
            body = json.dumps({"created": "today", "total": total, "state": state}).encode()
            await self._answer(Msg(_client=None, subject=reply, data=body))  # type: ignore[arg-type]
        return []


async def _questions(client: _AnsweringClient) -> BacklogQuestions:
    questions = BacklogQuestions(NatsOptions(connect={}))
    await questions.start(client)  # type: ignore[arg-type]
    return questions


async def test_where_nothing_waits_one_question_is_enough() -> None:
    client = _AnsweringClient(messages=0, listed=0)
    questions = await _questions(client)

    told = [await questions.ask({}, 0) for _ in range(3)]

    assert [answer.tenants for answer in told] == [frozenset()] * 3
    assert client.asked == [1, 1, 1]


async def test_while_something_waits_every_look_takes_one_round_trip() -> None:
    client = _AnsweringClient(messages=8, listed=1)
    questions = await _questions(client)

    told = [await questions.ask({}, 0) for _ in range(3)]
    asked = list(client.asked)
    client.becomes_empty()
    afterwards = [await questions.ask({}, 0) for _ in range(2)]

    assert [answer.tenants for answer in (*told, *afterwards)] == [{ACME}] * 3 + [frozenset()] * 2
    assert asked == [1, 2, 2, 2]
    assert client.asked[len(asked) :] == [2, 1]


async def test_more_tenants_than_the_broker_lists_are_everybody() -> None:
    questions = await _questions(_AnsweringClient(messages=200_000, listed=100_001))

    told = await questions.ask({}, 0)

    assert told.tenants is None
    assert told.concerns(GLOBEX)


async def test_without_the_right_to_read_messages_it_asks_the_rest_and_tries_no_more(tmp_path: Path) -> None:
    everybody = """no_auth_user: all
        authorization { users: [{ user: all, password: secret, permissions: {
          publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] }
        } }] }"""
    server = NatsServer(tmp_path, everybody).start()
    options = NatsOptions(connect={"servers": [server.url]}, batch_size=BATCH_SIZE)
    try:
        bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
        with capture_logs() as log:
            async with bus.running():
                await _connected(bus)
                told = [await bus.source.backlog({ACME: 0}) for _ in range(3)]
    finally:
        server.stop()

    assert [(answer.tenants, answer.oldest) for answer in told] == [(frozenset(), {})] * 3
    assert len([line for line in log if line["event"] == "broker.error"]) <= len(wire.COMMAND_TYPES)


async def test_it_asks_in_the_domain_and_below_the_prefix(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, f"jetstream {{ domain: hub, store_dir: '{tmp_path}' }}").start()
    options = NatsOptions(
        connect={"servers": [server.url]}, prefix="eu.timer", domain="hub", batch_size=BATCH_SIZE
    )
    client = await nats.connect(server.url)
    try:
        bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
        async with bus.running():
            await _connected(bus)
            body = messages.encode(messages.schedule(ACME, "order-1", at(60)))
            stored = await client.jetstream(domain="hub", timeout=PATIENCE_S).publish(
                "eu.timer.commands.acme.ScheduleTimer", body
            )

            told = await bus.source.backlog({ACME: 0})
    finally:
        await client.close()
        server.stop()

    assert (told.tenants, told.oldest) == (frozenset({ACME}), {ACME: stored.seq})
