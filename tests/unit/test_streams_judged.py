"""What is wrong with a stream that somebody else made, and how often it is said."""

import pytest
from nats.js.api import StreamConfig
from structlog.testing import capture_logs

from timer_service.adapters.nats.stream_rules import Finding, broken_promises
from timer_service.adapters.nats.stream_watch import StreamWatch
from timer_service.adapters.nats.streams import FoundStream


@pytest.mark.parametrize(
    ("pattern", "covers"),
    [
        ("timer.commands.>", True),
        ("timer.>", True),
        ("*.commands.>", True),
        (">", True),
        ("timer.commands.*", False),
        ("timer.commands.acme.>", False),
        ("timer.commands", False),
        ("timer.events.>", False),
    ],
)
def test_a_stream_has_to_take_every_command(pattern: str, covers: bool) -> None:
    config = StreamConfig(name="TIMER_COMMANDS", subjects=[pattern], duplicate_window=120.0)

    findings = list(broken_promises(config, (), "timer.commands.>", 120.0))

    assert [finding.loses_data for finding in findings] == ([] if covers else [True])


@pytest.mark.parametrize(
    ("pattern", "covers"), [("timer.*.x", True), ("timer.a.x", True), ("timer.*", False)]
)
def test_a_single_subject_is_taken_by_a_pattern_of_its_length(pattern: str, covers: bool) -> None:
    config = StreamConfig(name="TIMER_EVENTS", subjects=[pattern], duplicate_window=120.0)

    findings = list(broken_promises(config, (), "timer.a.x", 120.0))

    assert [finding.loses_data for finding in findings] == ([] if covers else [True])


def test_what_is_unsafe_is_said_once_as_long_as_it_lasts_and_again_when_it_comes_back() -> None:
    watch = StreamWatch()
    finding = Finding("TIMER_EVENTS keeps too little", loses_data=True)

    with capture_logs() as log:
        for findings in ([finding], [finding], [], [finding]):
            watch.look(FoundStream("TIMER_EVENTS", StreamConfig(), findings))

    assert [line["event"] for line in log] == ["stream.unsafe", "stream.unsafe"]
    assert watch.problem == "TIMER_EVENTS keeps too little"
