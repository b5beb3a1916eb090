"""Every address of the page, and who may use it."""

from collections.abc import Sequence
from dataclasses import dataclass

from timer_service.adapters.http.pages.look import choose_look
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
from timer_service.adapters.http.pages.visit import Route
from timer_service.domain.api_keys import Scope


@dataclass(frozen=True, slots=True)
class Screens:
    """What shows the screens."""

    session: SessionScreens
    now: NowScreen
    timers: TimersScreen
    timer: TimerScreen
    tenants: TenantsScreen
    system: SystemScreen
    refused: RefusedScreens
    replay: ReplayScreens
    load: LoadScreen
    activity: ActivityScreen
    bulk: BulkScreens
    jobs: JobScreens
    dev: DevScreen | None = None
    """Only where somebody tries the service out."""


def routes(screens: Screens) -> Sequence[Route]:
    """Return the table of all addresses; the order of those with a name is that of the navigation."""
    return (
        Route("", screens.now.show, Scope.READ, nav="Now"),
        Route("live", screens.now.live, Scope.READ),
        Route("timers", screens.timers.show, Scope.READ, nav="Timers"),
        Route("find", screens.timers.find, Scope.READ),
        Route("timer", screens.timer.show, Scope.READ),
        Route("cancel", screens.timer.cancel, Scope.WRITE, "POST"),
        Route("move", screens.timer.move, Scope.WRITE, "POST"),
        Route("fire", screens.timer.fire, Scope.WRITE, "POST"),
        Route("undo", screens.timer.undo, Scope.WRITE, "POST"),
        Route("retry", screens.timer.retry, Scope.REPLAY, "POST"),
        Route("abandon", screens.timer.abandon, Scope.REPLAY, "POST"),
        *_bulk(screens.bulk, screens.jobs),
        Route("load", screens.load.show, Scope.READ, nav="Load"),
        *_refused(screens.refused, screens.replay),
        Route("activity", screens.activity.show, Scope.READ, nav="Activity"),
        Route("tenants", screens.tenants.show, Scope.READ, nav="Tenants"),
        Route("system", screens.system.show, Scope.READ, all_tenants=True, nav="System"),
        Route(
            "accept-clock-step",
            screens.system.accept_clock_step,
            Scope.ADMIN,
            "POST",
            all_tenants=True,
        ),
        *(() if screens.dev is None else _dev_routes(screens.dev)),
        Route("login", screens.session.show, None),
        Route("login", screens.session.log_in, None, "POST"),
        Route("logout", screens.session.log_out, None, "POST"),
        Route("look", choose_look, None, "POST"),
    )


def _dev_routes(dev: DevScreen) -> Sequence[Route]:
    return (
        Route("dev", dev.show, Scope.READ, all_tenants=True, nav="Dev"),
        Route("move-clock", dev.move_clock, Scope.ADMIN, "POST", all_tenants=True),
        Route("schedule", dev.schedule, Scope.WRITE, "POST", all_tenants=True),
    )


def _bulk(bulk: BulkScreens, jobs: JobScreens) -> Sequence[Route]:
    """Return what changes many timers; how many an operator may change is decided by how many there are."""
    return (
        Route("bulk", bulk.preview, Scope.WRITE),
        Route("bulk", bulk.preview, Scope.WRITE, "POST"),
        Route("bulk-start", bulk.start, Scope.WRITE, "POST"),
        Route("job", jobs.show, Scope.READ),
        Route("job-live", jobs.live, Scope.READ),
        Route("job-stop", jobs.stop, Scope.WRITE, "POST"),
    )


def _refused(screens: RefusedScreens, group: ReplayScreens) -> Sequence[Route]:
    return (
        Route("refused", screens.show, Scope.READ, nav="Refused"),
        Route("letter", screens.letter, Scope.READ),
        Route("letter-body", screens.body, Scope.READ),
        Route("letter-check", screens.check, Scope.READ, "POST"),
        # It schedules or cancels a timer, whichever the form says.
        Route("letter-replay", screens.replay, Scope.WRITE, "POST"),
        Route("refused-replay", group.preview, Scope.ADMIN),
        Route("refused-replay", group.start, Scope.ADMIN, "POST"),
        Route("refused-retry", screens.retry, Scope.REPLAY, "POST"),
    )
