"""A plugin of pytest: tells coverage.py which file of tests is running, and keeps how long each took."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

SECONDS = "seconds.json"
"""Seconds by file of tests; a file that failed is not in it."""

_seconds = Counter[str]()
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Put what the product does under the name of the file of tests."""
    if (coverage := Coverage.current()) is not None:
        coverage.switch_context(_file(item.nodeid))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a file takes; with several workers, in the process that leads them."""
    _seconds[_file(report.nodeid)] += report.duration  # type: ignore[assignment]
    if report.failed:
        _failed.add(_file(report.nodeid))


def pytest_sessionfinish() -> None:
    """Leave what was added up where the tests were started."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        told = {file: took_s for file, took_s in _seconds.items() if file not in _failed}
        Path(SECONDS).write_text(json.dumps(told))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
