"""One change to many timers: what is agreed to is done, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.support.pages import ALL, Courtesy, Notebook, Pages
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at, call, schedule
from timer_client.wire import format_time
from timer_service.adapters.http.pages.screens.bulk import MAX_BY_OPERATOR
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role
from timer_service.bulk import BATCH, MAX_TIMERS, SMALL_BATCH
from timer_service.domain.errors import StoreBusy
from timer_service.domain.timer import TimerState
from timer_service.ports.audit import Action
from timer_service.ports.timer_insight import TimerFilter

HOSTILE = "<script>alert(1)</script>\u202e/%2F+#"
MANY = 6 * BATCH


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    """An open page over many timers of acme and two of globex."""
    opened = await Pages(right_of_way=Courtesy()).open()
    await opened.have(*(schedule(f"n-{n:03}", 60 + n) for n in range(MANY)))
    await opened.have(schedule("other", tenant=GLOBEX), schedule(HOSTILE, 3_600, tenant=GLOBEX))
    async with opened.bulk.running():
        yield opened


async def previewed(pages: Pages, query: str = "action=cancel&tenant=acme", **more: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await pages.get(f"bulk?{query}&format=json", more)).json
    return shown


def agreed(shown: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the form of a preview, filled in by somebody who has read it."""
    form = {**shown["filter"], "action": shown["action"], "by": shown["by"], "as_of": shown["asOf"]}
    count = shown["count"]
    return {**form, "count": count, "confirm": f"{count:,}", "reason": "a <b>test</b>", **more}


async def started(pages: Pages, form: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Begin a job, wait for its end, and return what its screen shows then."""
    reply = await pages.post("bulk-start", form, headers)
    assert reply.status == 303, reply.body
    number = parse_qs(urlsplit(reply.headers["location"]).query)["n"][0]
    job = pages.bulk.find(int(number))
    assert job is not None
    async with asyncio.timeout(PATIENCE_S):
        await job.over.wait()
    shown: dict[str, Any] = (await pages.get(f"job?n={number}&format=json", headers)).json
    return shown


def outcomes(shown: dict[str, Any]) -> dict[str, int]:
    return {each["outcome"]: each["count"] for each in shown["job"]["outcomes"]}


def states(pages: Pages) -> dict[str, int]:
    found = [timer.state.value for timer in pages.site.store.timers.values()]
    return {state: found.count(state) for state in sorted(set(found))}


async def test_what_a_filter_matches_is_cancelled_in_batches_and_noted_as_it_was(pages: Pages) -> None:
    shown = await previewed(pages)
    before = states(pages)

    job = await started(pages, agreed(shown))

    assert (shown["count"], len(shown["sample"]), before) == (MANY, 20, {"Scheduled": MANY + 2})
    assert job["texts"]["state"] == "finished"
    assert outcomes(job) == {"cancelled": MANY}
    assert states(pages) == {"Cancelled": MANY, "Scheduled": 2}
    newest = job["actions"][0]
    assert (newest["before"], newest["outcome"]) == (
        f"Scheduled, due {format_time(at(60 + MANY - 1))}, generation 1",
        "cancelled",
    )
    assert newest["undoDue"] == format_time(at(60 + MANY - 1))
    [begun] = (await pages.get("activity?format=json")).json["actions"]
    assert (begun["action"], begun["outcome"]) == ("bulk cancel", f"begun with {MANY}")
    page = (await pages.get(f"job?n={begun['number']}")).body.decode()
    assert "a <b>test" not in page
    older = await pages.audit.page(None, None, MANY + 10, begun["number"])
    assert len(older) == MANY + 1


async def test_due_times_are_moved_by_a_span_and_timers_are_fired_now(pages: Pages) -> None:
    moved = await started(pages, agreed(await previewed(pages, "action=move&by=-30s&tenant=acme")))
    fired = await started(pages, agreed(await previewed(pages, "action=fire&tenant=globex")))

    due = [pages.site.store.timers[ACME, call(f"n-{n:03}")].due_at for n in range(MANY)]
    assert due == [at(30 + n) for n in range(MANY)]
    assert outcomes(moved) == {"rescheduled": MANY}
    assert outcomes(fired) == {"rescheduled": 2}
    assert pages.site.store.timers[GLOBEX, call("other")].due_at == at(0)
    assert pages.site.woken[-1] == at(0)


async def test_what_changes_between_look_and_deed_is_left_alone_or_asked_about(pages: Pages) -> None:
    shown = await previewed(pages)
    pages.site.clock.advance(1)
    await pages.have(schedule("new", 70))  # Registered since: not among them.
    await pages.post("cancel", {"tenant": "acme", "id": "n-000"})  # Gone since: fewer is fine.

    job = await started(pages, agreed(shown))

    assert job["job"]["total"] == MANY - 1
    assert pages.site.store.timers[ACME, call("new")].state is TimerState.SCHEDULED
    globex = await previewed(pages, "action=cancel&tenant=globex&to=" + quote(format_time(at(120))))
    assert globex["count"] == 1
    await pages.post("move", {"tenant": "globex", "id": HOSTILE, "due": format_time(at(90))})  # Moved in.
    asked = await pages.post("bulk-start?format=json", agreed(globex))
    assert (asked.status, asked.json["count"]) == (400, 2)
    assert "More timers match" in asked.json["problem"]


async def test_a_timer_that_changes_while_the_job_runs_says_so(pages: Pages) -> None:
    shown = await previewed(pages)
    late = [f"n-{n:03}" for n in range(MANY - 20, MANY)]

    reply = await pages.post("bulk-start", agreed(shown))
    job = pages.bulk.under_way()[0]
    await pages.have(*(schedule(name, 9_000) for name in late))
    async with asyncio.timeout(PATIENCE_S):
        await job.over.wait()

    assert reply.status == 303
    assert job.outcomes == {"cancelled": MANY - 20, "changed": 20}
    assert pages.site.store.timers[ACME, call(late[0])].due_at == at(9_000)


async def test_a_job_is_stopped_after_its_batch_and_outlived_by_its_notes(pages: Pages) -> None:
    await pages.post("bulk-start", agreed(await previewed(pages)))
    job = pages.bulk.under_way()[0]
    second = await pages.post("bulk-start", agreed(await previewed(pages)))
    listed = (await pages.get("timers")).body.decode()
    await pages.post("job-stop", {"n": job.number})
    async with asyncio.timeout(PATIENCE_S):
        await job.over.wait()

    assert second.status == 409
    assert f'href="job?n={job.number}"' in listed
    assert states(pages).get("Cancelled", 0) == job.done < MANY
    assert (await pages.post("job-stop", {"n": job.number})).status == 409
    restarted = await Pages(site=pages.site, audit=pages.audit).open()
    shown = (await restarted.get(f"job?n={job.number}&format=json")).json
    assert (shown["texts"]["state"], shown["job"]["total"]) == ("stopped", MANY)
    assert sum(outcomes(shown).values()) == job.done


async def test_a_service_that_stops_ends_its_jobs_and_one_that_dies_leaves_what_is_known(
    pages: Pages,
) -> None:
    async with pages.bulk.running():
        await pages.post("bulk-start", agreed(await previewed(pages)))
        job = pages.bulk.under_way()[0]
    restarted = await Pages(site=pages.site, audit=pages.audit).open()
    ended = (await restarted.get(f"job?n={job.number}&format=json")).json
    begun = Action(at(0), "kim", "admin", "bulk cancel", ACME, "timers?tenant=acme", "", "begun with 9")
    number = await pages.audit.record(begun)
    done = replace(begun, action="cancel", outcome="cancelled", job=number)
    await pages.audit.record(done, done)
    died = (await restarted.get(f"job?n={number}&format=json")).json

    assert ended["texts"]["state"] == "interrupted"
    assert died["texts"]["state"] == "unknown"
    assert (died["job"]["total"], outcomes(died)) == (9, {"cancelled": 2})


async def test_a_job_waits_for_a_busy_store_and_for_its_notes(pages: Pages) -> None:
    pages.audit.failures = [StoreBusy("locked")]
    refused = await pages.post("bulk-start", agreed(await previewed(pages)))
    pages.audit.failures = [None, StoreBusy("locked"), StoreBusy("locked")]

    job = await started(pages, agreed(await previewed(pages)))

    assert refused.status == 503
    assert outcomes(job) == {"cancelled": MANY}


async def test_more_than_a_hundred_are_for_admins_who_type_their_number(pages: Pages) -> None:
    closed = await Pages({"page_key": "k" * 40}, site=pages.site).open()
    operator = await closed.add_key("tmr_operator_x", ALL, *SCOPES_OF[Role.OPERATOR])
    admin = await closed.add_key("tmr_admin_x", ALL, *SCOPES_OF[Role.ADMIN])
    shown = await previewed(closed, authorization=admin)
    few = await previewed(closed, "tenant=globex", authorization=operator)

    async def status(form: dict[str, Any], who: str) -> int:
        return (await closed.post("bulk-start?format=json", form, authorization=who)).status

    assert shown["count"] > MAX_BY_OPERATOR
    assert await status(agreed(shown), operator) == 403
    assert [await status(agreed(shown, confirm=text), admin) for text in ("", "all", "1")] == [400] * 3
    assert await status(agreed(shown, reason=" "), admin) == 400
    assert await status(agreed(shown, count=MAX_TIMERS + 1), admin) == 400
    assert states(pages) == {"Scheduled": MANY + 2}
    async with closed.bulk.running():
        job = await started(closed, agreed(few), authorization=operator)
    assert outcomes(job) == {"cancelled": 2}
    actions = (await closed.get("activity?format=json", authorization=admin)).json["actions"]
    assert [each["outcome"] for each in actions] == ["begun with 2", "refused"]


async def test_a_job_reaches_no_other_tenant(pages: Pages) -> None:
    closed = await Pages({"page_key": "k" * 40}, site=pages.site).open()
    acme = await closed.add_key("tmr_acme_x", ACME, *SCOPES_OF[Role.ADMIN])
    root = await closed.add_key("tmr_root_x", ALL, *SCOPES_OF[Role.ADMIN])
    pick = next(each for each in (await closed.get("timers?format=json", authorization=root)).json["timers"])
    theirs = f"{pick['version']} globex other"

    own = await previewed(closed, "action=cancel", authorization=acme)
    replies = [
        await closed.get("bulk?tenant=globex", authorization=acme),
        await closed.post("bulk", {"pick": theirs}, authorization=acme),
        await closed.post("bulk-start", {**agreed(own), "tenant": "globex"}, authorization=acme),
        await closed.post("bulk-start", {**agreed(own), "pick": theirs}, authorization=acme),
    ]
    async with closed.bulk.running():
        of_all = await started(
            closed, agreed(await previewed(closed, "action=cancel", authorization=root)), authorization=root
        )
        number = of_all["job"]["number"]
        replies += [
            await closed.get(f"job?n={number}", authorization=acme),
            await closed.get(f"job-live?n={number}", authorization=acme),
            await closed.post("job-stop", {"n": number}, authorization=acme),
        ]

    assert own["count"] == MANY
    assert [reply.status for reply in replies] == [404] * 7
    assert of_all["job"]["total"] == MANY + 2


async def test_those_that_were_selected_are_changed_as_they_were_seen(pages: Pages) -> None:
    listed = (await pages.get("timers?tenant=globex&format=json")).json["timers"]
    picks = [f"{each['version']} globex {quote(each['serviceCallId'])}" for each in listed]
    await pages.post("move", {"tenant": "globex", "id": "other", "due": format_time(at(90))})

    shown = await pages.post("bulk?format=json", {"action": "cancel", "pick": picks})
    page = (await pages.post("bulk", {"action": "cancel", "pick": picks})).body.decode()
    job = await started(pages, {**agreed(shown.json), "pick": picks})

    assert shown.json["count"] == 1  # The other one has changed since it was selected.
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert outcomes(job) == {"cancelled": 1}
    assert pages.site.store.timers[GLOBEX, call(HOSTILE)].state is TimerState.CANCELLED


@pytest.mark.parametrize(
    "query",
    ["action=delete", "state=Reached", "action=move&by=soon", "action=move&by=99999d", "from=later"],
)
async def test_what_is_not_understood_is_said(query: str, pages: Pages) -> None:
    reply = await pages.get(f"bulk?{query}")

    assert reply.status == 400


async def test_a_move_beyond_the_last_year_is_an_outcome_of_that_timer_only(pages: Pages) -> None:
    far = {"tenant": "globex", "id": "other", "due": "9999-12-30T00:00:00Z"}
    await pages.post("move", far)

    job = await started(pages, agreed(await previewed(pages, "action=move&by=9d&tenant=globex")))

    assert outcomes(job) == {"out_of_range": 1, "rescheduled": 1}
    assert pages.site.store.timers[GLOBEX, call(HOSTILE)].due_at == at(3_600) + timedelta(days=9)


async def test_a_batch_waits_for_what_is_being_fired(pages: Pages) -> None:
    await pages.post("bulk-start", agreed(await previewed(pages)))
    [job] = pages.bulk.under_way()

    with pages.right_of_way.taken():
        for _ in range(20):
            await asyncio.sleep(0)
        pending = await pages.site.store.insight.count(TimerFilter(frozenset({ACME})), MANY + 1)

    async with asyncio.timeout(PATIENCE_S):
        await job.over.wait()
    assert (pending, job.done) == (MANY, MANY)


class Counted(Notebook):
    """A table of actions that knows how many came together."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []

    async def record(self, *actions: Action) -> int:
        self.together.append(len(actions))
        return await super().record(*actions)


@pytest.mark.parametrize(("quiet_s", "size"), [(0.0, BATCH), (PATIENCE_S, SMALL_BATCH)])
async def test_batches_are_small_while_timers_fire(quiet_s: float, size: int) -> None:
    notes, way = Counted(), Courtesy(quiet_s)
    pages = await Pages(right_of_way=way, audit=notes).open()
    await pages.have(*(schedule(f"n-{n:03}", 60 + n) for n in range(2 * BATCH)))
    with way.taken():
        pass

    async with pages.bulk.running():
        await started(pages, agreed(await previewed(pages)))

    assert notes.together == [1, *[size] * (2 * BATCH // size), 1]
