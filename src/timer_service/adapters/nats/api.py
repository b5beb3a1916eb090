"""Questions and commands with an answer, as a NATS micro service."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import nats.micro
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.micro.request import Request, ServiceError
from nats.micro.service import EndpointStats
from pydantic import BaseModel

from timer_service import __version__, wire
from timer_service.adapters import codec
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.domain.errors import CriticalError, RequestRefused, TransientError
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_calls import CallAnswer, TimerCalls
from timer_service.ports.timer_store import TimerQuery

SERVICE_NAME: Final = "timer"
MAX_CALLS: Final = 64
"""So many calls are worked on at once; more wait in the broker client's queue."""
REPLY_PREFIXES: Final = ("_INBOX.", "_INBOX_", "_R_.")
"""Replies go to inboxes only: permissions do not check where a caller asks us to reply to."""

log = structlog.get_logger(__name__)

_Handler = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    name: str
    subject: str
    handler: _Handler
    request: type[BaseModel]
    answer: type[BaseModel]


@dataclass(slots=True)
class _Tally:
    """What `$SRV.STATS` says of one endpoint."""

    errors: int = 0
    last_error: str = ""
    nanoseconds: int = 0


class TimerApi:
    """The endpoints of the `timer` micro service."""

    def __init__(self, calls: TimerCalls, subjects: codec.Subjects, tasks: asyncio.TaskGroup) -> None:
        self._calls = calls
        self._tasks = tasks
        self._slots = asyncio.Semaphore(MAX_CALLS)
        api = partial(subjects.api, "*")
        self._endpoints = [
            _Endpoint("get", api("get"), self._get, wire.GetCall, wire.GetAnswer),
            _Endpoint("list", api("list"), self._list, wire.ListCall, wire.ListAnswer),
            _Endpoint("schedule", api("schedule"), self._schedule, wire.ScheduleCall, wire.ScheduleAnswer),
            _Endpoint("cancel", api("cancel"), self._cancel, wire.GetCall, wire.CancelAnswer),
            _Endpoint("status", subjects.status, self._status, wire.NoRequest, wire.StatusAnswer),
            _Endpoint(
                "clock-accept",
                subjects.clock_accept,
                self._accept,
                wire.NoRequest,
                wire.ClockAnswer,
            ),
        ]
        self._tallies: dict[str, _Tally] = {}

    async def serve(self, client: Client) -> None:
        """Listen on one connection; it ends with that connection."""
        self._tallies = {endpoint.name: _Tally() for endpoint in self._endpoints}
        service = await nats.micro.add_service(
            client,
            name=SERVICE_NAME,
            version=__version__,
            description="Durable timers: query, schedule and cancel with a definite answer",
            stats_handler=self._complete,
        )
        for endpoint in self._endpoints:
            await service.add_endpoint(
                name=endpoint.name,
                subject=endpoint.subject,
                handler=self._answering(endpoint.name, endpoint.handler),
                metadata={
                    "request_schema": wire.json_schema(endpoint.request),
                    "response_schema": wire.json_schema(endpoint.answer),
                },
            )

    def _complete(self, stats: EndpointStats) -> None:
        """Put in what nats-py cannot see, because calls are worked on beside its handlers."""
        tally = self._tallies[stats.name]
        stats.num_errors = tally.errors
        stats.last_error = tally.last_error
        stats.processing_time = tally.nanoseconds
        stats.average_processing_time = tally.nanoseconds // max(1, stats.num_requests)

    def _answering(self, name: str, handler: _Handler) -> Callable[[Request], Awaitable[None]]:
        async def receive(request: Request) -> None:
            # nats-py runs the handlers of an endpoint one after the other: work goes on beside it.
            reply = request._msg.reply  # noqa: SLF001 - the request has no other way to say it
            if not reply.startswith(REPLY_PREFIXES):
                log.warning("call.ignored", endpoint=name, reply=reply, subject=request.subject)
                return
            await self._slots.acquire()
            self._tasks.create_task(self._answer(name, handler, request))

        return receive

    async def _answer(self, name: str, handler: _Handler, request: Request) -> None:
        started = time.perf_counter_ns()
        outcome, error = "500", ""
        try:
            outcome, error = await self._try(name, handler, request)
        except CriticalError as failure:
            # The last words: this error ends the process.
            await _refuse(request, outcome, failure.public)
            raise
        finally:
            self._slots.release()
            took_ns = time.perf_counter_ns() - started
            self._calls.called(name, outcome, took_ns / 1e9)
            tally = self._tallies[name]
            tally.nanoseconds += took_ns
            if error:
                tally.errors += 1
                tally.last_error = f"{outcome}: {error}"
        if error:
            await _refuse(request, outcome, error)

    async def _try(self, name: str, handler: _Handler, request: Request) -> tuple[str, str]:
        """Answer, or return what is wrong and how it is told."""
        try:
            answer = await handler(request)
            await request.respond(wire.write_json(answer))
        except wire.WireError as refusal:
            return "400", refusal.detail
        except RequestRefused as refusal:
            return "400", refusal.public
        except ServiceError as refusal:
            return refusal.code, refusal.description
        except TransientError as failure:
            # Its text names hosts and paths: that is for the log only.
            log.debug("request.deferred", endpoint=name, detail=str(failure))
            return "503", f"try again: {failure.public}"
        except (NatsError, OSError):
            return "lost", ""  # The caller, or the broker, is gone.
        except CriticalError:
            raise
        except Exception:
            log.exception("call.failed", endpoint=name)
            return "500", "internal error; the service's log tells more"
        return str(answer.get("outcome", "ok")), ""

    async def _get(self, request: Request) -> dict[str, Any]:
        call = wire.read_call(wire.GetCall, request.data)
        timer = await self._calls.get(_tenant(request), ServiceCallId(call.service_call_id))
        if timer is None:
            raise ServiceError("404", f"there is no timer {call.service_call_id!r}")
        return {"timer": codec.timer_fields(timer)}

    async def _list(self, request: Request) -> dict[str, Any]:
        call = wire.read_call(wire.ListCall, request.data)
        query = TimerQuery(
            tenant_id=_tenant(request),
            state=None if call.state is None else TimerState(call.state),
            correlation_id=None if call.correlation_id is None else CorrelationId(call.correlation_id),
            due_from=call.due_from,
            due_before=call.due_before,
            after=None if call.cursor is None else read_cursor(call.cursor),
            limit=call.limit,
        )
        timers = await self._calls.list_timers(query)
        answer: dict[str, Any] = {"timers": [codec.timer_fields(timer) for timer in timers]}
        if len(timers) == call.limit and timers[-1].due_at is not None:
            answer["cursor"] = write_cursor(timers[-1].due_at, timers[-1].service_call_id)
        return answer

    async def _schedule(self, request: Request) -> dict[str, Any]:
        call = wire.read_call(wire.ScheduleCall, request.data)
        correlation = None if call.correlation_id is None else CorrelationId(call.correlation_id)
        return _told(
            await self._calls.schedule(
                _tenant(request),
                ServiceCallId(call.service_call_id),
                call.due_at,
                correlation,
                codec.read_trace(request.headers),
            )
        )

    async def _cancel(self, request: Request) -> dict[str, Any]:
        call = wire.read_call(wire.GetCall, request.data)
        return _told(await self._calls.cancel(_tenant(request), ServiceCallId(call.service_call_id)))

    async def _accept(self, _: Request) -> dict[str, Any]:
        return {"acceptedStepSeconds": await self._calls.accept_clock_step()}

    async def _status(self, _: Request) -> dict[str, Any]:
        return await self._calls.status()


def _tenant(request: Request) -> TenantId:
    """Return the tenant of the subject, the only one that counts."""
    tenant = request.subject.rsplit(".", 2)[-2]
    if not wire.is_tenant_id(tenant):
        raise wire.WireError("invalid", f"subject: the tenant must be {wire.TENANT_RULE}")
    return TenantId(tenant)


async def _refuse(request: Request, code: str, description: str) -> None:
    try:
        await request.respond_error(code, description.replace("\n", " "))
    except (NatsError, OSError):
        pass  # The caller, or the broker, is gone.


def _told(answer: CallAnswer) -> dict[str, Any]:
    # To be cancelled already is what the caller asked for.
    outcome = Outcome.CANCELLED if answer.outcome is Outcome.ALREADY_CANCELLED else answer.outcome
    return {"outcome": outcome.value, "timer": codec.timer_fields(answer.timer)}
