"""What became of callbacks, and sending them again: /v1/deliveries and below each timer."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from timer_client import wire
from timer_client.wire.rules import Time
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.adapters.endpoints import TIMERS_PER_REQUEST
from timer_service.adapters.http import bodies
from timer_service.adapters.http.api import Answer, Request
from timer_service.adapters.http.builder import name_in
from timer_service.adapters.http.callbacks import attempt_view, delivery_view
from timer_service.adapters.http.problems import Problem
from timer_service.deliveries import Deliveries
from timer_service.domain.callback import origin_of
from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import TenantId
from timer_service.ports.delivery_store import DeliveryQuery
from timer_service.targets import read_target

StateText = Literal["waiting", "delivered", "failed", "abandoned"]


class _Filter(bodies.Body):
    origin: str | None = Field(default=None, max_length=2_048)
    opened_from: Time | None = Field(default=None, alias="openedFrom")
    opened_before: Time | None = Field(default=None, alias="openedBefore")


class DeliveriesQuery(_Filter):
    """Which deliveries to list."""

    state: StateText | None = None
    limit: int = Field(default=100, ge=1, le=wire.MAX_PAGE, strict=False)
    cursor: bodies.CursorText | None = None


class RetryFilter(_Filter):
    """Which deliveries to send again."""

    state: Literal["failed", "abandoned"] = "failed"
    limit: int = Field(default=100, ge=1, le=1_000)
    cursor: bodies.CursorText | None = None


PublicKeys = Callable[[TenantId], Awaitable[list[dict[str, Any]]]]
"""The keys that sign a tenant's callbacks, as its receivers may see them."""


class DeliveryHandlers:
    """What each request about callbacks does; the tenant is that of the key."""

    def __init__(self, deliveries: Deliveries, public_keys: PublicKeys) -> None:
        self._deliveries = deliveries
        self._public_keys = public_keys

    async def attempts(self, request: Request) -> Answer:
        """Show the delivery of a timer and its newest failed attempts."""
        with _naming_the_callback(request):
            record = await self._deliveries.record((request.caller.tenant_id, name_in(request)))
        content: dict[str, Any] = {"attempts": [attempt_view(attempt) for attempt in record.attempts]}
        if record.delivery is not None:
            content["delivery"] = delivery_view(record.delivery)
        return Answer(200, wire.write_json(content))

    async def retry(self, request: Request) -> Answer:
        """Send a callback again, under the same id."""
        with _naming_the_callback(request):
            delivery, count = await self._deliveries.retry(request.caller.tenant_id, name_in(request))
        return _shown(delivery, retried=count)

    async def abandon(self, request: Request) -> Answer:
        """Make no further attempt."""
        tenant_id = request.caller.tenant_id
        with _naming_the_callback(request):
            name = name_in(request)
            delivery = await self._deliveries.abandon(tenant_id, name)
            if delivery is None:  # For want of a firing, or of a callback.
                await self._deliveries.record((tenant_id, name))
            return _shown(delivery)

    async def list(self, request: Request) -> Answer:
        """Show a page of deliveries."""
        asked = bodies.read_query(DeliveriesQuery, request.query)
        found = await self._deliveries.list(
            DeliveryQuery(
                tenant_id=request.caller.tenant_id,
                state=None if asked.state is None else DeliveryState(asked.state.capitalize()),
                origin=_origin(asked.origin),
                opened_from=asked.opened_from,
                opened_before=asked.opened_before,
                after=None if asked.cursor is None else read_cursor(asked.cursor),
                limit=asked.limit,
            )
        )
        content: dict[str, Any] = {"deliveries": [delivery_view(delivery) for delivery in found]}
        if len(found) == asked.limit:
            content["cursor"] = write_cursor(found[-1].opened_at, found[-1].service_call_id)
        return _counted(content, found)

    async def retry_all(self, request: Request) -> Answer:
        """Send again what a filter finds, a bounded number at a time."""
        asked = bodies.read_body(RetryFilter, request.body)
        retried = await self._deliveries.retry_all(
            DeliveryQuery(
                tenant_id=request.caller.tenant_id,
                state=DeliveryState(asked.state.capitalize()),
                origin=_origin(asked.origin),
                opened_from=asked.opened_from,
                opened_before=asked.opened_before,
                after=None if asked.cursor is None else read_cursor(asked.cursor),
                limit=asked.limit,
            )
        )
        found = retried.found
        content: dict[str, Any] = {"retried": retried.count, "more": len(found) == asked.limit}
        if content["more"]:
            # A retry that fails at once would be found again; a caller that continues from here skips it.
            content["cursor"] = write_cursor(found[-1].opened_at, found[-1].service_call_id)
        return _counted(content, found)

    async def signing_keys(self, request: Request) -> Answer:
        """Show the keys by which callbacks can be verified."""
        return Answer(200, wire.write_json({"keys": await self._public_keys(request.caller.tenant_id)}))


def _counted(content: dict[str, Any], found: Sequence[Delivery]) -> Answer:
    """Return an answer that counts by the deliveries that were read for it."""
    return Answer(200, wire.write_json(content), extra_cost=len(found) // TIMERS_PER_REQUEST)


@contextmanager
def _naming_the_callback(request: Request) -> Iterator[None]:
    """Say of a timer without a callback that it has none: there may well be a timer."""
    try:
        yield
    except TimerNotFound as error:
        raise Problem("not-found", f"there is no timer {request.name!r} with a callback") from error


def _shown(delivery: Delivery | None, **more: int) -> Answer:
    if delivery is None:
        raise Problem("conflict", "there is no delivery: the timer has not fired")
    return Answer(200, wire.write_json({"delivery": delivery_view(delivery), **more}))


def _origin(text: str | None) -> str | None:
    """Return the origin that a filter means, however it is spelled, also as a whole URL."""
    if text is None:
        return None
    try:
        return origin_of(read_target(text).url)
    except ValueError:
        return text  # No receiver has it.
