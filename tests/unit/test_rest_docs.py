"""What docs/rest.md shows is what the API does."""

import json
from typing import Any

from tests.support.documents import marked_blocks, read
from tests.support.rest import Site
from timer_service.adapters.http import api, callbacks, rest, timer_bodies

PAGE = "docs/rest.md"


def example(name: str) -> Any:
    return json.loads(marked_blocks(PAGE)[f"example: {name}"])


async def test_the_example_of_a_timer_leads_to_its_answer() -> None:
    site = await Site().open()

    reply = await site.ask("POST", "/v1/timers", example("create"))

    assert (reply.status, reply.json) == (201, example("created"))


async def test_the_example_of_a_callback_is_accepted() -> None:
    site = await Site(has_broker=False).open()

    assert (await site.ask("POST", "/v1/timers", example("callback"))).status == 201


async def test_the_example_of_a_dry_run_leads_to_its_answer() -> None:
    site = await Site().open()

    answer = (await site.ask("POST", "/v1/timers:dryRun", example("dry run"))).json

    shown = example("dry run answered")
    # Keys are random.
    signatures = [each["request"]["headers"].pop("webhook-signature") for each in (answer, shown)]
    assert [each[:4] for each in signatures] == ["v1a,"] * 2
    assert answer == shown


async def test_the_example_of_an_error_is_what_is_answered() -> None:
    site = await Site().open()

    reply = await site.ask("POST", "/v1/timers", example("wrong"))

    assert (reply.status, reply.json) == (400, example("problem"))


async def test_every_path_stands_on_the_page() -> None:
    site = await Site().open()

    assert [path for path in site.app.routes if path not in read(PAGE)] == []


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert (api.MAX_BODY_BYTES, rest.MAX_BATCH_BYTES, api.RECEIVE_TIMEOUT_S) == (128 * 1024, 4 * 1024**2, 10)
    assert (callbacks.MAX_PAYLOAD_BYTES, callbacks.MAX_METADATA_BYTES) == (64 * 1024, 4 * 1024)
    assert (callbacks.MAX_ATTEMPTS, timer_bodies.MAX_BATCH) == (50, 1_000)
