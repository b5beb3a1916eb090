"""What a tenant asks for: schedule and cancel timers, look at them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias, TypedDict, Unpack, overload

from nats.aio.client import Client

from timer_client import due as times
from timer_client import wire
from timer_client.connection import BrokerClient, check_ids, new_id, now_ms

Timer: TypeAlias = wire.TimerView
"""A timer as the service has it."""
Explanation: TypeAlias = wire.ExplainAnswer
"""Why a timer is as it is."""


class Outcome(StrEnum):
    """What a request has done."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"
    ALREADY_REACHED = "already_reached"
    ALREADY_CANCELLED = "already_cancelled"
    ALREADY_EXPIRED = "already_expired"
    OTHER = "other"
    """A word of a newer service."""


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a timer beside its due time."""

    correlation_id: str | None
    if_absent: bool
    expires_after: timedelta | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has the command; the service will keep it."""

    command_id: str
    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a confirmed request has done, and the timer as it is now."""

    outcome: Outcome
    timer: Timer


class TimerRequests(BrokerClient):
    """One tenant's timers: what is published and what is asked for."""

    def __init__(
        self, connection: Client, *, tenant: str, prefix: str = "timer", domain: str | None = None
    ) -> None:
        check_ids(tenant)
        super().__init__(connection, prefix=prefix, domain=domain)
        self.tenant = tenant

    @overload
    async def schedule(
        self,
        service_call_id: str,
        due: timedelta | datetime,
        *,
        confirm: Literal[False] = False,
        **options: Unpack[ScheduleOptions],
    ) -> Accepted: ...
    @overload
    async def schedule(
        self,
        service_call_id: str,
        due: timedelta | datetime,
        *,
        confirm: Literal[True],
        **options: Unpack[ScheduleOptions],
    ) -> Decision: ...
    async def schedule(
        self,
        service_call_id: str,
        due: timedelta | datetime,
        *,
        confirm: bool = False,
        correlation_id: str | None = None,
        if_absent: bool = False,
        expires_after: timedelta | None = None,
    ) -> Accepted | Decision:
        """Have a timer fire after a span or at a moment; asking again moves it.

        Without `confirm` it is a command: the broker keeps it, also while the service is away. With `confirm`
        the service decides now, and the answer is definite. With `if_absent` the first due time counts: a
        timer that exists stays as it is. What could only fire later than `expires_after` expires instead.
        """
        check_ids(self.tenant, service_call_id, correlation_id)
        wanted = times.wanted(due, if_absent=if_absent, expires_after=expires_after)
        if not confirm:
            return await self._command(service_call_id, wanted, correlation_id)
        request = wire.ScheduleRequest.model_construct(
            service_call_id=service_call_id, correlation_id=correlation_id, **dict(wanted)
        )
        answer = await self._ask(self._api("schedule"), request, wire.ScheduleAnswer)
        return Decision(_outcome(answer.outcome), answer.timer)

    @overload
    async def cancel(self, service_call_id: str, *, confirm: Literal[False] = False) -> Accepted: ...
    @overload
    async def cancel(self, service_call_id: str, *, confirm: Literal[True]) -> Decision: ...
    async def cancel(self, service_call_id: str, *, confirm: bool = False) -> Accepted | Decision:
        """Say that a timer is no longer wanted; with `confirm`, learn whether that was in time."""
        check_ids(self.tenant, service_call_id)
        if not confirm:
            return await self._command(service_call_id, None, None)
        request = wire.GetRequest(serviceCallId=service_call_id)
        answer = await self._ask(self._api("cancel"), request, wire.CancelAnswer)
        return Decision(_outcome(answer.outcome), answer.timer)

    async def get(self, service_call_id: str) -> Timer:
        """Return one timer, or raise TimerNotFound."""
        check_ids(self.tenant, service_call_id)
        request = wire.GetRequest(serviceCallId=service_call_id)
        return (await self._ask(self._api("get"), request, wire.GetAnswer)).timer

    async def explain(self, service_call_id: str) -> Explanation:
        """Say why a timer is as it is: due later, late and why, fired and who has read it, or refused."""
        check_ids(self.tenant, service_call_id)
        request = wire.ExplainRequest(serviceCallId=service_call_id)
        return await self._ask(self._api("explain"), request, wire.ExplainAnswer)

    async def list(
        self,
        *,
        state: wire.StateText | None = None,
        correlation_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Timer]:
        """Yield timers by due time, all of them or at most `limit`; each argument narrows the list."""
        check_ids(self.tenant, correlation_id=correlation_id)
        request = wire.ListRequest.model_construct(
            state=state,
            correlation_id=correlation_id,
            due_from=None if due_from is None else times.moment("due_from", due_from),
            due_before=None if due_before is None else times.moment("due_before", due_before),
        )
        left = limit
        while left is None or left > 0:
            size = wire.MAX_PAGE if left is None else min(left, wire.MAX_PAGE)
            page = await self._ask(
                self._api("list"), request.model_copy(update={"limit": size}), wire.ListAnswer
            )
            for timer in page.timers:
                yield timer
            if page.cursor is None:
                return
            left = None if left is None else left - len(page.timers)
            request = request.model_copy(update={"cursor": page.cursor})

    def _api(self, endpoint: str) -> str:
        return self._subjects.api(self.tenant, endpoint)

    async def _command(
        self, service_call_id: str, wanted: wire.Wanted | None, correlation_id: str | None
    ) -> Accepted:
        command_id = new_id()
        body = wire.write_command(
            message_id=command_id,
            timestamp_ms=now_ms(),
            tenant_id=self.tenant,
            service_call_id=service_call_id,
            wanted=wanted,
            correlation_id=correlation_id,
        )
        command_type = wire.CANCEL_TIMER if wanted is None else wire.SCHEDULE_TIMER
        acknowledgement = await self._publish(
            self._subjects.command(self.tenant, command_type), body, str(command_id)
        )
        return Accepted(str(command_id), acknowledgement.stream, acknowledgement.seq)


def _outcome(word: str) -> Outcome:
    return Outcome(word) if word in Outcome._value2member_map_ else Outcome.OTHER
