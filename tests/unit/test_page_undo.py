"""A job is undone as a job: each timer as it was before, unless something has happened to it since."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.pages import ALL, Pages
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at, call, schedule
from tests.unit.test_page_bulk import agreed, outcomes, previewed, started, states
from timer_client.wire import format_time
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role
from timer_service.domain.timer import TimerState

MANY = 120


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    """An open page over many timers of acme and one of globex."""
    opened = await Pages().open()
    await opened.have(*(schedule(f"n-{n:03}", 60 + n) for n in range(MANY)))
    await opened.have(schedule("other", tenant=GLOBEX))
    async with opened.bulk.running():
        yield opened


def due_times(pages: Pages) -> list[object]:
    return [pages.site.store.timers[ACME, call(f"n-{n:03}")].due_at for n in range(MANY)]


async def undone(pages: Pages, job: dict[str, Any], **headers: str) -> dict[str, Any]:
    shown = (await pages.get(f"{job['undo']['link']}&format=json", headers)).json
    return await started(pages, agreed(shown), **headers)


@pytest.mark.parametrize(
    ("query", "left"),
    [("action=cancel", {"Cancelled": MANY, "Scheduled": 1}), ("action=move&by=2h", {"Scheduled": MANY + 1})],
)
async def test_a_job_is_undone_with_preview_and_count(query: str, left: dict[str, int], pages: Pages) -> None:
    before = due_times(pages)
    job = await started(pages, agreed(await previewed(pages, f"{query}&tenant=acme")))
    shown = (await pages.get(f"{job['undo']['link']}&format=json")).json
    looked_at = states(pages)

    undo = await started(pages, agreed(shown))

    assert (shown["count"], shown["undoes"], len(shown["sample"])) == (MANY, job["job"]["number"], 20)
    newest = [format_time(at(60 + n)) for n in range(MANY - 20, MANY)]
    assert [each["becomesDueAt"] for each in shown["sample"]] == newest
    assert looked_at == left
    assert undo["job"]["subject"] == f"job {job['job']['number']}"
    assert due_times(pages) == before
    assert states(pages) == {"Scheduled": MANY + 1}
    assert sum(outcomes(undo).values()) == MANY


async def test_what_has_happened_since_stands(pages: Pages) -> None:
    job = await started(pages, agreed(await previewed(pages)))
    await pages.have(schedule("n-000", 9_000), schedule("n-001", 61))
    await pages.post("cancel", {"tenant": "acme", "id": "n-001"})  # As before by its words, not by its story.

    undo = await undone(pages, job)

    assert outcomes(undo) == {"scheduled": MANY - 2}
    assert pages.site.store.timers[ACME, call("n-000")].due_at == at(9_000)
    assert pages.site.store.timers[ACME, call("n-001")].state is TimerState.CANCELLED
    again = (await pages.get(f"{job['undo']['link']}&format=json")).json
    assert (await pages.post("bulk-start", agreed(again))).status == 409


async def test_a_moved_set_can_be_moved_back_and_forth(pages: Pages) -> None:
    before = due_times(pages)
    moved = await started(pages, agreed(await previewed(pages, "action=move&by=1h&tenant=acme")))
    then = due_times(pages)
    undo = await undone(pages, moved)
    first = due_times(pages)

    await undone(pages, undo)

    assert (first, due_times(pages)) == (before, then)


async def test_a_job_that_runs_or_is_of_others_or_did_nothing_is_not_undone(pages: Pages) -> None:
    closed = await Pages({"page_key": "k" * 40}, site=pages.site, audit=pages.audit).open()
    globex = await closed.add_key("tmr_globex_x", GLOBEX, *SCOPES_OF[Role.ADMIN])
    operator = await closed.add_key("tmr_operator_x", ALL, *SCOPES_OF[Role.OPERATOR])
    shown = await previewed(pages)
    await pages.post("bulk-start", agreed(shown))
    [running] = pages.bulk.under_way()
    link = f"bulk?action=undo&job={running.number}"
    while_it_runs = await pages.get(link)
    async with asyncio.timeout(PATIENCE_S):
        await running.over.wait()
    form = agreed((await pages.get(f"{link}&format=json")).json)

    replies = [
        while_it_runs,
        await closed.get(link, authorization=globex),
        await closed.post("bulk-start", form, authorization=globex),
        await closed.post("bulk-start", form, authorization=operator),
        await pages.get("bulk?action=undo&job=999"),
        await pages.get("bulk?action=undo&job=x"),
    ]

    assert [reply.status for reply in replies] == [409, 404, 404, 403, 404, 404]
    assert states(pages)["Cancelled"] == MANY


async def test_the_screens_lead_to_it(pages: Pages) -> None:
    job = await started(pages, agreed(await previewed(pages)))
    link = job["undo"]["link"].replace("&", "&amp;")

    screen = (await pages.get(f"job?n={job['job']['number']}")).body.decode()
    activity = (await pages.get("activity")).body.decode()

    assert f'href="{link}"' in screen
    assert f'href="{link}"' in activity
