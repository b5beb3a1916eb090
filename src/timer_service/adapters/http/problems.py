"""What is answered in the place of a result: problem details (RFC 9457), for both dialects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from timer_client import wire

URN: Final = "urn:timer-service:problem:"
_TITLES: Final = {
    "bad-request": (400, "The request is not valid"),
    "unauthorized": (401, "A valid API key is required"),
    "forbidden": (403, "The key may not do this"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "There is no such method here"),
    "request-timeout": (408, "The request did not arrive in time"),
    "conflict": (409, "The timer is not in a state for this"),
    "already-exists": (409, "There is a timer with this id"),
    "precondition-failed": (412, "The timer is not as the request expects it"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The content type is not supported"),
    "idempotency-key-reused": (422, "The idempotency key belongs to another request"),
    "too-many-requests": (429, "Too many requests"),
    "internal-error": (500, "Internal error"),
    "unavailable": (503, "Try again"),
}
_COMPACT_CODES: Final = {401: 4, 403: 4, 404: 3, 408: 1, 429: 1, 500: 1, 503: 1}
"""The codes of the other dialect; 2 is for all that the caller could have known."""
MAX_NAME_CHARS: Final = 100
MAX_ERRORS: Final = 20
"""Wrong fields that are named; of more it is said how many."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field."""

    pointer: str
    """A JSON pointer into the body; empty if it is the body as a whole."""
    detail: str
    parameter: str | None = None
    """The name of a query parameter or header instead."""


@dataclass(eq=False)
class Problem(Exception):
    """Ends a request with an answer that says what was wrong and what is allowed."""

    kind: str
    detail: str
    errors: Sequence[FieldError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    extra_cost: int = 0
    """For how many more requests the work counts that it took to find out."""

    @property
    def status(self) -> int:
        """The status of the answer."""
        return _TITLES[self.kind][0]

    def body(self) -> bytes:
        """Return the answer as JSON."""
        return wire.write_json(self.content())

    def content(self) -> dict[str, Any]:
        """Return the members of the answer."""
        content: dict[str, Any] = {
            "type": URN + self.kind,
            "title": _TITLES[self.kind][1],
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            content["errors"] = [
                {"parameter": error.parameter, "detail": error.detail}
                if error.parameter is not None
                else {"pointer": error.pointer, "detail": error.detail}
                for error in self.errors
            ]
        content |= self.more
        return content | {"code": _COMPACT_CODES.get(self.status, 2), "message": self.detail, "data": None}


def invalid(detail: str, pointer: str = "", **more: Any) -> Problem:
    """Return what is told of one wrong field."""
    error = FieldError(pointer, detail)
    return Problem("bad-request", _line(error), (error,), more=more)


def invalid_parameter(name: str, detail: str) -> Problem:
    """Return what is told of a wrong query parameter or header."""
    error = FieldError("", detail, name)
    return Problem("bad-request", _line(error), (error,))


def invalid_body(error: ValidationError, prefix: str = "") -> Problem:
    """Return what is told of a body that breaks rules, field by field."""
    return _invalid(error, lambda each: FieldError(prefix + pointer_to(*each["loc"]), _detail(each)))


def invalid_parameters(error: ValidationError) -> Problem:
    """Return what is told of query parameters that break rules, one by one."""
    return _invalid(error, lambda each: FieldError("", _detail(each, "parameter"), _cut(each["loc"][0])))


def _invalid(error: ValidationError, told: Callable[[Any], FieldError]) -> Problem:
    found = error.errors()
    errors = [told(each) for each in found[:MAX_ERRORS]]
    more = [f"and {len(found) - MAX_ERRORS} more"] if len(found) > MAX_ERRORS else []
    return Problem("bad-request", "; ".join([*map(_line, errors), *more]), errors)


def pointer_to(*location: int | str) -> str:
    """Return the JSON pointer that leads to a member along these names and numbers."""
    return "".join("/" + _cut(part).replace("~", "~0").replace("/", "~1") for part in location)


def _cut(name: int | str) -> str:
    """Return a name that the caller has chosen, not at length: it is told three times."""
    text = str(name)
    return text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}…"


def _line(error: FieldError) -> str:
    where = error.pointer if error.parameter is None else error.parameter
    return f"{where}: {error.detail}" if where else error.detail


def _detail(problem: Any, kind: str = "field") -> str:
    """Say which rule was broken; never with the value, which may be a secret."""
    match problem["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return f"is not a known {kind}"
        case "model_type":
            return "must be a JSON object"
        case "value_error":
            return str(problem["ctx"]["error"])
    return str(problem["msg"])
