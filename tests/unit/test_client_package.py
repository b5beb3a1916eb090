"""The client's distribution: as old as the service, small, and still found at its old place."""

import importlib
import importlib.metadata
import json
import sys
import tomllib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast
from uuid import RFC_4122

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import timer_client
import timer_service
from tests.support.documents import read
from timer_client import wire
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
    sys.modules.pop("timer_service.client", None)

    with pytest.warns(DeprecationWarning, match="timer_service.client is now timer_client"):
        old = importlib.import_module("timer_service.client")

    assert old.CallRefused is timer_client.RequestRefused
    assert issubclass(old.TimerClient, timer_client.OperatorClient)


def test_a_new_id_begins_with_its_time() -> None:
    made = new_id()

    moment = datetime.fromtimestamp((made.int >> 80) / 1000, UTC)
    assert (made.version, made.variant) == (7, RFC_4122)
    assert abs(moment - datetime.now(UTC)) < timedelta(hours=1)


def test_no_two_ids_are_the_same() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000


class AnsweringConnection:
    """Answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.asked: list[tuple[str, Any]] = []
        self.last_error = None

    def jetstream(self) -> None:
        return None

    async def request(self, subject: str, body: bytes, timeout: float) -> Msg:
        self.asked.append((subject, json.loads(body)))
        return Msg(cast("Client", None), data=self.body)


TIMER = {
    "tenantId": "acme",
    "serviceCallId": "order-1",
    "state": "Scheduled",
    "dueAt": "2026-12-01T09:00:00.000Z",
    "generation": 1,
    "registeredAt": "2026-11-01T09:00:00.000Z",
}


async def test_a_list_is_narrowed_as_the_wire_has_it_and_read_by_its_model() -> None:
    connection = AnsweringConnection(json.dumps({"timers": [TIMER]}).encode())
    client = timer_client.Timers(cast("Client", connection), tenant="acme")
    due_from = datetime(2026, 12, 1, 10, 0, 0, 1, tzinfo=timezone(timedelta(hours=1)))

    found = [timer async for timer in client.list(limit=10, state="Scheduled", due_from=due_from)]

    assert [wire.fields_of(timer) for timer in found] == [TIMER]
    narrowed = {"state": "Scheduled", "dueFrom": "2026-12-01T09:00:00.001Z", "limit": 10}
    assert connection.asked == [("timer.api.acme.list", narrowed)]


async def test_an_answer_that_the_service_never_gives_is_refused() -> None:
    client = timer_client.Timers(cast("Client", AnsweringConnection(b'{"timer": {}}')), tenant="acme")

    with pytest.raises(timer_client.RequestRefused, match="the answer cannot be read: timer"):
        await client.get("order-1")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_old_client_still_answers_with_dicts() -> None:
    old = importlib.import_module("timer_service.client")
    connection = AnsweringConnection(json.dumps({"timer": TIMER, "timers": [TIMER]}).encode())
    client = old.TimerClient(connection)

    listed = client.list_timers("acme", 1, correlationId=None, dueFrom="2026-12-01T09:00:00.000Z")

    assert await client.get("acme", "order-1") == TIMER
    assert [timer async for timer in listed] == [TIMER]
    assert connection.asked[1] == (
        "timer.api.acme.list",
        {"dueFrom": "2026-12-01T09:00:00.000Z", "limit": 1},
    )
