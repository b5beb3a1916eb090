"""Handle firings: each acknowledged after its handler returned, and given back if it cannot be."""

import asyncio
import inspect
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_client.cancelling import uncancelled
from timer_client.due import span_ms
from timer_client.errors import AlreadyHandled, Fenced, Later, Reject, RequestRefused, ServiceAway
from timer_client.firing import Firing
from timer_client.leases import HEARTBEATS, Lease, Leases
from timer_client.pulling import Pulls

MAX_REMEMBERED: Final = 10_000
"""Ids of handled firings that are kept in memory to recognise repeats."""
IDLE_S: Final = 1.0
MEND_PAUSE_S: Final = 0.5
MAX_MEND_PAUSE_S: Final = 10.0
RETRY_DELAYS: Final = (
    timedelta(seconds=1),
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=5),
)
"""After which a firing comes again whose handler has failed; the last one counts from then on."""

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"

_log = logging.getLogger("timer_client")


Bind = Callable[[], Awaitable[float]]
"""Find or create the durable consumer, and return its ack_wait in seconds."""
Handler = Callable[[Firing], Awaitable[None]]


@dataclass(slots=True)
class Counts:
    """What has become of the firings that were delivered to this worker."""

    handled: int = 0
    repeated: int = 0
    stale: int = 0
    failed: int = 0
    rejected: int = 0
    given_back: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """How a worker goes about it."""

    concurrency: int = 10
    prefetch: int = 0
    retry_delays: Sequence[timedelta] = RETRY_DELAYS
    grace: timedelta = timedelta(seconds=30)
    is_stale: Callable[[Firing], Awaitable[bool]] | None = None
    expired: Handler | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1 (got {self.concurrency!r})")
        if not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ValueError(f"prefetch must be at least 0 (got {self.prefetch!r})")
        if not self.retry_delays:
            raise ValueError("retry_delays must have at least one timedelta (got none)")
        for delay in self.retry_delays:
            span_ms("each of retry_delays", delay)
        span_ms("grace", self.grace)

    @property
    def max_held(self) -> int:
        """Return how many firings are held at a time, with those that wait for a handler."""
        return self.concurrency + self.prefetch


class Consumer:
    """One worker of a durable consumer."""

    def __init__(
        self,
        connection: Client,
        next_subject: str,
        tenant: str,
        name: str,
        handler: Handler,
        options: Options,
        ack_wait_s: float,
    ) -> None:
        if not callable(handler):
            raise _NotAsync(_NotAsync.rule)
        self.name = name
        self.counts = Counts()
        self._tenant = tenant
        self._handler = handler
        self._options = options
        self._leases = Leases(connection, ack_wait_s)
        self._pulls = Pulls(connection, next_subject, self._take, ack_wait_s / HEARTBEATS)
        self._waiting: deque[Lease] = deque()
        self._busy: set[str] = set()
        self._handled: dict[str, None] = {}
        self._stopping = False
        self._tasks: asyncio.TaskGroup

    def stop(self) -> None:
        """Take no more firings; what is in hand is finished."""
        self._stopping = True
        self._pulls.ended.set()

    async def run(self, bind: Bind) -> None:
        """Handle firings until told to stop; then finish what is in hand and give the rest back."""
        async with asyncio.TaskGroup() as self._tasks:
            keeping = self._tasks.create_task(self._keep())
            try:
                await self._pulls.start()
                await self._feed(bind)
            finally:
                await self._close()
                keeping.cancel()

    async def _feed(self, bind: Bind) -> None:
        while not self._stopping:
            self._pulls.ended.clear()
            if self._pulls.is_over:
                raise ServiceAway("the connection to the broker was closed: consume again on a new one")
            if self._pulls.trouble:
                await self._mend(bind)
            await self._pulls.ask(self._options.max_held - len(self._leases))
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self._pulls.ended.wait()

    async def _mend(self, bind: Bind) -> None:
        """Create the consumer again if it is gone; while the broker cannot, try again later."""
        _log.warning("consumer %s is interrupted: %s", self.name, self._pulls.trouble)
        pause_s = MEND_PAUSE_S
        while self._pulls.trouble and not self._stopping:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_MEND_PAUSE_S)
            try:
                self._leases.ack_wait_s = await bind()
                self._pulls.trouble = ""
            except (ServiceAway, RequestRefused):
                continue
        _log.warning("consumer %s has resumed", self.name)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._leases.ack_wait_s / HEARTBEATS)
            for lease in [lease for lease in self._waiting if lease.is_lost]:
                self._waiting.remove(lease)
                self._leases.drop(lease)
                self.counts.lost += 1
            await self._leases.keep()

    async def _take(self, message: Msg, since: float) -> None:
        until = since + self._leases.ack_wait_s
        if self._leases.renew(message, until):
            return
        try:
            deliveries = message.metadata.num_delivered
            firing = Firing.read(message.data, consumer=self.name, deliveries=deliveries)
            if firing.tenant_id != self._tenant:
                raise ValueError(f"it belongs to {firing.tenant_id!r}")
        except ValueError as error:
            _log.error("consumer %s: a message on %s is not an event: %s", self.name, message.subject, error)
            await self._leases.say(message, b"+TERM not an event")
            return
        lease = Lease(message, firing, until)
        self._leases.add(lease)
        self._waiting.append(lease)
        self._begin()

    def _begin(self) -> None:
        """Start handlers for what waits, as many as may run; one timer's firings one after another."""
        if self._stopping:
            return
        for lease in list(self._waiting):
            if len(self._busy) >= self._options.concurrency:
                return
            if lease.firing.service_call_id not in self._busy:
                self._waiting.remove(lease)
                self._busy.add(lease.firing.service_call_id)
                lease.task = self._tasks.create_task(self._work(lease))

    async def _work(self, lease: Lease) -> None:
        try:
            answer = await self._judge(lease.firing)
            if answer is not None:
                await self._answer(lease, answer)
        except asyncio.CancelledError:
            await self._give_back(lease)
            raise
        finally:
            self._busy.discard(lease.firing.service_call_id)
            self._leases.drop(lease)
            self._begin()
            self._pulls.ended.set()

    async def _judge(self, firing: Firing) -> bytes | None:
        """Handle a firing and return the answer for the broker, or none if it is no longer ours."""
        try:
            await self._handle(firing)
        except AlreadyHandled:
            self.counts.repeated += 1
        except Reject as rejection:
            self.counts.rejected += 1
            _log.warning("consumer %s rejected %s: %s", self.name, _named(firing), rejection)
            return f"+TERM {_one_line(rejection)}".encode()
        except Later as wish:
            self.counts.given_back += 1
            return _again_after(wish.after)
        except Fenced:
            self.counts.lost += 1
            return None
        except _NotAsync:
            raise
        except Exception:
            self.counts.failed += 1
            delays = self._options.retry_delays
            delay = delays[min(firing.deliveries, len(delays)) - 1]
            _log.exception("consumer %s failed on %s, retrying in %s", self.name, _named(firing), delay)
            return _again_after(delay)
        self._remember(firing.id)
        return ACK

    async def _handle(self, firing: Firing) -> None:
        if firing.id in self._handled:
            raise AlreadyHandled(firing.id)
        handler = self._options.expired if firing.expired else self._handler
        if handler is None:
            return  # Nobody wants to know of it.
        if self._options.is_stale is not None and await self._options.is_stale(firing):
            self.counts.stale += 1
            return
        await _returned(handler(firing))
        self.counts.handled += 1

    def _remember(self, firing_id: str) -> None:
        self._handled[firing_id] = None
        if len(self._handled) > MAX_REMEMBERED:
            del self._handled[next(iter(self._handled))]

    async def _answer(self, lease: Lease, answer: bytes) -> None:
        if not await self._leases.answer(lease, answer):
            self.counts.lost += 1
            _log.warning(
                "consumer %s was too late to answer the broker for %s", self.name, _named(lease.firing)
            )

    async def _give_back(self, lease: Lease) -> None:
        self.counts.given_back += 1
        await self._answer(lease, NAK)

    async def _give_back_waiting(self) -> None:
        while self._waiting:
            lease = self._waiting.popleft()
            self._leases.drop(lease)
            await self._give_back(lease)

    async def _close(self) -> None:
        """Give back what was not begun, finish what was, within the grace time."""
        self._stopping = True
        await self._give_back_waiting()
        await self._pulls.stop()
        await self._give_back_waiting()
        await self._leases.is_told()
        tasks = {lease.task for lease in self._leases if lease.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._options.grace.total_seconds())
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._leases.is_told()


@asynccontextmanager
async def running(consumer: Consumer, bind: Bind) -> AsyncIterator[Consumer]:
    """Run a worker beside the block; if it fails for good, the block ends with its error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(bind))
            try:
                yield consumer
            finally:
                consumer.stop()
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """Return the one error of a group; several stay together."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class _NotAsync(TypeError):
    """The handler is not a coroutine function, so it cannot handle a firing."""

    rule = "handler must be an async function: async def handle(firing: Firing) -> None"


async def _returned(result: object) -> None:
    if not inspect.isawaitable(result):
        raise _NotAsync(_NotAsync.rule)
    await uncancelled(result)


def _again_after(delay: timedelta) -> bytes:
    return b"%s %s" % (NAK, json.dumps({"delay": delay // timedelta(microseconds=1) * 1000}).encode())


def _named(firing: Firing) -> str:
    return f"{firing.tenant_id}/{firing.service_call_id} generation {firing.generation}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or "rejected"
