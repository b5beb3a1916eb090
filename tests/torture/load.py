"""Tenants at work: they schedule, move and cancel timers all the time, and keep a ledger of it."""

import asyncio
import contextlib
import json
import time
import uuid
from datetime import UTC, datetime
from random import Random

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support import messages
from tests.support.patience import PATIENCE_S
from tests.torture.ledger import Ledger, Order, read_event

TENANTS = ("acme", "Acme", "globex", "initech", "umbrella")
EVENTS, COMMANDS, LETTERS = "TIMER_EVENTS", "TIMER_COMMANDS", "TIMER_DEADLETTER"
FAR_S = 86_400.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Tenants:
    """All tenants, over one connection that goes straight to the broker."""

    def __init__(self, url: str, ledger: Ledger, seed: int, longest_s: float) -> None:
        """Timers that have to fire in the run are due within `longest_s`."""
        self._url = url
        self._ledger = ledger
        self._random = Random(seed)
        self.longest_s = longest_s
        self._numbers = 0
        self._letters_read = 0
        self._working: set[asyncio.Task[None]] = set()
        self.may_work = asyncio.Event()
        self.may_work.set()
        self.seen = asyncio.Event()
        """Set by every event that comes in."""
        self.client: Client
        self.jetstream: JetStreamContext

    async def open(self) -> None:
        self.client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore
        )
        self.jetstream = self.client.jetstream(timeout=1)
        await self.client.subscribe(
            "timer.events.>", cb=self._on_event, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    async def close(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self.client.close()

    async def _on_event(self, message: Msg) -> None:
        self._ledger.saw(message.subject, message.data, now_ms())
        self.seen.set()

    async def work(self, per_second: float, until: asyncio.Event) -> None:
        """Begin a new timer every now and then, whatever happens."""
        while not until.is_set():
            await self.may_work.wait()
            task = asyncio.ensure_future(self._one_timer())
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), 1 / per_second)

    async def finished(self) -> None:
        """Wait until every order that was begun is taken."""
        await asyncio.gather(*self._working)

    async def _one_timer(self) -> None:
        random = self._random
        self._numbers += 1
        tenant, call = random.choice(TENANTS), f"order-{self._numbers}"
        if random.random() < 0.02:
            await self._send_nonsense(tenant)
            return
        await self._schedule(tenant, call)
        while random.random() < 0.3:
            await asyncio.sleep(random.random() * self.longest_s / 3)
            await self._schedule(tenant, call)
        chance = random.random()
        if chance < 0.1:
            await asyncio.sleep(random.random() * self.longest_s)
            await self._publish(tenant, call, messages.cancel(tenant, call), Order("cancel"))
        elif chance < 0.25:
            await asyncio.sleep(random.random() * self.longest_s)
            await self._call_off(tenant, call)

    async def _schedule(self, tenant: str, call: str) -> None:
        far = self._random.random() < 0.02
        due_ms = now_ms() + int((FAR_S if far else self._random.random() * self.longest_s) * 1000)
        self._ledger.tried_dues[tenant, call].add(due_ms)
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        await self._publish(tenant, call, messages.schedule(tenant, call, due), Order("schedule", due_ms))

    async def _publish(self, tenant: str, call: str, envelope: dict[str, object], order: Order) -> None:
        self._ledger.attempted += 1
        subject = f"timer.commands.{tenant}.{envelope['type']}"
        await self.until_stored(subject, envelope)
        self._ledger.orders[tenant, call].append(order)

    async def until_stored(self, subject: str, envelope: dict[str, object]) -> None:
        await self._until_stored(subject, messages.encode(envelope), str(envelope["id"]))

    async def _until_stored(self, subject: str, body: bytes, message_id: str) -> int:
        """Publish under one id until the broker says that it has it."""
        while True:
            try:
                stored = await self.jetstream.publish(
                    subject, body, timeout=1, headers={"Nats-Msg-Id": message_id}
                )
            except (NatsError, TimeoutError):
                await asyncio.sleep(0.1)
            else:
                return int(stored.seq)

    async def _send_nonsense(self, tenant: str) -> None:
        subject = f"timer.commands.{tenant}.ScheduleTimer"
        sequence = await self._until_stored(subject, b'{"dueAt": "soon"}', str(uuid.uuid4()))
        self._ledger.refused.append((self._ledger.era, sequence))

    async def _call_off(self, tenant: str, call: str) -> None:
        """Cancel by a call: only its answer tells what came of it."""
        self._ledger.attempted += 1
        request = json.dumps({"serviceCallId": call}).encode()
        try:
            answer = await self.client.request(f"timer.api.{tenant}.cancel", request, timeout=3)
        except (NatsError, TimeoutError):
            self._ledger.unsure_cancels.add((tenant, call))
            return
        if "Nats-Service-Error" in (answer.headers or {}):
            self._ledger.unsure_cancels.add((tenant, call))
            return
        told = json.loads(answer.data)
        if told["outcome"] in ("cancelled", "not_found"):
            due_at = told["timer"].get("dueAt")
            due_ms = 0 if due_at is None else round(messages.parse(due_at).timestamp() * 1000)
            order = Order("confirmed", due_ms, told["timer"]["generation"])
            self._ledger.orders[tenant, call].append(order)

    # What the broker holds.

    async def read_events(self) -> None:
        """Take what the event stream holds into the ledger."""
        stored = self._ledger.stored
        for message in await self._read(EVENTS):
            seen_ms = round(message.metadata.timestamp.timestamp() * 1000)
            key, firing = read_event(message.subject, message.data, seen_ms)
            stored[key].append(firing)

    async def read_letters(self) -> None:
        """Take the letters that are new since the last reading into the ledger."""
        for message in await self._read(LETTERS):
            if message.metadata.sequence.stream > self._letters_read:
                self._letters_read = message.metadata.sequence.stream
                self._ledger.letters[self._ledger.era, json.loads(message.data)["sequence"]] += 1

    async def _read(self, stream: str) -> list[Msg]:
        try:
            if (await self.jetstream.stream_info(stream)).state.messages == 0:
                return []
        except NotFoundError:
            return []
        name = uuid.uuid4().hex
        config = ConsumerConfig(name=name, deliver_policy=DeliverPolicy.ALL, inactive_threshold=60)
        await self.jetstream.add_consumer(stream, config)
        found: list[Msg] = []
        puller = await self.jetstream.pull_subscribe_bind(consumer=name, stream=stream)
        left = 1
        while left:
            batch = await puller.fetch(1000, timeout=PATIENCE_S)
            for message in batch:
                await message.ack()
            found += batch
            left = batch[-1].metadata.num_pending
        await self.jetstream.delete_consumer(stream, name)
        return found

    async def waiting_commands(self) -> int:
        return int((await self.jetstream.stream_info(COMMANDS)).state.messages)


async def _ignore(error: Exception) -> None:
    """Outages are the point."""
