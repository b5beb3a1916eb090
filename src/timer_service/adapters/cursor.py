"""The cursor of a list: where a page ended, as opaque text; it comes back from strangers."""

import base64
import binascii
from datetime import datetime
from typing import Final

from timer_client import wire
from timer_service.domain.messages import ServiceCallId

_REFUSAL: Final = "cursor: must be the cursor of the page before"

Place = tuple[datetime, ServiceCallId]
"""The due time and id of the last timer of a page."""


def write_cursor(due_at: datetime, service_call_id: str) -> str:
    """Return the cursor that leads on after a timer."""
    return base64.urlsafe_b64encode(f"{wire.format_time(due_at)} {service_call_id}".encode()).decode()


def read_cursor(cursor: str) -> Place:
    """Return where a page ended; raise WireError for any text that `write_cursor` never returns."""
    if len(cursor) > wire.MAX_CURSOR:
        raise wire.WireError("invalid", _REFUSAL)
    try:
        moment, _, service_call_id = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        due_at = wire.parse_time(moment)
    except (ValueError, binascii.Error) as error:
        raise wire.WireError("invalid", _REFUSAL) from error
    # Compared with our own form: an id or a time in any other never reaches the database.
    if not wire.is_service_call_id(service_call_id) or write_cursor(due_at, service_call_id) != cursor:
        raise wire.WireError("invalid", _REFUSAL)
    return due_at, ServiceCallId(service_call_id)
