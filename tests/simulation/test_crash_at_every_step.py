"""Kill the service at every step of a few stories: whatever it was doing, nothing is lost or done twice."""

from collections.abc import Iterator

import pytest

from tests.simulation.awaits import all_places
from tests.simulation.crashes import STORIES, CrashReport, crash_everywhere, some_crashes, steps_of
from tests.simulation.world import workshop

Reports = dict[str, CrashReport]

NEVER_WAITS = {
    ("adapters/nats/api.py", "internal error"): "only after an error that nobody has thought of",
    ("adapters/nats/api.py", "accept_clock_step"): "sets a number and returns",
    ("adapters/sqlite/store.py", "async with self._writing:"): "only where two write at once",
    ("bootstrap.py", "serving(app"): "the simulation has no HTTP",
    ("service.py", "self._store.count(now)"): "asked for over HTTP, which the simulation does not have",
    ("bootstrap.py", "bus.running(calls)"): "starts a task and waits for nothing",
    ("bootstrap.py", "listen(service.wake_for)"): "starts a task on PostgreSQL and nothing on SQLite",
}
"""Places at which nobody can be killed, each with the reason."""


@pytest.fixture(scope="module")
def reports() -> Iterator[Reports]:
    """What came of each story, told once."""

    class Lazily(Reports):
        def __missing__(self, story: str) -> CrashReport:
            report = self[story] = CrashReport()
            points = some_crashes(steps_of(story, folder, template))
            crash_everywhere(story, points, folder, template, report)
            return report

    with workshop() as (folder, template):
        yield Lazily()


@pytest.mark.parametrize("story", STORIES)
def test_no_crash_breaks_an_invariant(reports: Reports, story: str) -> None:
    report = reports[story]

    assert [(point, tally.violations[0]) for _, point, tally in report.failures] == []


def test_there_are_enough_crashes(reports: Reports) -> None:
    assert sum(reports[story].scenarios for story in STORIES) >= 2_000


def test_the_service_was_killed_wherever_it_can_wait(reports: Reports) -> None:
    places = all_places()
    killed_at = {place for story in STORIES for place in reports[story].places}

    forgotten = {
        f"{place.module}:{place.line}": source
        for place, source in places.items()
        if place not in killed_at
        if not any(place.module == module and text in source for module, text in NEVER_WAITS)
    }
    assert forgotten == {}
