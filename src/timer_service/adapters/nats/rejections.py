"""Find out whether the broker refuses one event or all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from timer_service.ports.event_sink import Published, PublishResult

NO_STREAM: Final = PublishResult(Published.REJECTED, "no stream stores this subject")

_NO_STREAM_FOR_ANYBODY: Final = PublishResult(Published.STREAM_REFUSED, NO_STREAM.detail)
_WHOLE_STREAM: Final = frozenset(
    {
        10002,  # resource limits of the account
        10008,  # JetStream is temporarily unavailable
        10023,  # insufficient resources
        10028,  # memory resources exceeded
        10047,  # storage resources exceeded
        10077,  # the store failed: maximum messages or bytes exceeded, no space left
        10109,  # the stream is sealed
    }
)
_ONE_SUBJECT: Final = "per subject"
"""A limit of one subject, which is one tenant's, under the same number as those of the stream."""


def rejection(error: Mapping[str, Any]) -> PublishResult:
    """Return what an error of JetStream means for the event that it answers."""
    code, description = error.get("err_code"), str(error.get("description"))
    is_the_streams = code in _WHOLE_STREAM and _ONE_SUBJECT not in description
    outcome = Published.STREAM_REFUSED if is_the_streams else Published.REJECTED
    return PublishResult(outcome, f"{description} ({code})")


def blame_the_stream(subjects: Sequence[str], results: list[PublishResult]) -> list[PublishResult]:
    """Take it for the stream's absence if none of several tenants finds one.

    A single tenant that finds none may be one that the operator's stream leaves out.
    """
    if all(result == NO_STREAM for result in results) and len(set(subjects)) > 1:
        return [_NO_STREAM_FOR_ANYBODY] * len(results)
    return results
