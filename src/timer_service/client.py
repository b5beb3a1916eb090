"""The client's old place, for one more release: import `timer_client` instead."""

import warnings
from collections.abc import AsyncIterator
from typing import Any

from timer_client import Accepted, OperatorClient, Reached, wire
from timer_client import RequestRefused as CallRefused
from timer_client import TimerClient as _TimerClient

__all__ = ["Accepted", "CallRefused", "Reached", "TimerClient"]

warnings.warn(
    "timer_service.client is now timer_client, of the distribution timer-service-client",
    DeprecationWarning,
    stacklevel=2,
)


class TimerClient(_TimerClient, OperatorClient):
    """What tenants and what operators ask, in one class and with dicts as answers, as before."""

    async def get(self, tenant_id: str, service_call_id: str) -> dict[str, Any]:  # type: ignore[override]
        """Return one timer, or raise CallRefused with code 404."""
        return wire.fields_of(await super().get(tenant_id, service_call_id))

    async def list_timers(  # type: ignore[override]
        self, tenant_id: str, limit: int, **request: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a tenant's timers by due time, at most `limit`; `request` narrows them as the API does."""
        given = {name: value for name, value in request.items() if value is not None}
        narrowed = wire.read_value(wire.ListRequest, given).model_dump(exclude={"limit", "cursor"})
        async for timer in super().list_timers(tenant_id, limit, **narrowed):
            yield wire.fields_of(timer)

    async def status(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the state of each instance of the service."""
        return [wire.fields_of(answer) for answer in await super().status()]

    async def accept_clock_step(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Accept a leap of each instance's wall clock; return the seconds of each."""
        return [wire.fields_of(answer) for answer in await super().accept_clock_step()]
