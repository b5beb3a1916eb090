"""Now: what somebody who was called out of bed reads first."""

import re
from datetime import datetime
from typing import Any

import pytest

from tests.support.explanations import MemoryLetterBox
from tests.support.pages import ALL, Pages
from tests.support.timers import ACME, at, call, schedule
from timer_service.adapters.http.pages.figures import OVERDUE_S, Figures, FiguresDesk
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role
from timer_service.config import Settings
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.health import Health, Recent
from timer_service.ports.timer_insight import TimerFilter, TimerPage
from timer_service.right_of_way import RightOfWay
from timer_service.testing.insight import MemoryInsight
from timer_service.wiring.page import build_page

SECRET = "nats://10.0.0.7:4222 refuses: TimeoutError"


async def told(
    health: Health, since: dict[str, datetime], tenants: frozenset[TenantId] | None = None, overdue_s: int = 0
) -> tuple[str, str]:
    """Return the sentence and how it sounds."""
    pages = await Pages(health=health).open()
    await pages.have(schedule("a", -overdue_s if overdue_s else 60))
    parts = pages.parts
    insight = parts.opened.store.insight
    desk = FiguresDesk(parts.timers, insight, parts.health, lambda: since, parts.clock.now, lambda: 0.0)
    texts = (await desk.figures(tenants)).texts()
    return texts["sentence"], texts["tone"]


@pytest.mark.parametrize("tenants", [None, frozenset({ACME})], ids=["all", "one"])
@pytest.mark.parametrize(
    ("health", "overdue_s", "sentence", "tone"),
    [
        (Health(None, {}), 0, "All is well: nothing is overdue.", "good"),
        (Health(None, {}), 1, "All parts work; 1 timer is due and on its way.", "good"),
        (
            Health(None, {}),
            41,
            "All parts work; 1 timer is due and on its way, the oldest for 41 s.",
            "warn",
        ),
        (
            Health(None, {"broker": SECRET}),
            41,
            "Timers wait: the broker has been away since 11:59:11 UTC.",
            "bad",
        ),
        (Health(None, {"store": SECRET}), 0, "Timers wait: the store takes no change.", "bad"),
        (
            Health(None, {"disk": SECRET, "new part": SECRET}),
            0,
            "Timers wait: the disk is nearly full; new part is in trouble.",
            "bad",
        ),
        (
            Health("has not polled for 31 s", {}),
            0,
            "The worker is stuck: it has not polled for 31 s. Restart the service.",
            "bad",
        ),
    ],
)
async def test_the_health_is_one_sentence_that_gives_no_details_away(
    health: Health, overdue_s: int, sentence: str, tone: str, tenants: frozenset[TenantId] | None
) -> None:
    assert await told(health, {"broker": at(-49)}, tenants, overdue_s) == (sentence, tone)


async def test_all_is_not_well_while_something_is_worth_a_look() -> None:
    warned = Health(None, {}, {"command stream": "its discard rule drops commands"})

    assert await told(warned, {}) == (
        "Timers fire; nothing is overdue. Worth a look: command stream.",
        "warn",
    )
    assert await told(warned, {}, frozenset({ACME})) == ("All is well: nothing is overdue.", "good")
    assert OVERDUE_S > 1  # What is due in this moment is not late.


async def test_what_to_do_is_told_to_those_who_run_the_service() -> None:
    pages = await Pages(
        {"page_host": "192.0.2.1", "page_key": "k" * 40}, health=Health(None, {"broker": SECRET})
    ).open()
    keys = [
        await pages.add_key(f"tmr_{n}_x", whose, *SCOPES_OF[Role.VIEWER])
        for n, whose in enumerate((ALL, ACME))
    ]

    everything, some = [(await pages.get(authorization=key)).body.decode() for key in keys]

    assert (SECRET in everything, "What to look at" in everything) == (True, True)
    assert (SECRET in some, "What to look at" in some) == (False, False)
    assert 'class="health bad"' in some


async def test_a_figure_that_is_not_known_keeps_its_place() -> None:
    silent = await Pages(letters=MemoryLetterBox(error=BusUnavailable("not connected"))).open()

    page = (await silent.get()).body.decode()

    [figure] = re.findall(r"<h2>Refused today</h2>(.*?)</div>", page)
    assert figure.startswith("<p>–</p>")


async def test_a_chart_that_is_still_counted_is_asked_for_again() -> None:
    pages: Any = await Pages().open()

    nobody_counts = await pages.get()

    assert nobody_counts.headers["refresh"] == "1"
    assert "being counted" in nobody_counts.body.decode()


def watched(pages: Pages, *lateness_s: float | None) -> Live:
    """Return live numbers with a minute of history for each lateness."""
    parts = pages.parts
    desk = FiguresDesk(
        parts.timers, parts.opened.store.insight, parts.health, dict, parts.clock.now, lambda: 0.0
    )
    live = Live(desk, lambda: 0.5, RightOfWay())
    for late_s in lateness_s:
        recent = Recent(1.0, 1.0, late_s, late_s)
        live.history.append(
            Figures("", is_well=True, pending=1, overdue=0, oldest_overdue_s=0, recent=recent)
        )
    return live


async def test_a_minute_in_which_nothing_fired_is_a_gap_in_the_line() -> None:
    pages = await Pages().open()
    live = watched(pages, 0.2, 0.1, None, 0.2, None)
    pages.app = build_page(Settings(page_port=8070), pages.parts, live=live)

    page = (await pages.get()).body.decode()

    [line] = re.findall(r'aria-label="Lateness, p50 over the last hour">\s*<path d="([^"]*)"', page)
    assert line == "M0.0,2.0h0L30.0,14.0M90.0,2.0h0"


async def test_what_is_less_than_a_second_away_is_now() -> None:
    pages = await Pages().open()
    dues = {"late": -5, "just": -0.9, "soon": 0.9, "next": 1}
    await pages.have(*(schedule(name, due_s) for name, due_s in dues.items()))

    page = (await pages.get()).body.decode()

    shown = re.findall(r'data-at="\d+">([^<]*)</span>.*?<bdi>(late|just|soon|next)</bdi>', page)
    assert shown == [("5 s ago", "late"), ("now", "just"), ("now", "soon"), ("in 1 s", "next")]


async def test_one_minute_is_not_drawn_as_a_line() -> None:
    pages = await Pages().open()
    live = watched(pages, 0.2)
    pages.app = build_page(Settings(page_port=8070), pages.parts, live=live)

    assert b'class="spark"' not in (await pages.get()).body


class ShortSighted(MemoryInsight):
    """An insight that has looked through as many ended timers as one page may, and found none that fired."""

    async def page(self, wanted: TimerFilter, limit: int, **place: Any) -> TimerPage:
        if wanted.state is TimerState.REACHED:
            return TimerPage([], after=(at(0), ACME, call("the-thousandth")))
        return await super().page(wanted, limit, **place)


async def test_what_was_not_looked_at_is_not_called_unfired() -> None:
    pages = await Pages(is_dev=True).open()
    pages.site.store.insight = ShortSighted({}, {})
    pages.app = build_page(Settings(page_port=8070), pages.parts)

    shown = [(await pages.get(screen)).body.decode() for screen in ("", "dev")]

    for page in shown:
        assert "Nothing has fired yet" not in page
        assert "None fired among the last that ended" in page
        assert 'href="timers?state=Reached"' in page
