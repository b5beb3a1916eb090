"""The page as the settings ask for it: its screens, who may see them, its port."""

import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from timer_client.subjects import Subjects
from timer_service.adapters.http.auth import Doorkeeper
from timer_service.adapters.http.listening import listen
from timer_service.adapters.http.pages.app import Looks, PageApp
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.figures import FiguresDesk
from timer_service.adapters.http.pages.guards import Place
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.people import Group, People, Proxies
from timer_service.adapters.http.pages.routes import Screens, routes
from timer_service.adapters.http.pages.screens.activity import ActivityScreen
from timer_service.adapters.http.pages.screens.dev import DevScreen
from timer_service.adapters.http.pages.screens.load import LoadScreen
from timer_service.adapters.http.pages.screens.now import NowScreen
from timer_service.adapters.http.pages.screens.refused import RefusedScreens
from timer_service.adapters.http.pages.screens.session import SessionScreens
from timer_service.adapters.http.pages.screens.system import SystemScreen
from timer_service.adapters.http.pages.screens.tenants import TenantsScreen
from timer_service.adapters.http.pages.screens.timer import TimerScreen
from timer_service.adapters.http.pages.screens.timers import TimersScreen
from timer_service.adapters.http.pages.visit import Role
from timer_service.adapters.http.rest import serving_api
from timer_service.config import Settings, read_groups, read_networks
from timer_service.deliveries import Deliveries
from timer_service.domain.errors import InvalidConfiguration
from timer_service.domain.messages import TenantId
from timer_service.explanations import Explanations
from timer_service.ports.clock import GuardedClock
from timer_service.ports.health import Health, LatenessHistory, Recent
from timer_service.ports.letter_box import LetterBox
from timer_service.ports.time_travel import TimeTravel
from timer_service.stores import OpenedStore
from timer_service.timers import Timers

REMEDY: Final = "set TIMER_PAGE_HOST and TIMER_PAGE_PORT, or TIMER_PAGE_PORT=0 to disable it"
MAX_CONNECTIONS: Final = 200
SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class PageParts:
    """What the page is built from."""

    opened: OpenedStore
    timers: Timers
    deliveries: Deliveries
    explanations: Explanations
    letters: LetterBox
    recent: Callable[[], Recent]
    lateness_history: Callable[[], LatenessHistory]
    health: Callable[[], Health]
    clock: GuardedClock
    elapsed_s: Callable[[], float]
    chance: Callable[[], float]
    is_dev: bool = False
    travel: TimeTravel | None = None
    """What moves the clock, if somebody may."""
    listener: socket.socket | None = None


@asynccontextmanager
async def page(settings: Settings, parts: PageParts) -> AsyncIterator[None]:
    """Serve the page for as long as the context lasts."""
    people = _people(settings, parts)
    await _refuse_to_be_closed_to_all(settings, parts, people)
    listener = parts.listener or listen(settings.page_host, settings.page_port, remedy=REMEDY)
    live = Live(_desk(parts), parts.chance)
    app = build_page(settings, parts, people, live)
    # The streams end inside: a server that stops waits for what is open.
    async with serving_api(app, listener, MAX_CONNECTIONS), live.running():
        yield


def build_page(
    settings: Settings, parts: PageParts, people: People | None = None, live: Live | None = None
) -> PageApp:
    """Return the application, which knows no port."""
    people = people or _people(settings, parts)
    insight, desk = parts.opened.store.insight, _desk(parts)
    live = live or Live(desk, parts.chance)
    subjects = Subjects(settings.subject_prefix)
    auditor = Auditor(parts.opened.audit, parts.clock.now)
    screens = Screens(
        session=SessionScreens(people),
        now=NowScreen(desk, live, parts.health),
        timers=TimersScreen(insight),
        timer=TimerScreen(parts.timers, parts.deliveries, parts.explanations, auditor),
        tenants=TenantsScreen(insight),
        system=SystemScreen(
            parts.timers,
            parts.health,
            settings.shown(),
            settings.store_name,
            lambda: parts.clock.held_step_s,
        ),
        dev=DevScreen(parts.timers, insight, parts.travel) if parts.is_dev else None,
        activity=ActivityScreen(parts.opened.audit),
        load=LoadScreen(insight, parts.recent, parts.lateness_history, parts.elapsed_s),
        refused=RefusedScreens(parts.letters, parts.timers, parts.deliveries, insight, subjects, auditor),
    )
    is_virtual = parts.travel is not None
    looks = Looks(settings.page_title, settings.page_colour, parts.timers.instance, is_virtual)
    return PageApp(routes(screens), people, _place(settings), parts.clock.now, looks, auditor.refused)


def _desk(parts: PageParts) -> FiguresDesk:
    insight = parts.opened.store.insight
    return FiguresDesk(parts.timers, insight, parts.health, parts.clock.now, parts.elapsed_s)


def _place(settings: Settings) -> Place:
    return Place(settings.page_host, settings.page_port, settings.page_url or "")


def _people(settings: Settings, parts: PageParts) -> People:
    place = _place(settings)
    proxies = _proxies(settings)
    keys = Doorkeeper(
        parts.opened.api_keys,
        now=parts.clock.now,
        elapsed_s=parts.elapsed_s,
        single_key=None if settings.api_key is None else settings.api_key.get_secret_value(),
        single_tenant=settings.api_tenant,
    )
    secret = settings.page_secret
    return People(
        keys,
        now=parts.clock.now,
        elapsed_s=parts.elapsed_s,
        secret=secrets.token_bytes(SECRET_BYTES) if secret is None else secret.get_secret_value().encode(),
        # Cookies know no ports: two services on one host would log each other's visitors out.
        cookie=f"timer_session_{settings.page_port}",
        secure=place.is_secure,
        is_open=place.is_local and settings.page_key is None and not proxies.networks,
        page_key=None if settings.page_key is None else settings.page_key.get_secret_value(),
        proxies=proxies,
    )


def _proxies(settings: Settings) -> Proxies:
    if settings.page_trusted_proxies is None or settings.page_groups is None:
        return Proxies()
    groups = {
        name: Group(Role(role), frozenset(map(TenantId, tenants)) or None)
        for name, role, tenants in read_groups(settings.page_groups)
    }
    return Proxies(read_networks(settings.page_trusted_proxies), groups)


async def _refuse_to_be_closed_to_all(settings: Settings, parts: PageParts, people: People) -> None:
    """Fail at the start where nobody could ever log in: then it is not what was meant."""
    named = (settings.page_key, settings.api_key, settings.page_trusted_proxies)
    if people.is_open or any(each is not None for each in named):
        return
    now = parts.clock.now()
    if not any(key.is_valid(now) for key in await parts.opened.api_keys.list_keys()):
        raise InvalidConfiguration(
            f"TIMER_PAGE_PORT={settings.page_port}: beyond this machine the page needs keys; set "
            "TIMER_PAGE_KEY, make one with `timer-service keys create`, or set TIMER_PAGE_HOST=127.0.0.1"
        )
