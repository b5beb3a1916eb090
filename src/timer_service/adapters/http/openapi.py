"""The REST API in its own words: an OpenAPI 3.1 document, and a page that shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from timer_client import wire
from timer_service import __version__
from timer_service.adapters.http.api import Answer, Request, Route
from timer_service.adapters.http.compact import CompactQuery, CreateBody, UpdateBody
from timer_service.adapters.http.deliveries import DeliveriesQuery, RetryFilter
from timer_service.adapters.http.openapi_answers import ANSWERS, EVENT, MODELS, SCHEMAS, ref
from timer_service.adapters.http.openapi_page import page_of
from timer_service.adapters.http.timer_bodies import BatchBody, NewTimerBody, PatchBody, TimerBody
from timer_service.adapters.http.v1 import ListQuery

_REF: Final = "#/components/schemas/{model}"
_EVERYWHERE: Final = (400, 401, 403, 429, 500, 503)
_BODY: Final = (408, 413, 415)


@dataclass(frozen=True, slots=True)
class Operation:
    """What is said of one route."""

    summary: str
    statuses: tuple[int, ...] = (200,)
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    refusals: tuple[int, ...] = ()
    headers: tuple[str, ...] = field(default=())
    links: Mapping[str, Any] = field(default_factory=dict)
    """What can be asked next of the timer in the answer."""


def _links(timer_id: str, *names: str) -> dict[str, Any]:
    return {name: {"operationId": name.replace(".", "_"), "parameters": {"id": timer_id}} for name in names}


_MATCH: Final = ("If-Match", "If-None-Match")
_KEY: Final = ("Idempotency-Key",)
_OF_TIMER: Final = _links(
    "$response.body#/timer/serviceCallId",
    *("rest.get", "rest.put", "rest.patch", "rest.cancel", "rest.attempts", "rest.retry", "rest.abandon"),
)
_OF_COMPACT_TIMER: Final = _links("$response.body#/data/id", "timers.get", "timers.update", "timers.cancel")
OPERATIONS: Final[Mapping[str, Operation]] = {
    "rest.create": Operation(
        "Create a timer", (201, 200), NewTimerBody, refusals=(409, 422), headers=_KEY, links=_OF_TIMER
    ),
    "rest.list": Operation("List timers, page by page", query=ListQuery),
    "rest.batch": Operation("Create up to 1,000 timers in one transaction", body=BatchBody, headers=_KEY),
    "rest.dry_run": Operation(
        "Show what a timer would send, and send nothing", body=NewTimerBody, headers=_KEY
    ),
    "rest.get": Operation("Show a timer", (200, 304), refusals=(404,), headers=_MATCH[1:]),
    "rest.explain": Operation(
        "Say why a timer is as it is, also where there is none",
        refusals=(404,),  # An id that no timer can have.
    ),
    "rest.put": Operation(
        "Create a timer, or put another one in its place",
        *((200, 201), TimerBody, None, (409, 412), _MATCH, _OF_TIMER),
    ),
    "rest.patch": Operation(
        "Change a scheduled timer", body=PatchBody, refusals=(404, 409, 412), headers=_MATCH[:1]
    ),
    "rest.cancel": Operation("Cancel a timer: it never fires", refusals=(404, 409, 412), headers=_MATCH[:1]),
    "rest.attempts": Operation("Show a delivery and its failed attempts", refusals=(404,)),
    "rest.retry": Operation("Send a callback again, under the same id", refusals=(404, 409)),
    "rest.abandon": Operation("Make no further attempt", refusals=(404, 409)),
    "rest.deliveries": Operation("List deliveries, page by page", query=DeliveriesQuery),
    "rest.retry_all": Operation("Send again what a filter finds", body=RetryFilter),
    "rest.signing_keys": Operation("Show the keys that verify callbacks"),
    "timers.create": Operation(
        "Create a timer (compact)",
        *((201,), CreateBody, None, (422,), _KEY, _OF_COMPACT_TIMER),
    ),
    "timers.list": Operation("List timers with their number (compact)", query=CompactQuery),
    "timers.get": Operation("Show a timer (compact)", refusals=(404,)),
    "timers.update": Operation("Change a pending timer (compact)", body=UpdateBody, refusals=(404,)),
    "timers.cancel": Operation("Cancel a pending timer (compact)", refusals=(404,)),
    "timers.health": Operation("Say whether the store answers (compact)", (200, 500)),
}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    models = {told.body for told in OPERATIONS.values() if told.body is not None}
    models.update(MODELS)
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=_name)], ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.name in OPERATIONS:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, OPERATIONS[route.name])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timer-service",
            "version": __version__,
            "description": "Durable timers. The tenant is that of the API key.",
        },
        "paths": paths,
        "webhooks": {"timer.reached": {"post": _webhook()}},
        "components": {
            "schemas": {**schemas["$defs"], **SCHEMAS},
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Route, told: Operation) -> dict[str, Any]:
    is_compact = route.failed is not None
    found: dict[str, Any] = {
        "operationId": route.name.replace(".", "_"),
        "summary": told.summary,
        "parameters": _parameters(route, told),
        "responses": {str(status): _success(status, route.name, told) for status in told.statuses},
        "security": [] if route.scope is None else [{"key": []}, {"bearer": []}],
    }
    refusals = (
        () if route.scope is None else (*_EVERYWHERE, *told.refusals, *(_BODY if route.media_types else ()))
    )
    for status in sorted(set(refusals) - set(told.statuses)):
        found["responses"][str(status)] = _refusal(is_compact=is_compact)
    if told.body is not None:
        schema = ref(_name(told.body))
        found["requestBody"] = {
            "required": True,
            "content": {media_type: {"schema": schema} for media_type in route.media_types},
        }
    return found


def _parameters(route: Route, told: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{id}" in route.path:
        found.append(
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        )
    if told.query is not None:
        properties = told.query.model_json_schema(ref_template=_REF)["properties"]
        found += [
            {"name": name, "in": "query", "schema": _without_null(schema)}
            for name, schema in properties.items()
        ]
    found += [{"name": name, "in": "header", "schema": {"type": "string"}} for name in told.headers]
    return found


def _success(status: int, name: str, told: Operation) -> dict[str, Any]:
    if status == 304:
        return {"description": "As the caller has it"}
    found = {"description": told.summary, "content": {"application/json": {"schema": ANSWERS[name]}}}
    return {**found, "links": told.links} if told.links else found


def _refusal(*, is_compact: bool) -> dict[str, Any]:
    model, media_type = (
        ("CompactProblem", "application/json") if is_compact else ("Problem", "application/problem+json")
    )
    content = {media_type: {"schema": ref(model)}}
    return {"description": "What was wrong, and what is allowed", "content": content}


def _webhook() -> dict[str, Any]:
    headers = (
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "timer-id",
        "timer-due-at",
        "timer-generation",
        "timer-attempt",
        "timer-lateness-ms",
        "idempotency-key",
    )
    traced = ("traceparent", "tracestate")
    return {
        "summary": "What a receiver gets, unless the timer brought a body of its own",
        "parameters": [
            {"name": name, "in": "header", "required": name in headers, "schema": {"type": "string"}}
            for name in (*headers, *traced)
        ],
        "requestBody": {"content": {"application/json": {"schema": EVENT}}},
        "responses": {
            "2XX": {"description": "Delivered"},
            "410": {"description": "Failed, and not tried again; 413, 414, 431 and 489 mean the same"},
            "default": {"description": "Tried again while attempts are left, not before Retry-After"},
        },
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if name not in ("default", "title")}
    choices = [each for each in kept.pop("anyOf", []) if each != {"type": "null"}]
    return kept | (choices[0] if len(choices) == 1 else {})


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def documents(routes: Sequence[Route]) -> Sequence[Route]:
    """Return the routes that describe these routes: for programs, and for people."""
    content = document(routes)
    as_json, as_page = wire.write_json(content), page_of(content).encode()

    async def show_json(_: Request) -> Answer:
        return Answer(200, as_json)

    async def show_page(_: Request) -> Answer:
        policy = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Answer(200, as_page, policy, "text/html; charset=utf-8")

    return (
        Route("GET", "/openapi.json", "rest.openapi", show_json, None),
        Route("GET", "/v1", "rest.page", show_page, None),
    )
