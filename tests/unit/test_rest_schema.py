"""Both dialects against their own document: schemathesis makes requests, right and wrong, and checks answers.

`make schema` makes many more.
"""

import asyncio
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.support.rest import KEYS, Site
from tests.support.timers import ACME

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "5"))
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.ignored_auth,
    checks.unsupported_method,
]

site = asyncio.run(Site().open())
schema = schemathesis.openapi.from_asgi("/openapi.json", site.app)
schema.config.generation.update(modes=list(GenerationMode))


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
    case.call_and_validate(headers={"X-API-Key": KEYS[ACME]}, checks=CHECKS)
