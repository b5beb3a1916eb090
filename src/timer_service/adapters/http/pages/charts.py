"""Charts as numbers: where each bar and cell stands, and where it leads. A template draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log10
from typing import Final

from timer_client.wire import format_time
from timer_service.adapters.http.pages.visit import address
from timer_service.domain.forecast import Forecast, Step
from timer_service.ports.health import LatenessHistory

WIDTH: Final = 960
HEIGHT: Final = 260
GAP: Final = 2.0
MAX_ABOVE: Final = 1.5
"""A capacity further above the highest bar is told in words: a line would flatten the bars."""
SHADES: Final = 5
HEAT_MINUTES: Final = 60
HEAT_TICKS: Final = 10
"""Minutes from one time that is written out to the next."""
CELL: Final = 16
LABELS: Final = 64
"""Room for words at the left."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one tenant has in a bar."""

    tenant: str
    count: int
    y: float
    height: float
    shade: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One step of time."""

    step: Step
    x: float
    width: float
    parts: tuple[Part, ...]
    link: str
    label: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """All bars, and the line of what can be fired."""

    bars: tuple[Bar, ...]
    top: int
    """The number at the upper edge."""
    capacity_y: float | None
    """None if the line is above the chart, or no capacity is known."""
    ticks: tuple[tuple[float, datetime], ...]
    levels: tuple[tuple[float, int], ...]
    """Where a line goes across, and the number that it stands for."""
    left: int = LABELS
    width: int = WIDTH
    height: int = HEIGHT


def bar_chart(forecast: Forecast, tenant: str | None) -> BarChart:
    """Return the bars of a forecast, stacked by tenant; each leads to its timers."""
    steps = forecast.steps
    most = max((step.total for step in steps), default=0)
    seconds = (steps[0].end - steps[0].start).total_seconds() if steps else 1.0
    capacity = forecast.capacity_per_s * seconds
    shows_line = 0 < capacity <= most * MAX_ABOVE
    top = max(1.0, most, capacity if shows_line else 0)
    width = (WIDTH - LABELS) / max(1, len(steps))
    names = [name for name, _ in steps[0].by_tenant] if steps else []
    bars = tuple(
        Bar(
            step,
            round(LABELS + index * width + GAP / 2, 2),
            round(width - GAP, 2),
            tuple(_parts(step, top, names)),
            _timers(step.start, step.end, "Scheduled", tenant),
            f"{step.total:,} due",
        )
        for index, step in enumerate(steps)
    )
    every = max(1, len(steps) // 6)
    ticks = tuple(
        (round(LABELS + index * width, 2), steps[index].start) for index in range(0, len(steps), every)
    )
    line = round(HEIGHT * (1 - capacity / top), 2) if shows_line else None
    counts = {round(top), round(top / 2), 0}
    levels = tuple((round(HEIGHT * (1 - count / top), 2), count) for count in sorted(counts))
    return BarChart(bars, round(top), line, ticks, levels)


def _parts(step: Step, top: float, names: Sequence[str]) -> list[Part]:
    found, below = [], 0
    for name, count in step.by_tenant:
        height = HEIGHT * count / top
        below += count
        if count:
            shade = names.index(name) % SHADES if name in names else SHADES - 1
            found.append(Part(name, count, round(HEIGHT * (1 - below / top), 2), round(height, 2), shade))
    return found


def _timers(start: datetime, end: datetime, state: str, tenant: str | None) -> str:
    span = {"from": format_time(start), "to": format_time(end)}
    return address("timers", tenant=tenant, state=state, **span)


@dataclass(frozen=True, slots=True)
class Cell:
    """How many timers of one minute were late by so much."""

    x: int
    y: int
    shade: int
    count: int
    link: str
    at: datetime
    bound: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Lateness by minute and by size."""

    cells: tuple[Cell, ...]
    rows: tuple[tuple[int, str], ...]
    """Where each row stands, and what it is called, the latest on top."""
    ticks: tuple[tuple[int, datetime], ...]
    width: int
    height: int
    late: int
    """How many timers were later than a second."""
    total: int
    left: int = LABELS


def heat_map(history: LatenessHistory, now: datetime) -> HeatMap:
    """Return the cells of the last hour; each leads to the timers that fired in its minute."""
    this_minute = now.replace(second=0, microsecond=0)
    names = [f"≤ {bound_text(bound)}" for bound in history.bounds_s]
    names.append(f"> {bound_text(history.bounds_s[-1])}" if history.bounds_s else "any")
    minutes = [each for each in history.minutes if each.minutes_ago < HEAT_MINUTES]
    most = max((count for each in minutes for count in each.counts), default=0)
    cells = []
    for each in minutes:
        start = this_minute - timedelta(minutes=each.minutes_ago)
        link = _timers(start, start + timedelta(minutes=1), "Reached", None)
        x = LABELS + (HEAT_MINUTES - 1 - each.minutes_ago) * CELL
        cells += [
            Cell(x, (len(names) - 1 - row) * CELL, _shade(count, most), count, link, start, names[row])
            for row, count in enumerate(each.counts)
            if count
        ]
    rows = tuple(((len(names) - 1 - row) * CELL, name) for row, name in enumerate(names))
    slow = next((row for row, bound in enumerate(history.bounds_s) if bound >= 1.0), len(names) - 1) + 1
    return HeatMap(
        tuple(cells),
        rows,
        tuple(
            (LABELS + minute * CELL, this_minute - timedelta(minutes=HEAT_MINUTES - 1 - minute))
            for minute in range(0, HEAT_MINUTES, HEAT_TICKS)
        ),
        LABELS + HEAT_MINUTES * CELL,
        len(names) * CELL,
        late=sum(sum(each.counts[slow:]) for each in minutes),
        total=sum(sum(each.counts) for each in minutes),
    )


def bound_text(seconds: float) -> str:
    """Return the bound of a bucket, as short as it can be."""
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"


def _shade(count: int, most: int) -> int:
    """Return one of the shades, by the logarithm: a single late timer among thousands is seen."""
    if most <= 1:
        return SHADES - 1
    return round((SHADES - 1) * log10(count) / log10(most)) if count < most else SHADES - 1
