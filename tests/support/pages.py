"""The page in process: memory adapters, a clock that the test moves, and a visitor without a network."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests.support.explanations import explanations
from tests.support.patience import PATIENCE_S
from tests.support.rest import Reply, Site, call
from timer_service.adapters.no_broker import NoBroker
from timer_service.config import Settings
from timer_service.domain.api_keys import ALL_TENANTS, ApiKey, Scope, digest_of
from timer_service.domain.messages import Command, TenantId
from timer_service.ports.audit import Action
from timer_service.ports.health import Health, LatenessHistory, Recent
from timer_service.ports.letter_box import LetterBox
from timer_service.right_of_way import RightOfWay
from timer_service.testing.audit import MemoryAudit
from timer_service.testing.secrets import MemorySecretStore
from timer_service.wiring.page import PageParts, build_page, bulk_desk
from timer_service.wiring.stores import OpenedStore

HOST = "127.0.0.1:8070"
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Notebook(MemoryAudit):
    """A table of actions that can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception | None] = []
        """What becomes of the next notes."""

    async def record(self, *actions: Action) -> int:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return await super().record(*actions)


class Courtesy(RightOfWay):
    """A right of way that everybody waits for, however slow the machine is."""

    async def in_line(self, patience_s: float) -> None:
        await super().in_line(max(patience_s, PATIENCE_S))


@dataclass
class Pages:
    """A page and its visitors."""

    settings: dict[str, Any] = field(default_factory=dict)
    site: Site = field(default_factory=Site)
    is_dev: bool = False
    audit: Notebook = field(default_factory=Notebook)
    health: Health = field(default_factory=lambda: Health(None, {}))
    letters: LetterBox | None = None
    right_of_way: RightOfWay = field(default_factory=RightOfWay)

    async def open(self) -> "Pages":
        await self.site.open()
        store, clock = self.site.store, self.site.clock
        self.parts = PageParts(
            opened=OpenedStore(store, MemorySecretStore(), self.site.keys, self.audit),
            timers=self.site.timers,
            deliveries=self.site.deliveries,
            explanations=explanations(store, clock),
            letters=self.letters or NoBroker(store).letter_box,
            broker=NoBroker(store).view,
            recent=lambda: Recent(0, 0, None, None),
            lateness_history=lambda: LatenessHistory((0.01, 1.0), ()),
            health=lambda: self.health,
            clock=clock,
            elapsed_s=lambda: clock.elapsed_s,
            chance=lambda: 0.5,
            right_of_way=self.right_of_way,
            is_dev=self.is_dev,
        )
        self.bulk = bulk_desk(self.parts)
        settings = Settings(**{"page_port": 8070, **self.settings})
        self.app = build_page(settings, self.parts, bulk=self.bulk)
        return self

    async def have(self, *commands: Command) -> None:
        """Have timers that were asked for over the API: their commands stand in no stream."""
        await self.site.timers.carry_out_all(commands)

    async def add_key(self, text: str, tenant: str, *scopes: Scope) -> str:
        """Keep a key, and return the header that carries it."""
        key_id = text.split("_")[1]
        key = ApiKey(key_id, TenantId(tenant), frozenset(scopes), digest_of(text), self.site.clock.now())
        await self.site.keys.add(key)
        return f"Bearer {text}"

    async def get(self, path: str = "", headers: dict[str, str] | None = None, **more: str) -> Reply:
        return await self.ask("GET", path, b"", {**(headers or {}), **more})

    async def post(
        self,
        path: str,
        form: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **more: str,
    ) -> Reply:
        """Send a form as a browser sends it from the page itself."""
        body = urlencode(form or {}, doseq=True).encode()
        return await self.ask("POST", path, body, {**FORM, **SAME_ORIGIN, **(headers or {}), **more})

    async def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str], peer: str = "127.0.0.1"
    ) -> Reply:
        base = "" if path.startswith("/") else "/ui/"

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await self.app({**scope, "client": (peer, 1)}, receive, send)

        return await call(app, method, base + path, {"host": HOST, **headers}, [body])


ALL = str(ALL_TENANTS)


def addresses(html: str) -> list[str]:
    """Return every address in a page."""
    return re.findall(r'(?:href|src|action)="([^"]*)"', html)
