"""Questions and commands with an answer, as a NATS micro service."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import nats.micro
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.micro.request import Request

from timer_client import wire
from timer_client.subjects import SERVICE_NAME, Subjects
from timer_service import __version__
from timer_service.adapters import codec
from timer_service.adapters.endpoints import (
    BUSY,
    ENDPOINTS,
    FULL_RETRY_S,
    STOPPING,
    UNEXPECTED,
    Answer,
    AnswerTooLarge,
    ApiError,
    Asked,
    Endpoint,
    error_of,
    extra_cost,
    too_many,
)
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.notes import RequestNotes
from timer_service.adapters.nats.refusals import Refusals, error_headers
from timer_service.domain.admission import RateLimit, Room, TurnLimits, Turns
from timer_service.domain.errors import CriticalError, TransientError
from timer_service.domain.messages import TenantId
from timer_service.timers import Timers

REPLY_PREFIXES: Final = ("_INBOX.", "_INBOX_", "_R_.")
"""Replies go to inboxes only: permissions do not check where a caller asks us to reply to."""
STOP_GRACE_S: Final = 3.0
"""Longer than a request waits for a timer that is being fired."""
STOP_FLUSH_S: Final = 1
LISTEN_TIMEOUT_S: Final = 5
_OPERATOR: Final = TenantId("")


@dataclass(frozen=True, slots=True)
class _Waiting:
    endpoint: Endpoint
    asked: Asked
    reply: str
    started_ns: int


@asynccontextmanager
async def request_api(
    timers: Timers,
    subjects: Subjects,
    *,
    rate_limit: RateLimit,
    answered: Callable[[str, str, float], None],
    turn_limits: TurnLimits | None = None,
) -> AsyncIterator["RequestApi"]:
    """Answer requests over whichever connection there is; finish at the end what is under way."""
    async with asyncio.TaskGroup() as tasks:
        api = RequestApi(timers, subjects, tasks, rate_limit, Turns(turn_limits), RequestNotes(answered))
        try:
            yield api
        finally:
            await api.stop()


class RequestApi:
    """The endpoints of the `timer` micro service.

    A request is refused or queued where it is read from the socket; tenants take turns from there.
    """

    def __init__(
        self,
        timers: Timers,
        subjects: Subjects,
        tasks: asyncio.TaskGroup,
        rate_limit: RateLimit,
        turns: "Turns[_Waiting]",
        notes: RequestNotes,
    ) -> None:
        self._timers = timers
        self._tasks = tasks
        self._rate_limit = rate_limit
        self._turns = turns
        self._under_way: set[asyncio.Task[None]] = set()
        self._refusals = Refusals()
        self._sender = tasks.create_task(self._refusals.keep_sending(lambda: self._client))
        self._notes = notes
        self._client: TolerantClient | None = None
        self._subscriptions: list[Subscription] = []
        self._stopping = False
        self._subjects = subjects

    async def start(self, client: TolerantClient) -> None:
        """Listen on one connection; it ends with that connection."""
        self._client = client
        self._notes.begin(endpoint.name for endpoint in ENDPOINTS)
        service = await nats.micro.add_service(
            client,
            name=SERVICE_NAME,
            version=__version__,
            description="Durable timers: query, schedule and cancel with a definite answer",
            metadata={"instance": self._timers.instance, "prefix": self._subjects.prefix},
            stats_handler=self._notes.complete,
        )
        for endpoint in ENDPOINTS:
            settings = _settings(endpoint, self._subjects, self._timers.instance)
            await service.add_endpoint(handler=self._receiving(endpoint), **settings)
        # A queue of nats-py's own would hold half a million requests before it dropped any.
        self._subscriptions = [
            subscription
            for endpoint in service._endpoints  # noqa: SLF001 - they have no other way to say it
            if (subscription := endpoint._subscription) is not None  # noqa: SLF001
        ]
        for subscription in self._subscriptions:
            client.deliver_at_once(subscription)
        await client.flush(timeout=LISTEN_TIMEOUT_S)

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return len(self._turns)

    def lost(self) -> None:
        """Let go of a connection that is gone; what is under way is answered over the next one, if at all."""
        self._client = None

    async def stop(self) -> None:
        """Refuse what waits and what still comes in, and finish what is under way."""
        self._stopping = True
        self._sender.cancel()
        for waiting in self._turns.clear():
            self._refuse(waiting.endpoint, waiting.reply, STOPPING)
        client = self._client
        if client is None or client.is_closed:
            return
        try:
            for subscription in self._subscriptions:
                await client.send_no_more(subscription)
            # What was sent before the broker knew is here by now, and refused.
            await client.flush(timeout=STOP_FLUSH_S)
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=STOP_GRACE_S)
            await self._refusals.flush(client)
            await client.flush(timeout=STOP_FLUSH_S)
        except (NatsError, OSError):
            pass  # The broker is gone: nobody can be told.

    def _receiving(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
        async def receive(request: Request) -> None:
            reply = request._msg.reply  # noqa: SLF001 - the request has no other way to say it
            if reply.startswith(REPLY_PREFIXES):
                self._receive(endpoint, request, reply)
            else:
                self._notes.ignored(_now_s(), endpoint.name, reply, request.subject)

        return receive

    def _receive(self, endpoint: Endpoint, request: Request, reply: str) -> None:
        """Let a request wait for its turn, or refuse it; at once, because nothing else is read meanwhile."""
        if self._stopping:
            return self._refuse(endpoint, reply, STOPPING)
        now_s, started_ns = _now_s(), time.perf_counter_ns()
        try:
            tenant_id = _tenant(request.subject) if endpoint.of_tenants else _OPERATOR
            if wait_s := self._rate_limit.wait_s(tenant_id, now_s):
                return self._limit(endpoint, reply, tenant_id, now_s, wait_s)
            asked = Asked(
                tenant_id,
                wire.read_request(endpoint.request, request.data),
                codec.read_trace(request.headers),
                0 if self._client is None else self._client.max_payload,
            )
            self._rate_limit.charge(tenant_id, extra_cost(asked.request))
        except wire.WireError as refusal:
            return self._refuse(endpoint, reply, error_of(refusal))
        room = self._turns.offer(tenant_id, _Waiting(endpoint, asked, reply, started_ns))
        if room is Room.TENANT_FULL:
            return self._limit(endpoint, reply, tenant_id, now_s, FULL_RETRY_S)
        if room is Room.FULL:
            return self._refuse(endpoint, reply, BUSY)
        self._notes.allowed(now_s, tenant_id)
        return self._take_turns()

    def _limit(
        self, endpoint: Endpoint, reply: str, tenant_id: TenantId, now_s: float, wait_s: float
    ) -> None:
        self._notes.limited(now_s, tenant_id, endpoint.name)
        self._refuse(endpoint, reply, too_many(wait_s))

    def _refuse(self, endpoint: Endpoint, reply: str, error: ApiError) -> None:
        self._notes.answered(endpoint.name, error.code, 0, error.text)
        self._refusals.tell(reply, error_headers(error))

    def _take_turns(self) -> None:
        """Start on as much as may be under way."""
        while not self._stopping and (waiting := self._turns.take()) is not None:
            task = self._tasks.create_task(self._answer(waiting))
            self._under_way.add(task)
            task.add_done_callback(partial(self._done, waiting))

    def _done(self, waiting: _Waiting, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._turns.done(waiting.asked.tenant_id)
        if not task.cancelled() and task.exception() is None:
            self._take_turns()

    async def _answer(self, waiting: _Waiting) -> None:
        error = None
        try:
            answer = await waiting.endpoint.handler(self._timers, waiting.asked)
            outcome = await self._respond(waiting, answer)
        except CriticalError as failure:
            # The last words: this error ends the process.
            self._stopping = True
            await self._say(waiting, b"", error_headers(error_of(failure)))
            raise
        except asyncio.CancelledError:
            self._refuse(waiting.endpoint, waiting.reply, STOPPING)  # `stop` sends it.
            raise
        except Exception as failure:
            error = self._failed(waiting, failure)
            outcome = error.code
        took_ns = time.perf_counter_ns() - waiting.started_ns
        self._notes.answered(waiting.endpoint.name, outcome, took_ns, error.text if error else "")
        if error is not None:
            await self._say(waiting, b"", error_headers(error))

    def _failed(self, waiting: _Waiting, failure: Exception) -> ApiError:
        """Return what the caller is told, and note what an operator should know."""
        error = error_of(failure)
        if isinstance(failure, TransientError):
            self._notes.failing(_now_s(), failure)
        elif error is UNEXPECTED:
            self._notes.crashed(_now_s(), waiting.endpoint.name)
        return error

    async def _respond(self, waiting: _Waiting, answer: Answer) -> str:
        if self._client is not None and len(answer.body) > self._client.max_payload:
            raise AnswerTooLarge(
                f"the answer has {len(answer.body)} bytes, more than the broker lets pass "
                f"(max_payload is {self._client.max_payload})"
            )
        told = await self._say(waiting, answer.body)
        self._notes.works(_now_s())
        return answer.outcome if told else "lost"

    async def _say(self, waiting: _Waiting, body: bytes, headers: dict[str, str] | None = None) -> bool:
        if self._client is None:
            return False
        try:
            await self._client.publish(waiting.reply, body, headers=headers)
        except (NatsError, OSError):
            return False  # The caller, or the broker, is gone.
        except Exception:
            # Whatever it is: an answer that cannot be sent must not end the process.
            self._notes.crashed(_now_s(), waiting.endpoint.name)
            return False
        return True


def _settings(endpoint: Endpoint, subjects: Subjects, instance: str) -> dict[str, Any]:
    """Return how an endpoint is announced to the broker."""
    of_operators = {"status": subjects.status, "clock-accept": subjects.clock_accept}
    return {
        "name": endpoint.name,
        "subject": subjects.api("*", endpoint.name) if endpoint.of_tenants else of_operators[endpoint.name],
        # Nobody else is in a group of its own, so that each instance gets its copy.
        "queue_group": None if endpoint.of_tenants else instance,
        "metadata": {
            "request_schema": wire.json_schema(endpoint.request),
            "response_schema": wire.answer_schema(endpoint.answer),
        },
    }


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _tenant(subject: str) -> TenantId:
    """Return the tenant of the subject, the only one that counts."""
    tenant = subject.rsplit(".", 2)[-2]
    if not wire.is_tenant_id(tenant):
        raise wire.WireError("invalid", f"subject: the tenant must be {wire.TENANT_RULE}")
    return TenantId(tenant)
