"""Every address of the page, and who may use it."""

from collections.abc import Sequence
from dataclasses import dataclass

from timer_service.adapters.http.pages.look import choose_look
from timer_service.adapters.http.pages.screens.now import NowScreen
from timer_service.adapters.http.pages.screens.session import SessionScreens
from timer_service.adapters.http.pages.visit import Route
from timer_service.domain.api_keys import Scope


@dataclass(frozen=True, slots=True)
class Screens:
    """What shows the screens."""

    session: SessionScreens
    now: NowScreen


def routes(screens: Screens) -> Sequence[Route]:
    """Return the table of all addresses; the order of those with a name is that of the navigation."""
    return (
        Route("", screens.now.show, Scope.READ, nav="Now"),
        Route("login", screens.session.show, None),
        Route("login", screens.session.log_in, None, "POST"),
        Route("logout", screens.session.log_out, None, "POST"),
        Route("look", choose_look, None, "POST"),
    )
