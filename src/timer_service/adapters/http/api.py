"""The REST API as an application: who asks, how much, and what is answered when something is wrong."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from timer_service.adapters.endpoints import FULL_RETRY_S, UNEXPECTED, error_of, too_many
from timer_service.adapters.http import head
from timer_service.adapters.http.auth import Caller, Doorkeeper, TooManyTries
from timer_service.adapters.http.incoming import Incoming, Receive
from timer_service.adapters.http.problems import Problem
from timer_service.adapters.http.refusals import Refusals
from timer_service.domain.admission import RateLimit, Room, TurnLimits, Turns
from timer_service.domain.api_keys import Scope
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TenantId

MAX_BODY_BYTES: Final = 128 * 1024
RECEIVE_TIMEOUT_S: Final = 10.0
"""From the head of a request to the last byte of its body."""
TOO_MANY_WRONG_KEYS: Final = (
    "the key is not valid, and too many wrong ones came from here: try again after the seconds in Retry-After"
)
_JSON: Final = "application/json"
_NOT_MODIFIED: Final = 304
_TOO_MANY: Final = 429
_CLOSING: Final = {"connection": "close"}

Scope_ = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was let in and has arrived whole."""

    caller: Caller
    headers: Mapping[str, str]
    query: Mapping[str, str]
    name: str
    """The id in the path; empty if there is none."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back, and how it is counted."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = _JSON
    outcome: str = "ok"
    extra_cost: int = 0
    """For how many more requests the work counts that it took."""


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that can be asked for."""

    method: str
    path: str
    """With {id} in the place of a timer's id."""
    name: str
    handler: Callable[[Request], Awaitable[Answer]]
    scope: Scope | None = Scope.READ
    """What the key has to allow; None if no key is asked for."""
    media_types: Sequence[str] = ()
    """What the body may be; none of them if there is no body."""
    max_body_bytes: int = MAX_BODY_BYTES
    extra_cost: int = 0
    """For how many more requests it counts."""
    failed: Callable[[Problem], Answer] | None = None
    """How a problem is answered, if not as everywhere."""


class ApiApp:
    """Lets requests in by their key, in turns between tenants, and answers each."""

    def __init__(
        self,
        routes: Sequence[Route],
        doorkeeper: Doorkeeper,
        rate_limit: RateLimit,
        *,
        rate: int,
        burst: int,
        answered: Callable[[str, str, float], None] = lambda _name, _outcome, _seconds: None,
        turn_limits: TurnLimits | None = None,
        receive_timeout_s: float = RECEIVE_TIMEOUT_S,
        max_body_bytes: int = MAX_BODY_BYTES,
        refusals: Refusals | None = None,
    ) -> None:
        self.routes: dict[str, dict[str, Route]] = {}
        for route in routes:
            self.routes.setdefault(route.path, {})[route.method] = route
        self._doorkeeper = doorkeeper
        self._rate_limit = rate_limit
        self._policy = f'"default";q={burst};w={max(1, round(burst / rate))}' if rate else None
        self._answered = answered
        self._turns: Turns[tuple[TenantId, asyncio.Future[None]]] = Turns(turn_limits)
        self._receive_timeout_s = receive_timeout_s
        self._max_body_bytes = max_body_bytes
        self._refusals = refusals or Refusals()

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        headers = head.headers_of(scope["headers"])
        incoming = Incoming(receive, is_sent="expect" not in headers)
        route: Route | None = None
        caller = _NOBODY
        try:
            route, name = self._route(scope)
            if route.scope is not None:
                # First of all: of a stranger nothing is read and nothing is told.
                caller = await self._caller(route.scope, scope, headers)
            answer = await self._answer(route, name, caller, scope, headers, incoming)
        except Exception as error:
            problem = _problem_of(error, route)
            answer = (route.failed if route is not None and route.failed else _as_problem)(problem)
        self._answered("rest" if route is None else route.name, answer.outcome, time.perf_counter() - started)
        if answer.status == _TOO_MANY:
            with self._refusals.held_back(caller.tenant_id, asyncio.get_running_loop().time()) as pause_s:
                await asyncio.sleep(pause_s)
        await _respond(send, answer, incoming, with_body=scope["method"] != "HEAD")

    def _route(self, scope: Scope_) -> tuple[Route, str]:
        """Find the route of a path; ids may hold anything, so they are decoded after the path is split."""
        segments = scope["raw_path"].partition(b"?")[0].decode("latin-1").split("/")
        path, name = "/".join(segments), ""
        if path not in self.routes:
            place = next((n for n, each in enumerate(segments) if each == "timers"), len(segments)) + 1
            if place < len(segments):
                name = head.decoded(segments[place])
                path = "/".join([*segments[:place], "{id}", *segments[place + 1 :]])
        methods = self.routes.get(path)
        if methods is None or (path.count("{id}") and not name):
            raise Problem("not-found", "there is nothing at this path")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method not in methods:
            allowed = ", ".join(sorted(methods))
            raise Problem(
                "method-not-allowed", f"the method must be one of {allowed}", headers={"allow": allowed}
            )
        return methods[method], name

    async def _caller(self, needed: Scope, scope: Scope_, headers: Mapping[str, str]) -> Caller:
        """Return whose key it is, if that key allows what is asked for."""
        try:
            caller = await self._doorkeeper.caller(headers, (scope.get("client") or ("",))[0])
        except TooManyTries as error:
            raise _too_many(error.wait_s, TOO_MANY_WRONG_KEYS) from error
        if caller is None:
            raise Problem(
                "unauthorized",
                "send a valid key as X-API-Key, or as a bearer token in Authorization",
                headers={"www-authenticate": "Bearer", **_CLOSING},
            )
        if needed not in caller.scopes:
            raise Problem("forbidden", f"the key lacks the scope {needed.value}", headers=_CLOSING)
        return caller

    async def _answer(
        self,
        route: Route,
        name: str,
        caller: Caller,
        scope: Scope_,
        headers: Mapping[str, str],
        incoming: Incoming,
    ) -> Answer:
        if route.scope is None:
            return await route.handler(Request(caller, headers, head.query_of(scope["query_string"]), name))
        limits = self._admit(caller, route)
        try:
            query = head.query_of(scope["query_string"])
            body = await self._body(route, headers, incoming) if route.media_types else b""
            async with self._turn(caller):
                answer = await route.handler(Request(caller, headers, query, name, body))
        except Exception as error:
            problem = _problem_of(error, route)
            if problem.extra_cost:
                limits = self._charge(caller, problem.extra_cost)
            problem.headers = {**limits, **problem.headers}
            if problem is error:
                raise
            raise problem from error
        if answer.extra_cost:
            limits = self._charge(caller, answer.extra_cost)
        return replace(answer, headers={**limits, **answer.headers})

    def _admit(self, caller: Caller, route: Route) -> Mapping[str, str]:
        now_s = asyncio.get_running_loop().time()
        if wait_s := self._rate_limit.wait_s(caller.tenant_id, now_s):
            problem = _too_many(wait_s)
            problem.headers = {**self._limits(0, problem.headers["retry-after"]), **problem.headers}
            raise problem
        return self._charge(caller, route.extra_cost)

    def _charge(self, caller: Caller, extra_cost: int) -> Mapping[str, str]:
        """Let a request count for more, and return what is told of what is left."""
        self._rate_limit.charge(caller.tenant_id, extra_cost)
        left = self._rate_limit.left(caller.tenant_id, asyncio.get_running_loop().time())
        return {} if left is None else self._limits(left, "1")

    def _limits(self, left: int, until_more_s: str) -> Mapping[str, str]:
        if self._policy is None:
            return {}
        return {"ratelimit-policy": self._policy, "ratelimit": f'"default";r={left};t={until_more_s}'}

    async def _body(self, route: Route, headers: Mapping[str, str], incoming: Incoming) -> bytes:
        """Read the body, as much as is allowed and as long as is allowed."""
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in route.media_types or headers.get("content-encoding", "identity") != "identity":
            raise Problem(
                "unsupported-media-type",
                f"the content type must be {' or '.join(route.media_types)}, without an encoding",
                headers=_CLOSING,
            )
        most = max(route.max_body_bytes, self._max_body_bytes)
        stated = headers.get("content-length", "")
        too_large = Problem("too-large", f"the body must be at most {most} bytes", headers=_CLOSING)
        if stated.isdigit() and (len(stated) > 15 or int(stated) > most):
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                more = True
                while more:
                    message = await incoming()
                    if message["type"] == "http.disconnect":
                        raise Problem("request-timeout", "the connection was closed", headers=_CLOSING)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise too_large
        except TimeoutError as error:
            incoming.give_up()
            text = f"the body must arrive within {self._receive_timeout_s:g} s"
            raise Problem("request-timeout", text, headers=_CLOSING) from error
        return bytes(body)

    @asynccontextmanager
    async def _turn(self, caller: Caller) -> AsyncIterator[None]:
        """Wait until it is the tenant's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        room = self._turns.offer(caller.tenant_id, (caller.tenant_id, turn))
        if room is Room.TENANT_FULL:
            raise _too_many(FULL_RETRY_S)
        if room is Room.FULL:
            raise Problem(
                "unavailable", "the service is handling too many requests", headers=_retry_after(FULL_RETRY_S)
            )
        self._call_next()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._turns.done(caller.tenant_id)
            self._call_next()

    def _call_next(self) -> None:
        while (taken := self._turns.take()) is not None:
            tenant_id, turn = taken
            if turn.done():  # The caller has gone away.
                self._turns.done(tenant_id)
            else:
                turn.set_result(None)


_NOBODY: Final = Caller(TenantId(""), frozenset())


def _problem_of(error: Exception, route: Route | None) -> Problem:
    """Return what the caller is told of an error, and note what an operator should know."""
    if isinstance(error, Problem):
        return error
    told = error_of(error)
    if told is UNEXPECTED:
        name = "rest" if route is None else route.name
        log.exception("request.failed", endpoint=name)  # noqa: LOG004 - inside the caller's handler
    kind = {"400": "bad-request", "404": "not-found", "503": "unavailable"}.get(told.code, "internal-error")
    headers = _retry_after(FULL_RETRY_S) if isinstance(error, TransientError) else {}
    return Problem(kind, told.text, headers=headers)


def _too_many(wait_s: float, text: str | None = None) -> Problem:
    told = too_many(wait_s).text if text is None else text
    return Problem("too-many-requests", told, headers={**_retry_after(wait_s), **_CLOSING})


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds + 0.5)))}


def _as_problem(problem: Problem) -> Answer:
    return Answer(
        problem.status, problem.body(), problem.headers, "application/problem+json", str(problem.status)
    )


async def _respond(send: Send, answer: Answer, incoming: Incoming, *, with_body: bool) -> None:
    headers = {
        # Of a 304 it would be the length of what is not sent again.
        **({} if answer.status == _NOT_MODIFIED else {"content-length": str(len(answer.body))}),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **answer.headers,
    }
    if answer.body:
        headers["content-type"] = answer.media_type
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    lingers = headers.get("connection") == "close"
    body = answer.body if with_body else b""
    await send({"type": "http.response.body", "body": body, "more_body": lingers})
    if lingers:
        await incoming.drop_rest()
        await send({"type": "http.response.body", "body": b""})
