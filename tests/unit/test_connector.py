"""Who refuses us at the first connection ends the process; later it is an outage like any other."""

import asyncio
from typing import Any, ClassVar, cast
from urllib.parse import urlparse

import pytest
from nats.errors import Error as NatsError

from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.connecting import Connector
from timer_service.domain.errors import BrokerRefused

SERVER = "nats://timer:secret@one:4222"


class FakeClient:
    """A client whose connections end as a test wants it."""

    results: ClassVar[list[Exception | None]] = []
    told_servers = ("two:4222",)

    def __init__(self, url: str = SERVER) -> None:
        self.connected_url = urlparse(url)

    async def connect(self, **_: Any) -> None:
        if (error := self.results.pop(0)) is not None:
            raise error

    async def close(self) -> None:
        pass


async def nothing(*_: Exception) -> None:
    pass


@pytest.fixture
def connector() -> Connector:
    make_client = cast("type[TolerantClient]", FakeClient)
    return Connector({"servers": [SERVER]}, lambda: 0.5, nothing, nothing, make_client=make_client)


async def connect(connector: Connector, *results: Exception | None) -> TolerantClient:
    FakeClient.results = list(results)
    async with asyncio.timeout(60):
        return await connector.connect()


async def test_credentials_that_never_were_accepted_are_named_without_being_shown(
    connector: Connector,
) -> None:
    with pytest.raises(BrokerRefused) as caught:
        await connect(connector, NatsError("nats: 'Authorization Violation'"))

    assert "TIMER_BROKER_USER" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_credentials_that_were_accepted_before_may_be_refused_for_a_while(connector: Connector) -> None:
    await connect(connector, None)

    with pytest.raises(NatsError, match="Authorization Violation"):
        await connect(connector, *[NatsError("nats: 'Authorization Violation'")] * 2)


async def test_a_server_that_the_last_session_told_of_is_tried_after_our_own(connector: Connector) -> None:
    await connect(connector, None)

    await connect(connector, OSError("refused"), None)

    assert connector.learnt == ["nats://timer:secret@two:4222"]
    assert FakeClient.results == []


@pytest.mark.parametrize("url", ["ws://one:80", "wss://one:443"])
def test_over_websockets_nothing_is_learnt_because_servers_tell_of_other_ports(
    connector: Connector, url: str
) -> None:
    connector.learn(cast("TolerantClient", FakeClient(url)))

    assert connector.learnt == []
