"""A visit of the page: who asks for what, and what may be answered."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlencode

from timer_client import wire
from timer_service.domain.api_keys import ALL_SCOPES, Scope
from timer_service.domain.messages import ServiceCallId, TenantId


class Role(StrEnum):
    """What people are told that they may do: a name for some scopes."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


SCOPES_OF: Final = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.OPERATOR: frozenset({Scope.READ, Scope.WRITE, Scope.REPLAY}),
    Role.ADMIN: ALL_SCOPES,
}


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who was let in."""

    name: str
    scopes: frozenset[Scope]
    tenants: frozenset[TenantId] | None
    """Whose timers they may see; None for all tenants."""

    @property
    def role(self) -> Role | None:
        """The highest role whose scopes they have; None if they have not even the lowest."""
        return next((role for role in reversed(Role) if SCOPES_OF[role] <= self.scopes), None)

    def may(self, route: "Route") -> bool:
        """Return whether a route is open to them."""
        if route.scope is None:
            return True
        return route.scope in self.scopes and (self.tenants is None or not route.all_tenants)

    def sees(self, tenant_id: str) -> bool:
        """Return whether a tenant's timers are shown to them."""
        return self.tenants is None or tenant_id in self.tenants


@dataclass(frozen=True, slots=True)
class Look:
    """How somebody wants to see the page."""

    theme: str = "auto"
    zone_name: str = "UTC"
    zone: tzinfo | None = None
    """None for UTC."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that was let in and has arrived whole."""

    user: User
    query: Mapping[str, str]
    now: datetime
    """By the service's clock."""
    form: Mapping[str, list[str]] = field(default_factory=dict)
    look: Look = field(default_factory=Look)
    headers: Mapping[str, str] = field(default_factory=dict)

    def field(self, name: str) -> str:
        """Return the first value of a field of the form; empty if it is missing."""
        return self.form.get(name, [""])[0]

    def tenant(self, text: str | None) -> TenantId | None:
        """Return a tenant that was asked for; raise PageError if it is foreign, None if none was named."""
        if not text:
            return None
        if not wire.is_tenant_id(text) or not self.user.sees(text):
            raise PageError(404, "There is no such tenant, or it is not yours to see.")
        return TenantId(text)

    def key(self, values: Mapping[str, str]) -> tuple[TenantId, ServiceCallId]:
        """Return the timer that `tenant` and `id` name; a foreign or impossible one is not found."""
        tenant, name = self.tenant(values.get("tenant")), values.get("id", "")
        if tenant is None or not wire.is_service_call_id(name):
            raise PageError(404, "There is no such timer.")
        return tenant, ServiceCallId(name)

    def form_key(self) -> tuple[TenantId, ServiceCallId]:
        """Return the timer that the form names."""
        return self.key({name: values[0] for name, values in self.form.items()})


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown: HTML of a template, or the same model as JSON."""

    template: str
    model: Mapping[str, Any]
    title: str
    command: str = ""
    """The command line that shows or does the same."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to go after a form was sent."""

    to: str
    """Relative, as every address of the page is."""
    cookies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """A file to be saved, never shown."""

    body: bytes
    name: str
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on: `run` sends it, chunk by chunk, and returns when it is over."""

    run: Callable[[Callable[[bytes], Awaitable[None]]], Coroutine[Any, Any, None]]


Shown = Screen | Redirect | Download | Stream


class PageError(Exception):
    """Ends a visit with a page that says what was wrong and what to do."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Route:
    """One address of the page. What nobody is named for is open to nobody."""

    path: str
    """Relative to the page; empty for the first screen."""
    handler: Callable[[Visit], Awaitable[Shown]]
    scope: Scope | None
    """What a visitor must be allowed to do; None if no one has to be known."""
    method: str = "GET"
    all_tenants: bool = False
    """Whether it is only for those who may see every tenant."""
    nav: str = ""
    """Its name among the screens; empty if it is not one of them."""


def by_curl(path: str, **query: object) -> str:
    """Return the command that shows the same where the command line has none of its own."""
    return f'curl -H "Authorization: Bearer $KEY" "$PAGE/{address(path, **query, format="json")}"'


def address(path: str, **query: object) -> str:
    """Return a relative address; what is None or empty is left out, everything else is percent-encoded."""
    chosen = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return (path or "./") + ("?" + urlencode(chosen) if chosen else "")
