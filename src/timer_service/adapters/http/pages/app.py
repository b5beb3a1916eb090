"""The page as an application: lets visitors in, finds what they ask for, and answers."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import structlog

from timer_service import __version__
from timer_service.adapters.endpoints import UNEXPECTED, error_of
from timer_service.adapters.http.pages.assets import Asset, Assets
from timer_service.adapters.http.pages.guards import Place, headers_with, opener_headers
from timer_service.adapters.http.pages.look import look_of
from timer_service.adapters.http.pages.people import People, bearer_in
from timer_service.adapters.http.pages.render import Renderer, as_json
from timer_service.adapters.http.pages.visit import (
    Download,
    PageError,
    Redirect,
    Route,
    Screen,
    Shown,
    Stream,
    User,
    Visit,
    address,
)
from timer_service.right_of_way import GIVE_WAY_S, RightOfWay, in_turns
from timer_service.waiting import first_done, owned

BASE: Final = "/ui/"
MAX_BODY_BYTES: Final = 64 * 1024
MAX_QUERY_BYTES: Final = 8_192
MAX_FIELDS: Final = 2_000
RECEIVE_TIMEOUT_S: Final = 10.0
MIN_COMPRESSED_BYTES: Final = 1_024
_FORM: Final = "application/x-www-form-urlencoded"
_NOBODY: Final = User("", frozenset(), frozenset())

Scope_ = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Looks:
    """What is the same on every page of an installation."""

    title: str = "timer-service"
    colour: str = "teal"
    instance: str = ""
    is_virtual: bool = False
    """Whether time stands until somebody moves it."""


@dataclass(slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)


class PageApp:
    """Answers every request to the page; what is in no route is not found, who is not known is asked."""

    def __init__(
        self,
        routes: Sequence[Route],
        people: People,
        place: Place,
        now: Callable[[], datetime],
        looks: Looks,
        refused: Callable[[Visit, str, str], Awaitable[None]],
        right_of_way: RightOfWay,
    ) -> None:
        self.routes = {(route.method, route.path): route for route in routes}
        self._people = people
        self._place = place
        self._now = now
        self._looks = looks
        self._refused = refused
        self._assets = Assets()
        self._renderer = Renderer(self._assets)
        self._right_of_way = right_of_way
        self._common = headers_with(self._renderer.style)

    def load(self) -> None:
        """Do before the first visit what need not be done during it."""
        self._renderer.load()

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Answer one request; every step of it lets what is due go first."""
        if scope["type"] == "http":
            serving = self._serve(scope, receive, send)
            await in_turns(serving, self._right_of_way, GIVE_WAY_S, one_of_many=True)

    async def _serve(self, scope: Scope_, receive: Receive, send: Send) -> None:
        # Of several lines the last one counts, and no list of them: what a trusted proxy says of a visitor
        # comes after what the visitor says, and must not be mixed with it.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # Known before anything can go wrong: what is refused is JSON, too, for who asks for that.
        form = {"format": "json"} if b"format=json" in scope["query_string"].split(b"&") else {}
        visit = Visit(_NOBODY, form, self._now(), look=look_of(headers), headers=headers)
        try:
            self._place.check_host(headers)
            path = _path(scope)
            if isinstance(path, Redirect):
                answer: _Answer | None = _redirected(path)
            elif (asset := self._assets.find(path)) is not None:
                answer = _sent(asset, headers)
            else:
                visit, answer = await self._answer(path, visit, scope, receive, send)
        except Exception as error:
            answer = await self._failed(error, visit)
        if answer is not None:
            answer.headers |= opener_headers(headers)
            await self._respond(send, answer, with_body=scope["method"] != "HEAD")

    async def _answer(
        self, path: str, visit: Visit, scope: Scope_, receive: Receive, send: Send
    ) -> tuple[Visit, _Answer | None]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = self.routes.get((method, path))
        headers = visit.headers
        peer = (scope.get("client") or ("",))[0]
        user, cookie = await self._people.user(headers, peer)
        if method != "GET" and bearer_in(headers) is None:
            self._place.check_origin(headers)
        query = _pairs(scope["query_string"], MAX_QUERY_BYTES)
        visit = Visit(
            user or _NOBODY, dict(query), visit.now, look=visit.look, headers={**headers, "peer": peer}
        )
        if route is None:
            raise PageError(404 if user or self._people.is_open else 401, "There is nothing at this address.")
        if user is None and route.scope is not None:
            raise PageError(401, "Log in with a key to see this.")
        await self._check_right(visit, route)
        if method == "POST":
            visit = await _with_form(visit, receive)
        shown = await route.handler(visit)
        if isinstance(shown, Stream):
            await self._stream(shown, send, receive)
            return visit, None
        answer = await self._shown(shown, visit, path)
        if cookie is not None:
            answer.cookies.append(cookie)
        return visit, answer

    async def _check_right(self, visit: Visit, route: Route) -> None:
        """Raise PageError for what a visitor may not do; who tries to change something is noted."""
        if visit.user.may(route):
            return
        why = self._refusal(visit.user, route)
        if route.method != "GET":
            await self._refused(visit, route.path, why)
        raise PageError(403, why)

    def _refusal(self, user: User, route: Route) -> str:
        assert route.scope is not None
        if route.scope in user.scopes:
            return "This is only for those who may see every tenant."
        return f"Your key does not have the scope {route.scope.value}: you are {user.role or 'nobody here'}."

    async def _shown(self, shown: Shown, visit: Visit, path: str) -> _Answer:
        if isinstance(shown, Redirect):
            return _redirected(shown, is_json=visit.query.get("format") == "json")
        if isinstance(shown, Download):
            name = shown.name.replace('"', "")
            disposition = {
                "content-type": shown.media_type,
                "content-disposition": f'attachment; filename="{name}"',
            }
            return _Answer(200, shown.body, disposition)
        assert isinstance(shown, Screen)
        if visit.query.get("format") == "json":
            body, kind = as_json(shown.model), "application/json"
        else:
            body = await self._renderer.html(shown.template, shown.model, self._chrome(shown, visit, path))
            kind = "text/html; charset=utf-8"
        return _packed(_Answer(shown.status, body, {"content-type": kind, **shown.headers}), visit.headers)

    def _chrome(self, shown: Screen, visit: Visit, path: str) -> dict[str, Any]:
        """Return what every page has: where one is, who one is, and how it looks."""
        screens = [route for route in self.routes.values() if route.nav and visit.user.may(route)]
        here = {name: value for name, value in visit.query.items() if name not in {"format", "done"}}
        return {
            "title": shown.title,
            "command": shown.command,
            "screens": [(route.path or "./", route.nav, route.path == path) for route in screens],
            "here": address(path, **here),
            "as_json": address(path, **here, format="json"),
            "done": visit.query.get("done", ""),
            "user": visit.user,
            "can_log_out": not self._people.is_open,
            "may": lambda scope: scope in visit.user.scopes,
            "look": visit.look,
            "looks": self._looks,
            "now": visit.now,
            "running_version": __version__,
        }

    async def _failed(self, error: Exception, visit: Visit) -> _Answer:
        if not isinstance(error, PageError):
            told = error_of(error)
            if told is UNEXPECTED:
                log.exception("page.failed")  # noqa: LOG004 - inside the caller's handler
            error = PageError(int(told.code), told.text)
        wants_login = error.status == 401 and visit.query.get("format") != "json"
        title = "Log in" if wants_login else f"{error.status}"
        model = {"status": error.status, "text": error.text, "key": ""}
        screen = Screen("login.html" if wants_login else "error.html", model, title, status=error.status)
        answer = await self._shown(screen, visit, "")
        answer.headers |= error.headers
        return answer

    def _raw(self, headers: Mapping[str, str], cookies: Sequence[str] = ()) -> list[tuple[bytes, bytes]]:
        pairs = [*{**self._common, **headers}.items(), *(("set-cookie", cookie) for cookie in cookies)]
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]

    async def _respond(self, send: Send, answer: _Answer, *, with_body: bool) -> None:
        await asyncio.sleep(0)  # What is due goes first: the answer has just been written.
        headers = {"content-length": str(len(answer.body)), **answer.headers}
        start = {"type": "http.response.start", "status": answer.status}
        await send(start | {"headers": self._raw(headers, answer.cookies)})
        await send({"type": "http.response.body", "body": answer.body if with_body else b""})

    async def _stream(self, stream: Stream, send: Send, receive: Receive) -> None:
        """Send as long as there is something to send and somebody there."""
        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        await send({"type": "http.response.start", "status": 200, "headers": self._raw(headers)})

        async def chunk(content: bytes) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": True})

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async with owned(stream.run(chunk), until_gone()) as tasks:
            await first_done(*tasks)
        await send({"type": "http.response.body", "body": b""})


def _path(scope: Scope_) -> str | Redirect:
    """Return the path below the page; the page itself ends with a slash, so that relative links work."""
    path = scope["path"]
    if path in {"/", "/ui"}:
        return Redirect("ui/")
    if not path.startswith(BASE):
        raise PageError(404, "There is nothing at this address: the page is at /ui/.")
    return str(path[len(BASE) :])


async def _with_form(visit: Visit, receive: Receive) -> Visit:
    if visit.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise PageError(415, f"The content type must be {_FORM}.")
    body = bytearray()
    try:
        async with asyncio.timeout(RECEIVE_TIMEOUT_S):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":  # Half a form would mean something else.
                    raise PageError(400, "The form did not arrive as a whole.")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MAX_BODY_BYTES:
                    raise PageError(413, f"A form may have at most {MAX_BODY_BYTES} bytes.")
    except TimeoutError as error:
        raise PageError(408, "The form did not arrive in time.") from error
    form: dict[str, list[str]] = {}
    for name, value in _pairs(bytes(body), MAX_BODY_BYTES):
        form.setdefault(name, []).append(value)
    return Visit(visit.user, visit.query, visit.now, form, visit.look, visit.headers)


def _pairs(text: bytes, most: int) -> list[tuple[str, str]]:
    if len(text) > most:
        raise PageError(414, f"The query must be at most {most} bytes.")
    try:
        return parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise PageError(400, "The query must be UTF-8, percent-encoded.") from error


def _redirected(to: Redirect, *, is_json: bool = False) -> _Answer:
    """Lead on; who asked for JSON gets it there, too."""
    more = ("&" if "?" in to.to else "?") + "format=json" if is_json else ""
    return _Answer(303, headers={"location": to.to + more}, cookies=list(to.cookies))


def _sent(asset: Asset, headers: Mapping[str, str]) -> _Answer:
    common = {"content-type": asset.media_type, "cache-control": "public, max-age=31536000, immutable"}
    if _accepts_gzip(headers):
        more = {"content-encoding": "gzip", "vary": "accept-encoding"}
        return _Answer(200, asset.compressed, common | more)
    return _Answer(200, asset.body, common)


def _accepts_gzip(headers: Mapping[str, str]) -> bool:
    return "gzip" in headers.get("accept-encoding", "")


def _packed(answer: _Answer, headers: Mapping[str, str]) -> _Answer:
    if len(answer.body) >= MIN_COMPRESSED_BYTES and _accepts_gzip(headers):
        answer.body = gzip.compress(answer.body, 4, mtime=0)
        answer.headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    return answer
