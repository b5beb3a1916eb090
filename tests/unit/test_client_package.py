"""The client's distribution: as old as the service, small, and still found at its old place."""

import importlib
import importlib.metadata
import tomllib
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import timer_client
import timer_service
from tests.support.documents import read
from timer_client.connection import new_id

MAX_PACKAGES = 8


def test_client_and_service_have_one_version() -> None:
    needed = tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]

    assert timer_client.__version__ == timer_service.__version__
    assert f"timer-service-client=={timer_service.__version__}" in needed


def test_the_client_brings_few_packages() -> None:
    found: set[str] = set()
    wanted = ["timer-service-client"]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            needed = map(Requirement, importlib.metadata.requires(name) or [])
            wanted += [
                canonicalize_name(each.name)
                for each in needed
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]

    assert len(found) <= MAX_PACKAGES, sorted(found)


def test_both_have_the_same_licence() -> None:
    assert read("client/LICENSE") == read("LICENSE")


def test_the_old_place_says_where_the_client_is_now() -> None:
    with pytest.warns(DeprecationWarning, match="timer_service.client is now timer_client"):
        old = importlib.import_module("timer_service.client")

    assert old.CallRefused is timer_client.RequestRefused
    assert issubclass(old.TimerClient, timer_client.TimerClient)
    assert issubclass(old.TimerClient, timer_client.OperatorClient)


def test_a_new_id_begins_with_its_time() -> None:
    made = new_id()

    moment = datetime.fromtimestamp((made.int >> 80) / 1000, UTC)
    assert (made.version, made.variant) == (7, RFC_4122)
    assert abs(moment - datetime.now(UTC)) < timedelta(hours=1)


def test_no_two_ids_are_the_same() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000
