"""Places in a list and filters as they stand in an address."""

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from timer_client import wire
from timer_service.adapters.http.pages.visit import PageError, Visit
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_insight import Place, TimerFilter

NAMES: Final = ("tenant", "state", "from", "to", "correlation")
"""What narrows a list, as the address has it."""
WRONG_ID: Final = f"An id must be {wire.SERVICE_CALL_RULE}."
WRONG_CORRELATION: Final = f"A correlation id must be {wire.CORRELATION_RULE}."


def write_place(place: Place | None) -> str | None:
    """Return a place for an address; to the millisecond, as it is kept."""
    return None if place is None else f"{wire.format_time(place[0])} {place[1]} {place[2]}"


def read_place(text: str | None) -> Place | None:
    """Return the place that an address names, or raise PageError."""
    if not text:
        return None
    moment, _, key = text.partition(" ")
    tenant, _, name = key.partition(" ")
    if not wire.is_tenant_id(tenant) or not wire.is_service_call_id(name):
        raise PageError(400, "This place in the list is not valid: start from the first page.")
    return read_moment(moment, None), TenantId(tenant), ServiceCallId(name)


def read_moment(text: str, zone: tzinfo | None) -> datetime:
    """Return a moment; one without a zone is in the zone that is shown. Raises PageError."""
    text = text.strip().replace(" ", "T", 1)
    try:
        local = datetime.fromisoformat(text)
        if local.tzinfo is not None:
            return wire.parse_time(text)
    except (ValueError, OverflowError) as error:
        raise PageError(400, "A time must look like 2026-11-17T09:30:00Z or 2026-11-17T09:30.") from error
    return _in_zone(local, zone or UTC)


def _in_zone(local: datetime, zone: tzinfo) -> datetime:
    """Return a wall-clock time as a moment; one that is not clear is asked again, not guessed."""
    early, late = local.replace(tzinfo=zone), local.replace(tzinfo=zone, fold=1)
    try:
        moments = {each.astimezone(UTC) for each in (early, late)}
    except OverflowError as error:
        raise PageError(400, "A time must be in the years 0001 to 9999.") from error
    if len(moments) > 1:
        choices = " or ".join(f"{each.isoformat(timespec='seconds')}Z" for each in _utc(moments))
        raise PageError(
            400,
            f"{local.isoformat(sep=' ')} is not one moment in this zone: the clocks change then. "
            f"Write which one is meant, in UTC: {choices}.",
        )
    return moments.pop()


def _utc(moments: set[datetime]) -> list[datetime]:
    return [each.replace(tzinfo=None) for each in sorted(moments)]


def read_filter(visit: Visit, values: Mapping[str, str]) -> TimerFilter:
    """Return what an address or a form asks to see, within what the visitor may see. Raises PageError."""
    tenant = visit.tenant(values.get("tenant", "").strip())
    state = values.get("state") or TimerState.SCHEDULED.value
    if state not in list(TimerState):
        raise PageError(400, f"The state must be one of {', '.join(TimerState)}.")
    correlation = values.get("correlation") or None
    if correlation is not None and not wire.is_correlation_id(correlation):
        raise PageError(400, WRONG_CORRELATION)
    since, until = (
        read_moment(values[name], visit.look.zone) if values.get(name) else None for name in ("from", "to")
    )
    return TimerFilter(
        visit.user.tenants if tenant is None else frozenset({tenant}),
        TimerState(state),
        None if correlation is None else CorrelationId(correlation),
        since,
        until,
    )


def filter_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of an address that says what is listed."""
    return {name: values[name] for name in NAMES if values.get(name)}
