"""The private names of nats-py that the service relies on: an upgrade that lacks one fails here, by name."""

import inspect

import nats.protocol.parser
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.micro.request import Request

CLIENT = Client()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_process_msg", ["sid", "subject", "reply", "data", "headers"]),
        ("_build_message", ["sid", "subject", "reply", "data", "headers"]),
        ("_process_headers", ["headers"]),
        ("_process_info", ["info", "initial_connection"]),
    ],
)
def test_the_client_has_the_methods_that_we_call_or_replace(name: str, parameters: list[str]) -> None:
    method = getattr(CLIENT, name)

    assert list(inspect.signature(method).parameters) == parameters
    assert inspect.iscoroutinefunction(method) or name == "_build_message"


@pytest.mark.parametrize(
    "name", ["_subs", "_flush_queue", "_pending", "_pending_data_size", "_error_cb", "is_closed"]
)
def test_the_client_has_the_attributes_that_we_read(name: str) -> None:
    assert hasattr(CLIENT, name)


def test_a_subscription_and_a_request_have_theirs() -> None:
    subscription = Subscription(CLIENT, 7, "s")

    assert (subscription._id, subscription._cb) == (7, None)
    assert "_msg" in inspect.getsource(Request.__init__)


def test_a_message_is_made_of_what_we_give_it() -> None:
    parameters = set(inspect.signature(Msg).parameters)

    assert parameters >= {"_client", "subject", "reply", "data", "headers", "_sid"}


@pytest.mark.parametrize("name", ["MSG_RE", "HMSG_RE"])
def test_the_parser_uses_the_patterns_that_we_replace(name: str) -> None:
    assert f"{name}.match(" in inspect.getsource(nats.protocol.parser.Parser)


def test_the_flusher_sends_what_is_pending_and_settles_what_is_put_into_its_queue() -> None:
    """We put data and a future there ourselves, to wait until the socket has taken a part."""
    source = inspect.getsource(Client._flusher)

    assert "await self._flush_queue.get()" in source
    assert "self._transport.writelines(self._pending[:])" in source
    assert "future.set_result(None)" in source
