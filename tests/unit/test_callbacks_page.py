"""docs/callbacks.md says what the code does."""

import json

from tests.support.callbacks import request_to
from tests.support.documents import code_words, marked_blocks, read, table
from timer_service import targets
from timer_service.adapters import callback_headers
from timer_service.adapters.webhook.message import build_message, event_body
from timer_service.adapters.webhook.signature import SigningKey
from timer_service.domain.callback import Signing

PAGE = "docs/callbacks.md"
URL = "https://shop.example.com/hooks/orders"
KEY = SigningKey(Signing.ED25519, bytes(range(32)))


def test_the_callback_that_is_shown_is_the_one_that_is_sent() -> None:
    message = build_message(
        request_to(URL, body=b'{"order":42}'), URL, (("Authorization", "Bearer t0ken"),), [KEY]
    )

    head = "".join(f"{name}: {value}\n" for name, value in message.headers.items())
    shown = marked_blocks(PAGE)["example: callback"]
    assert shown == f"POST /hooks/orders HTTP/1.1\n{head}\n{message.body.decode()}\n"


def test_the_event_that_is_shown_is_the_one_that_is_sent() -> None:
    shown = marked_blocks(PAGE)["example: event"]

    assert shown.strip().encode() == event_body(request_to(URL))
    assert json.loads(shown)["type"] == "timer.reached"


def test_the_ranges_are_those_that_are_denied() -> None:
    listed = {code_words(row["range"])[0]: row["what it is"] for row in table(PAGE, "range")}

    assert listed == targets._DENIED


def test_every_address_that_must_be_named_is_listed() -> None:
    single = [text.partition("/")[0] for text in targets._ONLY_BY_NAME if text.endswith(("/32", "/128"))]

    assert [address for address in single if f"`{address}`" not in read(PAGE)] == []


def test_the_reserved_headers_and_those_in_clear_are_listed() -> None:
    page = read(PAGE)

    named = {*callback_headers._RESERVED, *callback_headers._IN_CLEAR}
    named |= {f"{prefix}*" for prefix in callback_headers._RESERVED_PREFIXES}
    assert [name for name in named if f"`{name}`" not in page] == []
