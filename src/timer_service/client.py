"""The client's old place, for one more release: import `timer_client` instead."""

import warnings
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from timer_client import Accepted, OperatorClient, Reached, Timers, wire
from timer_client import RequestRefused as CallRefused

__all__ = ["Accepted", "CallRefused", "Reached", "TimerClient"]

warnings.warn(
    "timer_service.client is now timer_client, of the distribution timer-service-client",
    DeprecationWarning,
    stacklevel=2,
)


class TimerClient(OperatorClient):
    """What tenants and what operators ask, in one class and with dicts as answers, as before."""

    def _timers(self, tenant_id: str) -> Timers:
        return Timers(self._connection, tenant=tenant_id, prefix=self._subjects.prefix, domain=self._domain)

    async def schedule(
        self, tenant_id: str, service_call_id: str, due_at: datetime, *, correlation_id: str | None = None
    ) -> Accepted:
        """Ask for a DueTimeReached at this time; asking again moves the time."""
        return await self._timers(tenant_id).schedule(service_call_id, due_at, correlation_id=correlation_id)

    async def cancel(self, tenant_id: str, service_call_id: str) -> Accepted:
        """Say that the timer is no longer wanted."""
        return await self._timers(tenant_id).cancel(service_call_id)

    async def get(self, tenant_id: str, service_call_id: str) -> dict[str, Any]:
        """Return one timer, or raise CallRefused with code 404."""
        return wire.fields_of(await self._timers(tenant_id).get(service_call_id))

    async def list_timers(
        self, tenant_id: str, limit: int, **request: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a tenant's timers by due time, at most `limit`; `request` narrows them as the API does."""
        given = {name: value for name, value in request.items() if value is not None}
        narrowed = wire.read_value(wire.ListRequest, given).model_dump(exclude={"limit", "cursor"})
        async for timer in self._timers(tenant_id).list(limit=limit, **narrowed):
            yield wire.fields_of(timer)

    async def status(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the state of each instance of the service."""
        return [wire.fields_of(answer) for answer in await super().status()]

    async def accept_clock_step(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Accept a leap of each instance's wall clock; return the seconds of each."""
        return [wire.fields_of(answer) for answer in await super().accept_clock_step()]
