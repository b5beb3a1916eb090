"""What the screens show and do; the browser tests see the same with a browser's eyes."""

import asyncio
import contextlib
import html
import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

from tests.contract.test_delivery_store import ask, attempt, fire
from tests.support.documents import ROOT
from tests.support.explanations import MemoryLetterBox
from tests.support.pages import FORM, HOST, SAME_ORIGIN, Courtesy, Pages, addresses
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at, call, schedule
from tests.unit.test_page_refused import letter
from timer_client.wire import format_time
from timer_service.adapters.http.pages.figures import FiguresDesk
from timer_service.adapters.http.pages.live import MAX_STREAMS, Live
from timer_service.adapters.http.pages.refused_today import Refused, RefusedToday
from timer_service.adapters.http.pages.screens.now import HEADINGS, OTHERWISE
from timer_service.adapters.http.pages.visit import PageError
from timer_service.domain.delivery import Answered, CallResult, Trouble, Unreachable, describe
from timer_service.domain.errors import RightMissing
from timer_service.domain.messages import ServiceCallId
from timer_service.domain.timer import TimerState
from timer_service.ports.health import Health
from timer_service.right_of_way import RightOfWay
from timer_service.testing import START
from timer_service.waiting import owned

HOSTILE = ("<script>alert(1)</script>", "a\"b'c", "/../%2F+#?&x=1", "rtl\u202eevil", "{{7*7}}", "日本-ü")
STRANGE = (
    *("", " ", "\x00", "\ud800", "-1", "0", "9" * 40, "1--100000000", "1e999", "NaN", "٣", "null", "[]"),
    *(
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "10000-01-01",
        "2026-02-30T00:00Z",
        "T",
        "a" * 5_000,
    ),
    *(
        "2026-01-01T12:00:00.000Z acme",
        "2026-01-01T12:00:00.000Z acme x",
        "../../etc/passwd",
        "json",
        "undo",
        "move",
    ),
)
SCREENS = (
    "",
    "timers",
    "timers?state=Reached",
    "timers?state=Cancelled",
    "tenants",
    "system",
    "dev",
    "login",
)


@pytest.fixture
async def pages() -> Pages:
    """An open page over timers with ids that people were not expected to choose."""
    opened = await Pages(is_dev=True).open()
    commands = [schedule(name, 60 + 60 * nth, correlation=name) for nth, name in enumerate(HOSTILE)]
    await opened.have(*commands, schedule("b", tenant=GLOBEX))
    return opened


async def test_every_address_is_relative_and_none_leads_away(pages: Pages) -> None:
    seen = set[str]()
    for path in (*SCREENS, "timer?tenant=globex&id=b", "nothing", "find?id=b%20c"):
        reply = await pages.get(path)
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        seen |= {unescape(address) for address in addresses(reply.body.decode())}

    assert "timers" in seen
    assert {address for address in seen if re.match(r"/|[a-z]+:|\.\./", address)} == set()
    known = {path for _, path in pages.app.routes}
    for address in seen - {"./", "#main"}:
        path = urlsplit(address).path
        assert path in known or path == "./" or path.startswith("static/"), address


async def test_hostile_ids_are_text_and_their_links_lead_to_them(pages: Pages) -> None:
    listed = (await pages.get("timers?tenant=acme")).body.decode()
    links = [unescape(link) for link in addresses(listed) if link.startswith("timer?")]

    assert "<script>alert" not in listed
    assert "\u202e" not in listed
    assert r"rtl\u202eevil" in listed
    assert [parse_qs(urlsplit(link).query)["id"] for link in links] == [[name] for name in HOSTILE]
    for link, name in zip(links, HOSTILE, strict=True):
        shown = await pages.get(f"{link}&format=json")
        assert shown.json["timer"]["serviceCallId"] == name
        page = (await pages.get(link)).body.decode()
        assert "<script>alert" not in page
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", page)


async def test_every_screen_is_json_too(pages: Pages) -> None:
    for path in SCREENS:
        reply = await pages.get(path + ("&" if "?" in path else "?") + "format=json")
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert isinstance(reply.json, dict)


async def test_what_is_wrong_names_the_heading_that_helps(pages: Pages) -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text("utf-8").splitlines()
    assert {*HEADINGS.values(), OTHERWISE} <= {line.removeprefix("### ") for line in runbook}
    troubled = await Pages(health=Health(None, {"broker": "gone <b>away</b>"}, {"odd": "look"})).open()

    shown = (await troubled.get("?format=json")).json["problems"]
    page = (await troubled.get()).body.decode()

    assert [each["anchor"] for each in shown] == [
        "docs/runbook.md#timerbrokerdisconnected",
        "docs/runbook.md#it-starts-but-is-not-ready",
    ]
    assert "<b>away" not in page


async def test_what_was_refused_today_is_counted_by_reason_and_within_ones_tenants() -> None:
    midnight = at(0).replace(hour=0)
    since: dict[str, Any] = {"received_at": midnight}
    letters = [letter(1, **since), letter(2, reason="not_json", tenant_id=GLOBEX, **since)]
    box = MemoryLetterBox(*letters, letter(3, received_at=midnight - timedelta(seconds=1)))
    today = RefusedToday(box, lambda: 0.0)

    assert await today.count(None, midnight) == Refused({"invalid": 1, "not_json": 1})
    assert await today.count(frozenset({GLOBEX}), midnight) == Refused({"not_json": 1})
    assert (
        await RefusedToday(MemoryLetterBox(error=RightMissing("x")), lambda: 0.0).count(None, midnight)
        is None
    )


async def test_now_shows_what_somebody_looks_for_first(pages: Pages) -> None:
    await pages.have(*(schedule(f"due-{n}", 60 * n) for n in range(1, 13)))
    await pages.have(*(schedule(f"fired-{n}", 0) for n in range(12)))
    store = pages.site.store
    async with store.claim_due(at(0), 50) as claim:
        await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])
    pages.health = Health(None, {"broker": "it is away"})

    told = (await pages.get("?format=json")).json
    page = (await pages.get()).body.decode()

    assert [len(told[name]) for name in ("nextDue", "lastFired", "problems")] == [10, 10, 1]
    assert set(told["history"]) == {"pending", "commandsPerS", "firedPerS", "lateP50", "lateP99"}
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == [
        "What to look at",
        *("Pending", "Overdue", "Oldest overdue", "Refused today"),
        *("Received per second", "Fired per second", "Lateness, p50", "Lateness, p99"),
        *("Due in the next hour", "Next due", "Last fired"),
    ]


async def test_ids_that_begin_so_are_found_in_every_tenant_that_one_may_see(pages: Pages) -> None:
    await pages.have(schedule("order-7"), schedule("order-8", tenant=GLOBEX))

    shown = (await pages.get("find?id=order-&format=json")).json["similar"]

    assert [each["serviceCallId"] for each in shown] == ["order-7", "order-8"]


@pytest.mark.parametrize("result", [Answered(500), Unreachable(Trouble.DNS, "no such host")])
async def test_a_failed_attempt_is_shown_whatever_it_failed_with(result: CallResult, pages: Pages) -> None:
    await ask(pages.site.store, "called")
    await fire(pages.site.store)
    await attempt(pages.site.store, result, "called")

    shown = await pages.get("timer?tenant=acme&id=called", cookie="zone=Europe/Berlin")
    told = await pages.get("timer?tenant=acme&id=called&format=json")

    assert shown.status == 200
    text = shown.body.decode()
    [failed] = re.findall(r"<caption>Attempts that failed.*?<tbody>(.*?)</tbody>", text, re.DOTALL)
    assert "2026-01-01 13:00:00.000 CET (Europe/Berlin)" in failed
    assert html.escape(describe(result) or "") in failed
    [attempted] = told.json["callback"]["attempts"]
    assert attempted | {"status": 0} == {
        "number": 1,
        "startedAt": "2026-01-01T12:00:00.000Z",
        "durationMs": 7,
        "status": 0,
        "error": describe(result),
    }


async def test_what_is_done_to_the_clock_and_in_dev_is_noted(pages: Pages) -> None:
    await pages.post("accept-clock-step")
    await pages.post("schedule", {"tenant": "acme", "id": "tried", "delay": "5"})

    noted = (await pages.get("activity?format=json")).json["actions"]

    assert [each["action"] for each in noted] == ["schedule", "accept clock step"]


async def test_a_list_is_read_to_its_end_and_back(pages: Pages) -> None:
    await pages.have(*(schedule(f"n-{n:03}", 5_000 + n // 3) for n in range(120)))
    whole, path = list[str](), "timers?tenant=acme&format=json"
    back = None
    while path:
        shown = (await pages.get(path)).json
        whole += [timer["serviceCallId"] for timer in shown["timers"]]
        back = shown.get("previous", back)
        path = shown["next"] + "&format=json" if "next" in shown else ""

    assert whole == [*HOSTILE, *(f"n-{n:03}" for n in range(120))]
    assert back is not None
    before = (await pages.get(f"{back}&format=json")).json
    assert [timer["serviceCallId"] for timer in before["timers"]] == whole[50:100]
    assert "next" in before


async def test_actions_answer_with_the_word_of_the_api(pages: Pages) -> None:
    key = {"tenant": "acme", "id": HOSTILE[0]}
    version = (await pages.get(_timer(key) + "&format=json")).json["version"]

    words = [
        await _done(pages, "move", {**key, "due": format_time(at(90)), "version": version}),
        await _done(pages, "move", {**key, "due": format_time(at(95)), "version": version}),
        await _done(pages, "cancel", key),
        await _done(pages, "cancel", key),
        await _done(pages, "move", {**key, "due": format_time(at(99))}),
    ]
    timer = pages.site.store.timers[ACME, ServiceCallId(HOSTILE[0])]

    assert words == ["rescheduled", "changed", "cancelled", "already_cancelled", "scheduled"]
    assert (timer.state, timer.due_at, timer.correlation_id) == (TimerState.SCHEDULED, at(99), HOSTILE[0])
    assert await _done(pages, "fire", key) == "rescheduled"
    assert pages.site.store.timers[ACME, ServiceCallId(HOSTILE[0])].due_at == START
    assert pages.site.woken[-1] == START


async def test_a_wall_clock_time_is_read_in_the_zone_that_is_shown_and_never_guessed(pages: Pages) -> None:
    key = {"tenant": "globex", "id": "b"}
    zone = {"cookie": "zone=Europe/Berlin"}

    summer = await pages.post("move", {**key, "due": "2030-07-01T12:00"}, zone)
    twice = await pages.post("move", {**key, "due": "2030-10-27T02:30"}, zone)
    never = await pages.post("move", {**key, "due": "2030-03-31T02:30"}, zone)
    wrong = [await pages.post("move", {**key, "due": due}) for due in ("", "tomorrow", "0000-01-01T00:00Z")]
    shown = (await pages.get("timer?tenant=globex&id=b", zone)).body.decode()

    assert (summer.status, twice.status, never.status) == (303, 400, 400)
    assert "2030-10-27T00:30:00Z or 2030-10-27T01:30:00Z" in twice.body.decode()
    assert [reply.status for reply in wrong] == [400, 400, 400]
    assert (
        format_time(pages.site.store.timers[GLOBEX, call("b")].due_at or START) == "2030-07-01T10:00:00.000Z"
    )
    assert "2030-07-01 12:00:00.000 CEST (Europe/Berlin)" in shown


async def test_what_somebody_chooses_is_kept_and_leads_back_to_the_page_only(pages: Pages) -> None:
    reply = await pages.post("look", {"theme": "dark", "zone": "UTC", "next": "timers?tenant=acme"})
    away = await pages.post("look", {"theme": "dark", "next": "https://evil.example"})
    slash = await pages.post("look", {"theme": "dark", "next": "//evil.example"})
    dark = (await pages.get("", cookie="theme=dark; zone=nowhere")).body.decode()

    assert (reply.headers["location"], away.headers["location"]) == ("timers?tenant=acme", "./")
    assert slash.headers["location"] == "./"
    assert 'data-theme="dark"' in dark
    assert (await pages.post("look", {"zone": "Nowhere/Else"})).status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("timers?state=Done", 400),
        ("timers?after=x", 400),
        ("timers?after=2030-01-01T00:00:00Z+acme+a&before=2030-01-01T00:00:00Z+acme+a", 400),
        ("timers?from=yesterday", 400),
        ("timers?tenant=a.b", 404),
        ("timers?correlation=%00", 400),
        ("timers?q=%ff", 400),
        ("find?id=%20", 400),
        ("find?id=none", 404),
        ("timer?tenant=acme&id=none", 404),
        ("timer", 404),
        ("tenants?after=%3C", 404),
        ("nothing", 404),
        ("timers?x=" + "y" * 9_000, 414),
    ],
)
async def test_what_is_not_understood_is_said(pages: Pages, path: str, status: int) -> None:
    assert (await pages.get(path)).status == status


async def test_one_id_of_one_tenant_is_found_at_once(pages: Pages) -> None:
    reply = await pages.get("find?id=b")

    assert (reply.status, reply.headers["location"]) == (303, "timer?tenant=globex&id=b")


async def test_streams_carry_what_changed_and_end_at_once(pages: Pages) -> None:
    parts, clock = pages.parts, pages.site.clock
    insight = parts.opened.store.insight
    desk = FiguresDesk(parts.timers, insight, parts.health, dict, clock.now, lambda: clock.elapsed_s)
    live = Live(desk, lambda: 0.5, RightOfWay())
    sent: list[bytes] = []
    enough = asyncio.Event()

    async def send(chunk: bytes) -> None:
        sent.append(chunk)
        if len(sent) == 2:
            enough.set()

    async with asyncio.TaskGroup() as tasks, live.running():
        watching = tasks.create_task(_run(live.stream(None).run(send)))
        await enough.wait()
    assert watching.done()
    assert sent[0] == b"retry: 3000\n\n"
    assert b'"pending": "7"' in sent[1]
    assert not re.search(rb"[<>]", b"".join(sent))


async def test_streams_are_written_to_one_after_the_other_when_nothing_is_being_fired(pages: Pages) -> None:
    parts, clock, way = pages.parts, pages.site.clock, Courtesy()
    insight = parts.opened.store.insight
    desk = FiguresDesk(parts.timers, insight, parts.health, dict, clock.now, lambda: clock.elapsed_s)
    live = Live(desk, lambda: 0.5, way)
    told: list[int] = []
    all_told = asyncio.Event()

    async def watch(number: int) -> None:
        async def send(chunk: bytes) -> None:
            if chunk.startswith(b"data:"):
                told.append(number)
                if len(told) == 1:
                    urgent.enter_context(way.taken())
                if len(told) == 3:
                    all_told.set()

        await _run(live.stream(None).run(send))

    with contextlib.ExitStack() as urgent:
        async with asyncio.TaskGroup() as tasks, live.running():
            for number in range(3):
                tasks.create_task(watch(number))
            for _ in range(MANY_TURNS):
                await asyncio.sleep(0)
            told_meanwhile = [*told]
            urgent.close()
            async with asyncio.timeout(PATIENCE_S):
                await all_told.wait()

    assert told_meanwhile == [0]
    assert told == [0, 1, 2]


async def test_no_proxy_holds_a_stream_back() -> None:
    pages = await Pages().open()
    sent: list[dict[str, Any]] = []
    begun = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message.get("body"):
            begun.set()

    async def receive() -> dict[str, Any]:
        await begun.wait()
        return {"type": "http.disconnect"}

    raw = [(b"host", HOST.encode()), (b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": "GET", "path": "/ui/live", "query_string": b"", "headers": raw}
    async with asyncio.timeout(PATIENCE_S):
        await pages.app(scope | {"client": ("127.0.0.1", 1)}, receive, send)

    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream"
    assert headers[b"x-accel-buffering"] == b"no"
    assert b"no-store" in headers[b"cache-control"]
    # As soon as it is written, and not when a compressor has enough of it.
    assert not headers.keys() & {b"content-encoding", b"content-length"}
    assert sent[1]["body"].startswith(b"retry: ")


async def test_too_many_streams_are_refused(pages: Pages) -> None:
    parts, clock = pages.parts, pages.site.clock
    live = Live(
        FiguresDesk(parts.timers, parts.opened.store.insight, parts.health, dict, clock.now, lambda: 0.0),
        lambda: 0.5,
        RightOfWay(),
    )

    async def send(_: bytes) -> None:
        pass

    async with asyncio.TaskGroup() as tasks, live.running():
        for _ in range(MAX_STREAMS):
            tasks.create_task(_run(live.stream(None).run(send)))
        await asyncio.sleep(0)
        with pytest.raises(PageError) as refused:
            live.stream(None)
    assert refused.value.status == 503


async def _run(stream: Any) -> None:
    await stream


def _timer(key: dict[str, str]) -> str:
    return "timer?" + "&".join(f"{name}={_quoted(value)}" for name, value in key.items())


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


async def _done(pages: Pages, to: str, form: dict[str, str]) -> str:
    reply = await pages.post(to, form)
    assert reply.status == 303, reply.body
    return parse_qs(urlsplit(reply.headers["location"]).query)["done"][0]


MANY_TURNS = 1_000


async def test_while_a_long_list_is_written_other_work_goes_on() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    took = []
    for count in (1, 50):
        pages = await Pages().open()
        await pages.have(*(schedule(f"order-{n}", 60 + n) for n in range(count)))
        async with owned(others()):
            await pages.get("timers")  # Templates are read.
            before = turns
            await pages.get("timers")
            took.append(turns - before)

    # A turn for every few rows, and not one for the whole list; how many rows depends on the machine.
    assert took[1] - took[0] >= 2


async def test_a_page_is_written_when_nothing_is_being_fired() -> None:
    pages = await Pages(right_of_way=Courtesy()).open()

    with pages.right_of_way.taken():
        visit = asyncio.ensure_future(pages.get("timers"))
        for _ in range(MANY_TURNS):
            await asyncio.sleep(0)
        was_waiting = not visit.done()

    assert was_waiting
    assert (await visit).status == 200


async def test_a_page_does_not_wait_forever_for_what_is_being_fired() -> None:
    pages = await Pages().open()

    with pages.right_of_way.taken():
        async with asyncio.timeout(PATIENCE_S):
            assert (await pages.get("timers")).status == 200


PARAMETERS = (
    *("id", "tenant", "state", "from", "to", "correlation", "after", "before", "format", "done"),
    *("n", "fix", "reason", "field", "span", "action", "by", "job"),
)


@pytest.mark.parametrize("text", [*STRANGE, *HOSTILE], ids=repr)
async def test_no_parameter_of_any_screen_is_more_than_text(text: str) -> None:
    pages = await Pages(is_dev=True).open()
    await pages.have(schedule("order-1"))
    screens = [path for method, path in pages.app.routes if method == "GET" and not path.endswith("live")]

    statuses = {
        (screen, name): (
            await pages.get(f"{screen}?{urlencode({name: text}, errors='surrogatepass')}")
        ).status
        for screen in screens
        for name in PARAMETERS
    }

    assert {place: status for place, status in statuses.items() if status >= 500} == {}


async def test_an_id_among_the_filters_is_looked_up_within_the_tenant(pages: Pages) -> None:
    there = await pages.get(f"timers?id={quote(HOSTILE[0])}&tenant=acme")
    found = await pages.get(there.headers["location"])
    foreign = await pages.get(f"find?id={quote(HOSTILE[0])}&tenant=globex")

    assert there.status == 303
    assert found.headers["location"].startswith("timer?tenant=acme")
    assert foreign.status == 404


async def test_every_screen_shows_the_command_and_leads_to_its_json(pages: Pages) -> None:
    of_one = ("find?id=none", "timer?tenant=globex&id=b", "timer?tenant=globex&id=none")
    for screen in ("", "timers", "load", "refused", "activity", "tenants", "system", "dev", *of_one):
        page = (await pages.get(screen)).body.decode()

        assert re.search(r'<code id="command">(timer-service|curl) ', page), screen
        assert "format=json" in page, screen


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "find?id=order-1"),
        ("GET", "timers?id=order-1&tenant=acme"),
        ("POST", "cancel"),
        ("POST", "fire"),
    ],
)
async def test_who_asks_for_json_is_led_to_json(method: str, path: str, pages: Pages) -> None:
    await pages.have(schedule("order-1"))
    mark = "&" if "?" in path else "?"
    form = b"tenant=acme&id=order-1"

    reply = await pages.ask(method, f"{path}{mark}format=json", form, {**FORM, **SAME_ORIGIN})
    while reply.status == 303:
        reply = await pages.get(reply.headers["location"])

    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status"),
    [("timers?state=Odd", 400), ("letter?n=7", 404), ("nowhere?", 404), ("load?span=year", 400)],
)
async def test_what_is_refused_is_json_for_who_asks_for_json(path: str, status: int, pages: Pages) -> None:
    reply = await pages.get(f"{path}&format=json")

    assert (reply.status, reply.json["status"]) == (status, status)
    assert reply.json["text"]
