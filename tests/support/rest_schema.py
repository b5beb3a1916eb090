"""Both dialects against their own document: schemathesis makes requests, right and wrong, and checks answers.

Run by tests/unit/test_rest_schema.py in a process of its own: schemathesis makes much of it while tests are
collected, which every worker of a run does. `make schema` makes many more.
"""

import asyncio
import itertools
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.support.rest import KEYS, Site
from tests.support.timers import ACME
from timer_service.testing import ManualClock

pytest_plugins = ("schemathesis.pytest.plugin",)

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "5"))


def no_error_of_ours(_: Any, response: Any, __: "Case[Any]") -> None:
    """503 is documented: a due timer is being fired, which nobody does here, and one should try again."""
    assert response.status_code < 500 or response.status_code == 503, response.text


CHECKS = [
    no_error_of_ours,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.ignored_auth,
    checks.unsupported_method,
]


class HurriedClock(ManualClock):
    """Nobody else moves it: who waits for a timer that is being fired, which nobody does here, has waited."""

    async def wait(self, timeout_s: float, wake: asyncio.Event) -> None:
        self.advance(timeout_s)


def fresh_site() -> Site:
    return asyncio.run(Site(clock=HurriedClock()).open())


sites = [fresh_site()]
addresses = itertools.count()


async def from_anywhere(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Pass each request on as that of another client: one that tries many wrong keys is made to wait."""
    await sites[-1].app({**scope, "client": (f"client-{next(addresses)}", 0)}, receive, send)


schema = schemathesis.openapi.from_asgi("/openapi.json", from_anywhere)
schema.config.generation.update(modes=list(GenerationMode))


HEADERS = {"X-API-Key": KEYS[ACME]}
LONG_STORIES = EXAMPLES > 5


class Stories(schema.as_state_machine()):  # type: ignore[misc]
    """Create timers, and go on with what the answers lead to."""

    def setup(self) -> None:
        """Begin without timers: beside those of other stories, the same story would be answered otherwise."""
        sites[:] = [fresh_site()]

    def get_call_kwargs(self, case: "Case[Any]") -> dict[str, Any]:
        return {"headers": HEADERS}

    def validate_response(self, response: Any, case: "Case[Any]", **_: Any) -> None:
        case.validate_response(response, checks=CHECKS)


@pytest.mark.filterwarnings("ignore")
def test_what_an_answer_leads_to_is_answered_as_the_document_says() -> None:
    Stories.run(
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=8 if LONG_STORIES else 4,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
    )


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.filterwarnings("ignore")
def test_the_api_answers_as_its_document_says(case: "Case[Any]") -> None:
    case.call_and_validate(headers=HEADERS, checks=CHECKS)
