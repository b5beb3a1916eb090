"""The page as the settings ask for it: its screens, who may see them, its port."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from timer_client.subjects import Subjects
from timer_service.adapters.http.auth import Doorkeeper
from timer_service.adapters.http.listening import listen
from timer_service.adapters.http.pages.app import Looks, PageApp
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.broker_desk import BrokerDesk
from timer_service.adapters.http.pages.counting import DueDesk
from timer_service.adapters.http.pages.figures import FiguresDesk
from timer_service.adapters.http.pages.guards import Place
from timer_service.adapters.http.pages.letter_desk import LetterDesk
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.past import Past
from timer_service.adapters.http.pages.people import Group, People, Proxies
from timer_service.adapters.http.pages.refused_today import RefusedToday
from timer_service.adapters.http.pages.routes import Screens, routes
from timer_service.adapters.http.pages.screens.activity import ActivityScreen
from timer_service.adapters.http.pages.screens.bulk import BulkScreens
from timer_service.adapters.http.pages.screens.dev import DevScreen
from timer_service.adapters.http.pages.screens.jobs import JobScreens
from timer_service.adapters.http.pages.screens.load import LoadScreen
from timer_service.adapters.http.pages.screens.now import NowScreen
from timer_service.adapters.http.pages.screens.refused import RefusedScreens
from timer_service.adapters.http.pages.screens.replay import ReplayScreens
from timer_service.adapters.http.pages.screens.session import SessionScreens
from timer_service.adapters.http.pages.screens.system import SystemScreen
from timer_service.adapters.http.pages.screens.tenants import TenantsScreen
from timer_service.adapters.http.pages.screens.timer import TimerScreen
from timer_service.adapters.http.pages.screens.timers import TimersScreen
from timer_service.adapters.http.pages.visit import Role
from timer_service.adapters.http.rest import serving_api
from timer_service.bulk import BulkDesk
from timer_service.config import Settings, read_groups, read_networks
from timer_service.deliveries import Deliveries
from timer_service.domain.errors import InvalidConfiguration, TransientError
from timer_service.domain.messages import TenantId
from timer_service.explanations import Explanations
from timer_service.ports.audit import KEPT_FOR
from timer_service.ports.broker_view import BrokerView
from timer_service.ports.clock import GuardedClock
from timer_service.ports.health import Health, LatenessHistory, Recent
from timer_service.ports.letter_box import LetterBox
from timer_service.ports.time_travel import TimeTravel
from timer_service.right_of_way import RightOfWay
from timer_service.timers import Timers
from timer_service.waiting import owned
from timer_service.wiring.stores import OpenedStore

REMEDY: Final = "set TIMER_PAGE_HOST and TIMER_PAGE_PORT, or TIMER_PAGE_PORT=0 to disable it"
MAX_CONNECTIONS: Final = 200
SECRET_BYTES: Final = 32
FORGET_EVERY_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class PageParts:
    """What the page is built from."""

    opened: OpenedStore
    timers: Timers
    deliveries: Deliveries
    explanations: Explanations
    letters: LetterBox
    broker: BrokerView
    recent: Callable[[], Recent]
    lateness_history: Callable[[], LatenessHistory]
    health: Callable[[], Health]
    clock: GuardedClock
    elapsed_s: Callable[[], float]
    chance: Callable[[], float]
    right_of_way: RightOfWay = field(default_factory=RightOfWay)
    """Every step of a visit or of a job waits for it: timers that are due go first."""
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
    live, due = _live(parts), _due(parts)
    desk, broker = bulk_desk(parts), BrokerDesk(parts.broker, parts.elapsed_s)
    app = build_page(settings, parts, people, live, desk, due, broker)
    app.load()
    # The streams end inside: a server that stops waits for what is open.
    async with (
        due.running(),
        broker.running(),
        serving_api(app, listener, MAX_CONNECTIONS),
        live.running(),
        desk.running(),
        owned(_forget_what_is_old(parts)),
    ):
        yield


def build_page(
    settings: Settings,
    parts: PageParts,
    people: People | None = None,
    live: Live | None = None,
    bulk: BulkDesk | None = None,
    due: DueDesk | None = None,
    broker: BrokerDesk | None = None,
) -> PageApp:
    """Return the application, which knows no port."""
    people = people or _people(settings, parts)
    live, due = live or _live(parts), due or _due(parts)
    insight, desk = parts.opened.store.insight, live.desk
    bulk, broker = bulk or bulk_desk(parts), broker or BrokerDesk(parts.broker, parts.elapsed_s)
    auditor = Auditor(parts.opened.audit, parts.clock.now, parts.elapsed_s)
    past = Past(parts.opened.audit, insight)
    letters = LetterDesk(parts.letters, parts.timers, Subjects(settings.subject_prefix), auditor)
    screens = Screens(
        session=SessionScreens(people),
        now=NowScreen(desk, due, live, parts.health, RefusedToday(parts.letters, parts.elapsed_s)),
        timers=TimersScreen(insight, bulk),
        timer=TimerScreen(parts.timers, parts.deliveries, parts.explanations, letters, past, auditor),
        tenants=TenantsScreen(insight),
        system=_system(settings, parts, broker, auditor),
        dev=DevScreen(parts.timers, insight, parts.travel, auditor) if parts.is_dev else None,
        activity=ActivityScreen(parts.opened.audit),
        bulk=BulkScreens(bulk, insight, past, auditor),
        jobs=JobScreens(bulk, live, parts.opened.audit, past, auditor),
        load=LoadScreen(due, insight, parts.recent, parts.lateness_history),
        refused=RefusedScreens(letters, parts.deliveries, insight, auditor),
        replay=ReplayScreens(letters, insight, auditor),
    )
    is_virtual = parts.travel is not None
    looks = Looks(settings.page_title, settings.page_colour, parts.timers.instance, is_virtual)
    refused, way = auditor.refused, parts.right_of_way
    return PageApp(routes(screens), people, _place(settings), parts.clock.now, looks, refused, way)


def _system(settings: Settings, parts: PageParts, broker: BrokerDesk, auditor: Auditor) -> SystemScreen:
    return SystemScreen(
        parts.timers,
        parts.health,
        settings.shown(),
        settings.store_name,
        lambda: parts.clock.held_step_s,
        has_broker=settings.has_broker,
        broker=broker,
        auditor=auditor,
    )


async def _forget_what_is_old(parts: PageParts) -> None:
    """Keep to the retention of actions also where nobody does anything."""
    while True:
        with suppress(TransientError):
            await parts.opened.audit.forget(parts.clock.now() - KEPT_FOR)
        await asyncio.sleep(FORGET_EVERY_S)


def bulk_desk(parts: PageParts) -> BulkDesk:
    """Return what runs jobs; the caller owns it."""
    return BulkDesk(
        parts.timers,
        parts.opened.store.insight,
        now=parts.clock.now,
        elapsed_s=parts.elapsed_s,
        chance=parts.chance,
        right_of_way=parts.right_of_way,
    )


def _live(parts: PageParts) -> Live:
    return Live(_desk(parts), parts.chance, parts.right_of_way)


def _desk(parts: PageParts) -> FiguresDesk:
    insight = parts.opened.store.insight
    return FiguresDesk(
        parts.timers, insight, parts.health, parts.explanations.since, parts.clock.now, parts.elapsed_s
    )


def _due(parts: PageParts) -> DueDesk:
    return DueDesk(parts.opened.store.insight, parts.elapsed_s)


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
