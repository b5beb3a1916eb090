"""What the REST API answers, as schemas of its OpenAPI document; every member that can be there is named."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from timer_client import wire
from timer_service.domain.callback import Method, Signing, Sink
from timer_service.domain.callback_status import CallbackStatus
from timer_service.domain.delivery import DeliveryState
from timer_service.ports.callback_preview import Verdict

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
_FLAG: Final[Schema] = {"type": "boolean"}
_ANYTHING: Final[Schema] = {"description": "Any JSON"}
_HEADERS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(members: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return an object that has all of some members, and may have others."""
    return {"type": "object", "required": list(members), "properties": {**members, **(optional or {})}}


_PROBLEM: Final = _object(
    {
        "type": _TEXT,
        "title": _TEXT,
        "status": _NUMBER,
        "detail": _TEXT,
        "code": _NUMBER,
        "message": _TEXT,
        "data": {"type": "null"},
    },
    {
        "errors": _list(_object({"detail": _TEXT}, {"pointer": _TEXT, "parameter": _TEXT})),
        "timer": ref("Timer"),
    },
) | {"description": "RFC 9457; code, message and data are those of the compact dialect"}

_CALLBACK: Final = _object(
    {
        "url": _TEXT,
        "method": _one_of(*Method),
        "headers": _HEADERS | {"description": "Values are masked"},
        "contentType": _TEXT,
        "retry": _object({"delaysMs": _list(_NUMBER)}),
        "timeoutMs": _NUMBER,
        "signing": _one_of(*Signing),
    },
    {"body": _ANYTHING, "bodyBase64": _TEXT, "metadata": _ANYTHING},
)
_DELIVERY: Final = _object(
    {
        "id": _TEXT | {"format": "uuid", "description": "The webhook-id of every attempt"},
        "serviceCallId": _TEXT,
        "generation": _NUMBER,
        "state": _one_of(*DeliveryState),
        "origin": _TEXT,
        "attempts": _NUMBER,
        "dueAt": _TIME,
        "openedAt": _TIME,
    },
    {
        "status": _NUMBER | {"description": "Of the last answer"},
        "error": _TEXT,
        "nextAttemptAt": _TIME,
        "lastAttemptAt": _TIME,
        "endedAt": _TIME,
    },
)
_COMPACT_TIMER: Final = _object(
    {
        "id": _TEXT,
        "created_at": _TIME,
        "execute_at": _or_null(_TIME),
        "callback_url": _or_null(_TEXT),
        "callback_method": _or_null(_TEXT),
        "status": _one_of(*CallbackStatus),
        "executed_at": _or_null(_TIME),
    },
    {
        "updated_at": _TIME,
        "callback_headers": _HEADERS,
        "callback_payload": _ANYTHING,
        "last_error": _or_null(_TEXT),
        "metadata": _ANYTHING,
    },
)
_CHANGE: Final = _object({"outcome": _TEXT, "timer": ref("Timer")}, {"ordered": _FLAG})
_PAGE: Final = {"cursor": _TEXT | {"description": "Ask for the next page with it"}}


def _compact(data: Schema) -> Schema:
    return _object({"code": _NUMBER, "message": _TEXT, "data": data})


SCHEMAS: Final[Mapping[str, Schema]] = {
    "Timer": {
        "allOf": [
            ref("TimerView"),
            _object(
                {"sink": _one_of(*(sink.name.lower() for sink in Sink))},
                {"callback": ref("Callback"), "delivery": ref("Delivery")},
            ),
        ]
    },
    "Callback": _CALLBACK,
    "Delivery": _DELIVERY,
    "Attempt": _object(
        {"number": _NUMBER, "startedAt": _TIME, "durationMs": _NUMBER},
        {"status": _NUMBER, "error": _TEXT, "answer": _TEXT},
    ),
    "CompactTimer": _COMPACT_TIMER,
    "Problem": _PROBLEM,
    "CompactProblem": _object(
        {"code": _NUMBER, "message": _TEXT, "data": {}},
        {"errors": _list(_object({"detail": _TEXT}, {"pointer": _TEXT, "parameter": _TEXT}))},
    ),
}
MODELS: Final[tuple[type[BaseModel], ...]] = (wire.TimerView, wire.ExplainAnswer)
"""Answers that other ways in have as well."""

ANSWERS: Final[Mapping[str, Schema]] = {
    **dict.fromkeys(("rest.create", "rest.put", "rest.patch", "rest.cancel"), _CHANGE),
    "rest.list": _object({"timers": _list(ref("Timer"))}, _PAGE),
    "rest.batch": _object(
        {
            "results": _list(
                _object(
                    {"status": _NUMBER}, {"outcome": _TEXT, "timer": ref("Timer"), "problem": ref("Problem")}
                )
            )
        },
        {"ordered": _FLAG},
    ),
    "rest.dry_run": _object(
        {
            "sentAt": _TIME,
            "request": _object(
                {"method": _TEXT, "url": _TEXT, "headers": _HEADERS}, {"body": _TEXT, "bodyBase64": _TEXT}
            ),
            "target": _object({"verdict": _one_of(*Verdict)}, {"detail": _TEXT}),
            "attemptsAt": _list(_TIME),
        }
    ),
    "rest.get": _object({"timer": ref("Timer")}),
    "rest.explain": ref("ExplainAnswer"),
    "rest.attempts": _object({"attempts": _list(ref("Attempt"))}, {"delivery": ref("Delivery")}),
    "rest.retry": _object({"delivery": ref("Delivery"), "retried": _NUMBER}),
    "rest.abandon": _object({"delivery": ref("Delivery")}),
    "rest.deliveries": _object({"deliveries": _list(ref("Delivery"))}, _PAGE),
    "rest.retry_all": _object({"retried": _NUMBER, "more": _FLAG}, _PAGE),
    "rest.signing_keys": _object(
        {
            "keys": _list(
                _object(
                    {"name": _TEXT, "kind": _TEXT, "publicKey": _TEXT, "createdAt": _TIME}, {"endsAt": _TIME}
                )
            )
        }
    ),
    **dict.fromkeys(("timers.create", "timers.get", "timers.update"), _compact(ref("CompactTimer"))),
    "timers.list": _compact(
        _object(
            {"timers": _list(ref("CompactTimer")), "total": _NUMBER, "limit": _NUMBER, "offset": _NUMBER},
            {"total_capped": _FLAG},
        )
    ),
    "timers.cancel": _compact(_object({"id": _TEXT, "status": _one_of("canceled")})),
    "timers.health": _compact(_object({"status": _TEXT, "database": _TEXT, "timestamp": _TIME})),
}
"""The answer of each route, where all is well."""

EVENT: Final = _object(
    {
        "type": _one_of("timer.reached"),
        "timestamp": _TIME,
        "data": _object(
            {
                "tenantId": _TEXT,
                "serviceCallId": _TEXT,
                "dueAt": _TIME,
                "reachedAt": _TIME,
                "generation": _NUMBER,
            },
            {"correlationId": _TEXT},
        ),
    }
)
"""What a receiver gets, unless the timer brought a body of its own."""
