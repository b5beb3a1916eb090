"""docs/asyncapi.yaml and docs/schemas, written from the models of the wire: `make docs`."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.documents import ROOT
from timer_client import wire
from timer_client.subjects import Subjects
from timer_service import __version__
from timer_service.adapters.endpoints import ENDPOINTS, Endpoint
from timer_service.domain.errors import RefusalReason

ASYNCAPI = "docs/asyncapi.yaml"
SCHEMAS = "docs/schemas"
PAYLOADS: dict[str, type[wire.Model]] = {
    wire.SCHEDULE_TIMER: wire.ScheduleTimerPayload,
    wire.CANCEL_TIMER: wire.CancelTimerPayload,
    wire.DUE_TIME_REACHED: wire.DueTimeReachedPayload,
    wire.TIMER_EXPIRED: wire.TimerExpiredPayload,
}
MEANINGS = {
    wire.SCHEDULE_TIMER: "Set the due time of a timer. Publish it to the stream TIMER_COMMANDS.",
    wire.CANCEL_TIMER: "The timer is no longer wanted. Publish it to the stream TIMER_COMMANDS.",
    wire.DUE_TIME_REACHED: "A timer is due. Read it through a durable consumer on the stream TIMER_EVENTS.",
    wire.TIMER_EXPIRED: "A timer came due, too late to be of use. On the stream TIMER_EVENTS.",
    "DeadLetter": "A message was refused, and why. On the stream TIMER_DEADLETTER.",
}
ABOUT = " ".join(
    [
        "Durable timers over NATS JetStream. messages.md and api.md tell what messages mean and how",
        "to publish and consume them without losing or doubling: AsyncAPI has no words for streams,",
        "acknowledgements and durable consumers. The first token of every address is TIMER_SUBJECT_PREFIX.",
        "What is not set is absent, never null; ignore fields that are not listed here.",
    ]
)
TENANT = "{tenantId}"
SUBJECTS = Subjects("timer")
ADDRESSES = {"status": SUBJECTS.status, "clock-accept": SUBJECTS.clock_accept}


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by its name."""
    messages = {name: _message(name, payload) for name, payload in PAYLOADS.items()}
    models = {each for endpoint in ENDPOINTS for each in (endpoint.request, endpoint.answer)}
    bodies = {model.__name__: _schema(model) for model in sorted(models, key=lambda model: model.__name__)}
    return {**messages, "DeadLetter": _dead_letter(), **bodies}


def files() -> dict[str, str]:
    """Return what `make docs` writes, by path."""
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    texts = {
        f"{SCHEMAS}/{name}.json": json.dumps({**header, "title": name, **schema}, indent=2) + "\n"
        for name, schema in schemas().items()
    }
    document = yaml.safe_dump(_document(), sort_keys=False, allow_unicode=True, width=110)
    return {ASYNCAPI: f"# Written from the code by make docs.\n{document}", **texts}


def _schema(model: type[wire.Model]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wire.answer_schema(model))
    parts = [found, *found.get("$defs", {}).values()]
    for part in parts:
        del part["title"]
        for field in part.get("properties", {}).values():
            # Made from the field's name, with another spelling.
            field.pop("title", None)
    return found


def _message(name: str, model: type[wire.Model]) -> dict[str, Any]:
    envelope, payload = _schema(wire.Envelope), _schema(model)
    envelope["properties"]["type"] = {"const": name}
    payload["properties"]["_tag"] = {"const": name}
    envelope["properties"]["payload"] = payload
    return {**envelope, "description": MEANINGS[name]}


def _dead_letter() -> dict[str, Any]:
    properties: dict[str, Any] = {name: {"type": "string"} for name in wire.LETTER_FIELDS}
    properties |= {
        "reason": {"enum": [reason.value for reason in RefusalReason]},
        "receivedAt": {"type": "string", "format": "date-time"},
        "bodyEncoding": {"enum": ["utf-8", "base64"]},
        "stream": {"type": "string"},
        "sequence": {"type": "integer"},
        "bodyTruncated": {"const": True, "description": "the body was too large for a letter"},
    }
    required = [name for name in properties if name != "bodyTruncated"]
    return {
        "description": MEANINGS["DeadLetter"],
        "type": "object",
        "properties": properties,
        "required": required,
    }


def _document() -> dict[str, Any]:
    channels = dict(_channels())
    answers = {each.answer.__name__: _ref("messages", each.answer.__name__) for each in ENDPOINTS}
    replies = {"address": None, "messages": {**answers, "Error": _ref("messages", "Error")}}
    messages = {name: _described(name) for name in schemas()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "timer-service",
            "version": __version__,
            "license": {"name": "Apache-2.0"},
            "description": ABOUT,
        },
        "defaultContentType": "application/json",
        "servers": {"local": {"host": "localhost:4222", "protocol": "nats"}},
        "channels": {**channels, "replies": replies},
        "operations": dict(_operations()),
        "components": {
            "parameters": {"tenantId": {"description": f"The owner of the timers: {wire.TENANT_RULE}."}},
            "messages": {**messages, "Error": _error()},
        },
    }


def _channels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in wire.COMMAND_TYPES:
        yield name, _channel(SUBJECTS.command(TENANT, name), name)
    for name in wire.EVENT_TYPES:
        yield name, _channel(SUBJECTS.event(TENANT, name), name)
    yield "DeadLetter", _channel(SUBJECTS.dead_letter(TENANT), "DeadLetter")
    for endpoint in ENDPOINTS:
        address = SUBJECTS.api(TENANT, endpoint.name) if endpoint.of_tenants else ADDRESSES[endpoint.name]
        yield endpoint.name, _channel(address, endpoint.request.__name__)


def _channel(address: str, message: str) -> dict[str, Any]:
    found: dict[str, Any] = {"address": address, "messages": {message: _ref("messages", message)}}
    if TENANT in address:
        found["parameters"] = {"tenantId": _ref("parameters", "tenantId")}
    return found


def _operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the service does: it receives commands and requests and sends events and letters."""
    for name in (*PAYLOADS, "DeadLetter"):
        action = "receive" if name in wire.COMMAND_TYPES else "send"
        channel = {"$ref": f"#/channels/{name}"}
        yield f"{action}{name}", {"action": action, "channel": channel, "summary": MEANINGS[name]}
    for endpoint in ENDPOINTS:
        yield f"answer-{endpoint.name}", _answering(endpoint)


def _answering(endpoint: Endpoint) -> dict[str, Any]:
    own = "One instance answers." if endpoint.of_tenants else "For operators; every instance answers."
    names = (endpoint.answer.__name__, "Error")
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{endpoint.name}"},
        "summary": own,
        "reply": {
            "address": {
                "location": "$message.header#/reply",
                "description": "The reply subject of the NATS request, an inbox.",
            },
            "channel": {"$ref": "#/channels/replies"},
            "messages": [{"$ref": f"#/channels/replies/messages/{name}"} for name in names],
        },
    }


def _described(name: str) -> dict[str, Any]:
    message: dict[str, Any] = {"name": name, "payload": {"$ref": f"schemas/{name}.json"}}
    if name in PAYLOADS:
        message["headers"] = _headers("the id of the envelope", "Nats-Msg-Id")
    return message


def _error() -> dict[str, Any]:
    text = "in place of an answer, with an empty body; api.md lists the codes"
    return {
        "name": "Error",
        "headers": _headers(text, "Nats-Service-Error-Code", "Nats-Service-Error"),
    }


def _headers(description: str, *names: str) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": description} for name in names}
    return {"type": "object", "properties": properties, "required": list(names)}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


if __name__ == "__main__":
    for path, text in files().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, "utf-8")
