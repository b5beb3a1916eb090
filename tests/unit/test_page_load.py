"""Load: what is going to be due, whether it can be fired in time, and how late timers were."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.simulation.loop import VirtualLoop
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at, schedule
from tests.unit.test_page_refused import ADMIN, rendered, visit
from timer_service.adapters.http.pages.charts import HEIGHT, bar_chart, bound_text, heat_map
from timer_service.adapters.http.pages.counting import Due, DueDesk
from timer_service.adapters.http.pages.render import written
from timer_service.adapters.http.pages.screens.load import LoadScreen, summary
from timer_service.adapters.http.pages.visit import SCOPES_OF, Look, PageError, Role, User
from timer_service.domain.errors import StoreBusy, TransientError
from timer_service.domain.forecast import Span, edges, forecast
from timer_service.observability.recent import RecentWork
from timer_service.ports.health import LatenessHistory, LatenessMinute, Recent
from timer_service.ports.timer_insight import Shares
from timer_service.testing import MemoryTimerStore
from timer_service.testing.insight import MemoryInsight

NOW = at(0)
BERLIN = Look(zone_name="Europe/Berlin", zone=ZoneInfo("Europe/Berlin"))


def told_at(moment: datetime) -> str:
    return written(moment, BERLIN)


MINUTE = timedelta(minutes=1)
QUIET = LatenessHistory((0.01, 1.0), ())


def ahead(*totals: int, capacity: float = 0.0, overdue: int = 0, **of_tenants: list[int]) -> Any:
    moments = [NOW + MINUTE * number for number in range(len(totals) + 1)]
    return forecast(moments, totals, of_tenants, capacity_per_s=capacity, overdue=overdue)


@pytest.mark.parametrize(
    ("span", "count", "first", "last"),
    [
        (Span.HOUR, 61, "12:34:00", "13:34:00"),
        (Span.TWO_DAYS, 49, "12:00:00", "12:00:00"),
        (Span.MONTH, 31, "00:00:00", "00:00:00"),
    ],
)
def test_steps_begin_at_whole_minutes_hours_and_days(span: Span, count: int, first: str, last: str) -> None:
    moments = edges(datetime(2026, 1, 1, 12, 34, 56, tzinfo=UTC), span)

    assert (len(moments), f"{moments[0]:%H:%M:%S}", f"{moments[-1]:%H:%M:%S}") == (count, first, last)


def test_time_has_an_end() -> None:
    assert len(edges(datetime(9999, 12, 31, 23, 58, tzinfo=UTC), Span.HOUR)) == 2


def test_what_cannot_be_fired_in_its_step_is_left_over_for_the_next() -> None:
    found = ahead(0, 900, 0, 0, capacity=10)

    assert [(step.backlog, step.late_s) for step in found.steps] == [(0, 0), (300, 30.0), (0, 0), (0, 0)]
    assert found.steps[1].at_once_late_s == 90.0


def test_what_is_overdue_goes_first() -> None:
    assert [step.backlog for step in ahead(600, 600, 0, capacity=10, overdue=100).steps] == [100, 100, 0]


def test_without_a_measured_pace_nothing_is_predicted() -> None:
    found = ahead(10**6, 5)

    assert [(step.backlog, step.late_s) for step in found.steps] == [(0, 0.0), (0, 0.0)]
    assert "not measured yet" in summary(found, told_at)


def test_the_summary_names_the_peak_and_the_lateness() -> None:
    assert summary(ahead(0, 0), told_at) == "Nothing is due in this time."
    assert summary(ahead(1, 900, capacity=10), told_at) == (
        "901 timers due; the most in 1 min is 900, from 2026-01-01 13:01:00.000 CET (Europe/Berlin). "
        "Up to 10 per second were fired. "
        "The last ones before 2026-01-01 13:02:00.000 CET (Europe/Berlin) are about 30 s late."
    )
    assert summary(ahead(300, capacity=10), told_at).endswith(
        "unless a step is due all at once: then up to 30 s."
    )
    assert summary(ahead(300, capacity=1000), told_at).endswith("Nothing is expected to be late.")


def test_bars_are_stacked_and_fill_the_chart() -> None:
    chart = bar_chart(ahead(4, 8, acme=[1, 2], globex=[2, 6]), None)

    first, second = chart.bars
    assert [(part.tenant, part.count) for part in first.parts] == [("acme", 1), ("globex", 2), ("", 1)]
    assert sum(part.height for part in second.parts) == HEIGHT
    assert second.parts[-1].y == 0
    assert chart.top == 8
    assert first.link == (
        "timers?state=Scheduled&from=2026-01-01T12%3A00%3A00.000Z&to=2026-01-01T12%3A01%3A00.000Z"
    )


def test_the_line_of_what_can_be_fired_never_flattens_the_bars() -> None:
    near, far = ahead(600, capacity=12), ahead(600, capacity=1000)

    assert bar_chart(near, None).capacity_y == 0
    assert bar_chart(far, None).capacity_y is None
    assert bar_chart(far, None).top == 600


def test_a_single_late_timer_among_thousands_is_seen() -> None:
    history = LatenessHistory((0.01, 1.0), (LatenessMinute(3, (5000, 0, 1)), LatenessMinute(70, (9, 9, 9))))

    heat = heat_map(history, at(30))

    assert [(cell.bound, cell.count, cell.shade) for cell in heat.cells] == [
        ("≤ 10 ms", 5000, 4),
        ("> 1 s", 1, 0),
    ]
    assert (heat.late, heat.total) == (1, 5001)
    assert heat.cells[0].at == at(-180)
    assert [bound_text(bound) for bound in (0.005, 0.25, 2.5, 300)] == ["5 ms", "250 ms", "2.5 s", "5 min"]


def test_lateness_is_remembered_by_the_minute() -> None:
    elapsed = [0.0]
    recent = RecentWork((0.01, 1.0), lambda: elapsed[0])
    recent.fired([0.001] * 3)
    elapsed[0] = 59.0
    recent.fired([5.0])
    elapsed[0] = 61.0
    recent.fired([0.5, 0.5])
    elapsed[0] = 181.0

    assert recent.history().minutes == (LatenessMinute(3, (3, 0, 1)), LatenessMinute(2, (0, 2, 0)))
    assert recent.summary().peak_per_s == 3


@asynccontextmanager
async def open_load(peak: int = 0) -> AsyncIterator[LoadScreen]:
    store = MemoryTimerStore()
    mine = [schedule(f"a-{n}", 30 + n, number=n + 1) for n in range(3)]
    await store.apply([*mine, schedule("g-1", 90, tenant=GLOBEX, number=9)], NOW)
    desk = DueDesk(store.insight, lambda: 0.0, wait_s=PATIENCE_S)
    async with desk.running():
        yield LoadScreen(desk, store.insight, lambda: Recent(0, 0, None, None, peak), lambda: QUIET)


async def test_the_screen_shows_whose_timers_are_due() -> None:
    async with open_load(peak=1000) as load:
        screen = await load.show(visit())
    page = await rendered(screen)

    assert [(row["total"], row["by_tenant"]) for row in screen.model["steps"]] == [
        (3, [("acme", 3)]),
        (1, [("globex", 1)]),
    ]
    assert "3 due, 2026-01-01 12:00:00.000 UTC" in page
    assert "As of 2026-01-01 12:00:00.000 UTC" in page
    assert "Nothing is expected to be late." in page


async def test_a_backlog_makes_what_is_to_come_late() -> None:
    store = MemoryTimerStore()
    overdue = [schedule(f"o-{n}", -600, number=n + 1) for n in range(20_000)]
    await store.apply([*overdue, schedule("a-1", 30, number=30_000)], NOW)
    desk = DueDesk(store.insight, lambda: 0.0, wait_s=PATIENCE_S)
    async with desk.running():
        load = LoadScreen(desk, store.insight, lambda: Recent(0, 0, None, None, 100), lambda: QUIET)
        shown = (await load.show(visit())).model

    assert "are about 140 s late" in shown["summary"]
    assert (shown["steps"][0]["total"], shown["steps"][0]["backlog"]) == (1, 14_001)


async def test_a_visitor_of_one_tenant_sees_the_load_of_that_one_only() -> None:
    async with open_load() as load:
        mine = await load.show(visit(User("kim", SCOPES_OF[Role.VIEWER], frozenset({ACME}))))
        with pytest.raises(PageError):
            await load.show(visit(User("kim", SCOPES_OF[Role.VIEWER], frozenset({ACME})), tenant="globex"))
        with pytest.raises(PageError, match="span"):
            await load.show(visit(ADMIN, span="year"))

    assert [row["by_tenant"] for row in mine.model["steps"]] == [[("acme", 3)]]
    assert mine.model["heat"] is None


class SlowInsight(MemoryInsight):
    """An insight that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.answers = asyncio.Event()
        self.asked: list[Sequence[datetime]] = []
        self.error: TransientError | None = None

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        self.asked.append(edges)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return [Shares(7, {ACME: 7})] * (len(edges) - 1)


async def test_nobody_waits_for_a_long_count_and_the_next_visit_shows_it() -> None:
    insight, elapsed = SlowInsight(), [0.0]
    hasty, patient = (DueDesk(insight, lambda: elapsed[0], wait_s=wait_s) for wait_s in (0, PATIENCE_S))
    load = LoadScreen(hasty, insight, lambda: Recent(0, 0, None, None), lambda: QUIET)
    async with hasty.running(), patient.running():
        first = await load.show(visit())
        insight.answers.set()
        counted = await patient.due(NOW, Span.HOUR, None)
        while not (second := await load.show(visit())).model["steps"]:
            await asyncio.sleep(0)

    assert "being counted" in await rendered(first)
    assert (first.headers, second.headers) == ({"refresh": "1"}, {})
    assert counted is not None
    assert second.model["steps"][0]["total"] == counted.totals[0] == 7


async def test_a_count_is_shared_for_a_while_and_the_older_one_stands_where_the_store_is_busy() -> None:
    insight, elapsed = SlowInsight(), [0.0]
    insight.answers.set()
    desk = DueDesk(insight, lambda: elapsed[0], wait_s=PATIENCE_S)
    async with desk.running():
        first = await desk.due(NOW, Span.HOUR, None)
        again = await desk.due(at(1), Span.HOUR, None)
        elapsed[0], insight.error = 60.0, StoreBusy("locked")
        older = await desk.due(at(60), Span.HOUR, None)
        insight.error = None
        newer = await desk.due(at(60), Span.HOUR, None)

    assert first is again is older
    assert newer is not None
    assert (newer.at, len(insight.asked)) == (at(60), 3)


async def test_an_hour_is_one_question_and_no_question_is_about_more_than_six_hours() -> None:
    insight, found = SlowInsight(), dict[Span, Due | None]()
    insight.answers.set()
    desk = DueDesk(insight, lambda: 0.0, wait_s=PATIENCE_S)
    async with desk.running():
        for span, questions in {Span.HOUR: 1, Span.TWO_DAYS: 8, Span.MONTH: 4 * 30}.items():
            insight.asked.clear()
            found[span] = await desk.due(NOW, span, None)

            spans = [(asked[0], asked[-1]) for asked in insight.asked]
            assert len(spans) == questions
            assert max(until - since for since, until in spans) <= timedelta(hours=6)
            # One goes on where the one before has ended.
            assert [until for _, until in spans[:-1]] == [since for since, _ in spans[1:]]

    # A day is in four pieces, a minute and an hour in one.
    totals = {Span.HOUR: [7] * 60, Span.TWO_DAYS: [7] * 48, Span.MONTH: [28] * 30}
    assert {span: due and due.totals for span, due in found.items()} == totals


async def test_a_count_of_another_hour_is_not_shown() -> None:
    insight, elapsed = SlowInsight(), [0.0]
    insight.answers.set()
    desk = DueDesk(insight, lambda: elapsed[0], wait_s=PATIENCE_S)
    async with desk.running():
        await desk.due(NOW, Span.HOUR, None)
        elapsed[0], insight.error = 600.0, StoreBusy("locked")
        found = [await desk.due(moment, Span.HOUR, None) for moment in (at(60), at(600), at(-1))]

    assert [each is None for each in found] == [False, True, True]


class Unhurried(MemoryInsight):
    """An insight that takes its time."""

    def __init__(self, takes_s: float) -> None:
        super().__init__({}, {})
        self.takes_s = takes_s

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        await asyncio.sleep(self.takes_s)
        return await super().shares(edges, limit)


def test_the_first_visit_waits_for_a_short_count_and_later_ones_show_the_last() -> None:
    loop = VirtualLoop()

    async def scene() -> list[tuple[datetime | None, float]]:
        insight, shown = Unhurried(0.025), []
        desk = DueDesk(insight, loop.time)
        async with desk.running():
            for moment, takes_s in ((NOW, 0.025), (at(30), 0.025), (at(600), 0.04)):
                insight.takes_s, began_s = takes_s, loop.time()
                due = await desk.due(moment, Span.HOUR, None)
                shown.append((None if due is None else due.at, round(loop.time() - began_s, 3)))
                await asyncio.sleep(30)
        return shown

    try:
        shown = loop.run_until_complete(scene())
    finally:
        loop.close()

    # With nothing to show, 25 ms are waited for, but not 40; with an older count, a third of that.
    assert shown == [(NOW, 0.025), (NOW, 0.01), (None, 0.03)]
