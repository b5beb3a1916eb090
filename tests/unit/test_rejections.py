"""Whether the broker refuses one event or all of them."""

import pytest

from timer_service.adapters.nats.rejections import NO_STREAM, blame_the_stream, rejection
from timer_service.ports.event_sink import Published, PublishResult

CONFIRMED = PublishResult(Published.CONFIRMED)


@pytest.mark.parametrize(
    ("code", "description", "outcome"),
    [
        (10077, "maximum messages exceeded", Published.STREAM_REFUSED),
        (10077, "maximum bytes exceeded", Published.STREAM_REFUSED),
        (10077, "maximum messages per subject exceeded", Published.REJECTED),
        (10023, "insufficient resources", Published.STREAM_REFUSED),
        (10047, "insufficient storage resources available", Published.STREAM_REFUSED),
        (10109, "invalid operation on sealed stream", Published.STREAM_REFUSED),
        (10054, "message size exceeds maximum allowed", Published.REJECTED),
    ],
)
def test_an_error_is_the_streams_or_the_events(code: int, description: str, outcome: Published) -> None:
    found = rejection({"code": 503, "err_code": code, "description": description})

    assert found == PublishResult(outcome, f"{description} ({code})")


def test_no_stream_for_several_tenants_is_a_stream_that_is_gone() -> None:
    found = blame_the_stream(["events.acme", "events.globex"], [NO_STREAM, NO_STREAM])

    assert [result.outcome for result in found] == [Published.STREAM_REFUSED] * 2


@pytest.mark.parametrize(
    ("subjects", "results"),
    [
        (["events.acme", "events.acme"], [NO_STREAM, NO_STREAM]),
        (["events.acme", "events.globex"], [NO_STREAM, CONFIRMED]),
        ([], []),
    ],
)
def test_no_stream_for_one_tenant_is_that_tenants(subjects: list[str], results: list[PublishResult]) -> None:
    assert blame_the_stream(subjects, results) == results
