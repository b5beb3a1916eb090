"""Times are written in one way everywhere: in the zone that the visitor chose, which is named."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.support.pages import Pages
from tests.support.timers import schedule
from tests.unit.test_page_load import open_load
from tests.unit.test_page_refused import rendered, visit
from timer_service.adapters.http.pages.render import written
from timer_service.adapters.http.pages.visit import Look
from timer_service.domain.forecast import Span

BERLIN = Look(zone_name="Europe/Berlin", zone=ZoneInfo("Europe/Berlin"))
IN_BERLIN = {"cookie": "zone=Europe/Berlin"}
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
WRITTEN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "


@pytest.mark.parametrize("span", Span)
async def test_axis_tooltip_and_table_of_a_chart_tell_the_same_time(span: Span) -> None:
    async with open_load() as load:
        page = await rendered(await load.show(visit(look=BERLIN, span=span)), look=BERLIN)

    tooltips = re.findall(rf"<title>\d+ due, ({WRITTEN}[^;<]*)", page)
    axis = re.findall(r'<text x="[^"]*" y="[^"]*">([^<]*)</text>', page)
    table = re.findall(rf"<tr><td><time[^>]*>({WRITTEN}[^<]*)</time>", page)
    assert tooltips
    assert tooltips == table
    assert all(each.endswith("CET (Europe/Berlin)") for each in tooltips)
    assert axis[0] == (tooltips[0][11:16] if span is not Span.MONTH else tooltips[0][5:10])


async def test_what_was_noted_is_told_in_the_zone_that_is_shown() -> None:
    pages = await Pages().open()
    await pages.have(schedule("order-1", 60))
    await pages.post("move", {"tenant": "acme", "id": "order-1", "due": "2026-01-01T12:02:00Z"})

    page = (await pages.get("activity", IN_BERLIN)).body.decode()

    assert "due 2026-01-01 13:01:00.000 CET (Europe/Berlin)" in page
    assert "due 2026-01-01 13:02:00.000 CET (Europe/Berlin)" in page
    assert re.findall(rf">[^<]*{ISO}", page) == []


@pytest.mark.parametrize(
    ("moment", "zone"),
    [
        (datetime(9999, 12, 31, 23, 59, tzinfo=UTC), "Asia/Tokyo"),
        (datetime(1, 1, 1, tzinfo=UTC), "America/New_York"),
    ],
)
def test_a_moment_that_a_zone_cannot_write_is_written_in_utc(moment: datetime, zone: str) -> None:
    shown = written(moment, Look(zone_name=zone, zone=ZoneInfo(zone)))

    assert shown == f"{moment:%Y}".zfill(4) + f"{moment:-%m-%d %H:%M:%S}.000 UTC"
