"""Timers: what a list says of itself, and the command for the same."""

import re
from html import unescape

import pytest

from tests.support.explanations import MemoryLetterBox
from tests.support.pages import Pages
from tests.support.timers import GLOBEX, at, cancel, schedule
from timer_client.wire import format_time
from timer_service.domain.errors import BusUnavailable

CURL = 'curl -H "Authorization: Bearer $KEY" "$PAGE/{}"'


@pytest.fixture
async def pages() -> Pages:
    """A page over scheduled, fired and cancelled timers."""
    opened = await Pages().open()
    await opened.have(schedule("later", 60), schedule("fired", 0), schedule("over", 90, tenant=GLOBEX))
    async with opened.site.store.claim_due(at(0), 9) as claim:
        await claim.mark_reached([timer.reached(at(3)) for timer in claim.timers])
    await opened.have(cancel("over", tenant=GLOBEX))
    return opened


async def shown(pages: Pages, path: str) -> tuple[str, list[str], str]:
    """Return the caption, the names of the columns and the command of a list."""
    page = (await pages.get(path)).body.decode()
    caption = re.findall(r"<caption>(.*?)</caption>", page)
    head = re.findall(r"<thead>(.*?)</thead>", page, re.DOTALL)
    columns = [re.sub(r"<.*?>", "", each) for each in re.findall(r"<th.*?</th>", head[0])] if head else []
    [command] = re.findall(r'<code id="command">(.*?)</code>', page)
    return (
        "".join(caption),
        [each for each in columns if each not in {"Select", "How long"}],
        unescape(command),
    )


@pytest.mark.parametrize(
    ("path", "caption", "columns"),
    [
        ("timers", "1 of 1, by due time", ["Due", "Tenant", "Id", "Correlation"]),
        ("timers?state=Reached", "by end, latest first", ["Reached", "Tenant", "Id", "Late", "Correlation"]),
        (
            "timers?state=Cancelled",
            "by end, latest first",
            ["Cancelled", "Tenant", "Id", "Was due", "Correlation"],
        ),
        (
            "timers?state=Cancelled&tenant=globex",
            "1 of 1, by due time, latest first",
            ["Due", "Tenant", "Id", "Cancelled", "Correlation"],
        ),
    ],
)
async def test_a_list_shows_the_moment_by_which_it_is_ordered(
    path: str, caption: str, columns: list[str], pages: Pages
) -> None:
    assert (await shown(pages, path))[:2] == (caption, columns)


async def test_a_fired_timer_is_listed_with_when_it_fired(pages: Pages) -> None:
    page = (await pages.get("timers?state=Reached")).body.decode()

    assert at(3).isoformat() in page
    assert "3,000 ms" in page


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (
            "timers?tenant=acme",
            "timer-service list --tenant acme --state Scheduled --limit 50",
        ),
        (
            "timers?tenant=acme&correlation=a+b&from=2026-01-01T12:00Z",
            (
                "timer-service list --tenant acme --state Scheduled --correlation-id 'a b' "
                "--due-from 2026-01-01T12:00:00.000Z --limit 50"
            ),
        ),
        # The command line lists one tenant's timers by due time, and has no way back.
        ("timers", CURL.format("timers?format=json")),
        (
            "timers?state=Reached&from=2026-01-01T12:00Z",
            CURL.format("timers?state=Reached&from=2026-01-01T12%3A00Z&format=json"),
        ),
        (
            f"timers?tenant=acme&after={format_time(at(0))}+acme+a",
            CURL.format("timers?tenant=acme&after=2026-01-01T12%3A00%3A00.000Z+acme+a&format=json"),
        ),
        ("refused?tenant=acme", "timer-service deadletters list --tenant acme --since 30d --limit 50"),
        ("refused?reason=invalid", CURL.format("refused?reason=invalid&format=json")),
    ],
)
async def test_the_command_shows_the_same_list(path: str, command: str, pages: Pages) -> None:
    assert (await shown(pages, path))[2] == command


async def test_what_cannot_be_read_is_not_called_empty() -> None:
    silent = await Pages(letters=MemoryLetterBox(error=BusUnavailable("not connected"))).open()

    page = (await silent.get("refused")).body.decode()

    assert "Letters cannot be read: not connected" in page
    assert "Nothing was refused" not in page
    assert "No letters" not in page
