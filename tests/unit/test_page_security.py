"""Who sees and does what on the page; everything else is denied."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.explanations import MemoryLetterBox
from tests.support.pages import ALL, FORM, Pages
from tests.support.timers import ACME, GLOBEX, call, schedule
from tests.unit.test_page_refused import letter, message
from timer_service.adapters.http.auth import WRONG_KEYS_PER_MINUTE
from timer_service.adapters.http.pages import app as pages_app
from timer_service.adapters.http.pages.people import IDLE, LOGINS_PER_MINUTE, SESSION
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role
from timer_service.config import load_settings
from timer_service.domain.errors import InvalidConfiguration
from timer_service.ports.health import Health
from timer_service.wiring.page import page

PAGE_KEY = "k" * 40
FOLDER = Path(pages_app.__file__).parent
OPEN_TO_ALL = {("GET", "login"), ("POST", "login"), ("POST", "logout"), ("POST", "look")}


@pytest.fixture
async def closed() -> Pages:
    """A page that asks for a key, over timers of two tenants."""
    pages = await Pages({"page_host": "192.0.2.1", "page_key": PAGE_KEY}, is_dev=True).open()
    await pages.have(schedule("a"), schedule("b", tenant=GLOBEX))
    return pages


async def test_every_route_is_open_to_those_who_are_named_for_it_and_to_no_one_else(closed: Pages) -> None:
    visitors = {
        (role, tenant): await closed.add_key(f"tmr_{role}{tenant.strip('*')}_x", tenant, *SCOPES_OF[role])
        for role in Role
        for tenant in (ALL, ACME)
    }
    for (method, path), route in closed.app.routes.items():
        assert (route.scope is None) == ((method, path) in OPEN_TO_ALL), path
        if path == "live":  # Never ends.
            continue
        for (role, tenant), key in visitors.items():
            ask = closed.get if method == "GET" else closed.post

            reply = await ask(path, authorization=key)

            may = route.scope is None or (
                route.scope in SCOPES_OF[role] and (tenant == ALL or not route.all_tenants)
            )
            assert (reply.status == 403) == (not may), (method, path, role, tenant)
        stranger = await (closed.get if method == "GET" else closed.post)(path)
        if (method, path) != ("POST", "login"):  # Which is asked too often by now.
            assert (stranger.status == 401) == (route.scope is not None), path


async def test_what_is_of_another_tenant_is_nowhere_to_be_seen(closed: Pages) -> None:
    key = await closed.add_key("tmr_viewer_x", ACME, *SCOPES_OF[Role.ADMIN])
    screens = ("", "timers", "tenants", "timers?state=Reached", "find?id=b", "timers?correlation=x")

    for path in screens:
        for form in ("", "&format=json" if "?" in path else "?format=json"):
            reply = await closed.get(path + form, authorization=key)
            assert b"globex" not in reply.body, path
    named = [
        await closed.get(path, authorization=key)
        for path in ("timers?tenant=globex", "timer?tenant=globex&id=b")
    ]
    none = await closed.get("timer?tenant=acme&id=b", authorization=key)
    acted = [
        await closed.post(to, {"tenant": "globex", "id": "b", "due": "2030-01-01T00:00Z"}, authorization=key)
        for to in ("cancel", "move", "fire")
    ]

    assert [reply.status for reply in [*named, none, *acted]] == [404] * 6
    assert closed.site.store.timers[GLOBEX, call("b")].generation == 1


async def test_no_screen_tells_one_tenant_of_another() -> None:
    box = MemoryLetterBox(letter(1), letter(2, body=message("order-2", tenant="globex"), tenant_id=GLOBEX))
    pages = await Pages({"page_host": "192.0.2.1", "page_key": PAGE_KEY}, is_dev=True, letters=box).open()
    pages.health = Health(None, {"broker": "nats://globex.example refuses"}, {"odd": "of globex"})
    await pages.have(*(schedule(name, tenant=tenant) for tenant in (ACME, GLOBEX) for name in ("a", "b")))
    root = f"Bearer {PAGE_KEY}"
    await pages.post("cancel", {"tenant": "globex", "id": "b"}, authorization=root)
    job = {"action": "move", "by": "1h", "tenant": "globex", "count": "1", "reason": "globex asked for it"}
    async with pages.bulk.running():
        started = await pages.post("bulk-start", job, authorization=root)
    seen = await pages.get("activity", authorization=root)
    key = await pages.add_key("tmr_ann_x", ACME, *SCOPES_OF[Role.ADMIN])
    queries = (
        *("", "?state=Cancelled", "?state=Reached", "?id=b", "?n=1", "?n=2", "?action=undo&job=2"),
        *("?reason=invalid&field=payload.dueAt", "?span=month", "?correlation=x", "?after=a&before=9"),
    )

    replies = [
        (path, query, await pages.get(path + query, authorization=key))
        for method, path in pages.app.routes
        if method == "GET" and path != "live"
        for query in (*queries, started.headers["location"].removeprefix("job"))
    ]

    assert b"globex" in seen.body
    assert {(path, query) for path, query, reply in replies if b"globex" in reply.body} == set()
    assert {path for path, _, reply in replies if reply.status == 200} >= {
        "",
        "timers",
        "refused",
        "activity",
    }


async def test_a_page_on_loopback_is_open_and_one_that_others_reach_is_not() -> None:
    local = await Pages().open()
    others: list[dict[str, Any]] = [
        {"page_host": "0.0.0.0"},
        {"page_url": "https://timers.example"},
        {"page_key": PAGE_KEY},
        {"page_trusted_proxies": "10.0.0.1", "page_groups": "ops=admin"},
    ]
    reached = [await Pages(settings).open() for settings in others]

    assert (await local.get()).status == 200
    assert (await local.get("", {"x-forwarded-for": "192.0.2.7"})).status == 401
    assert [(await pages.get()).status for pages in reached] == [401] * 4


async def test_a_start_that_nobody_could_log_in_to_fails_in_one_line() -> None:
    pages = await Pages().open()
    for key in await pages.site.keys.list_keys():
        await pages.site.keys.revoke(key.id, pages.site.clock.now())

    with pytest.raises(InvalidConfiguration) as refused:
        async with page(load_settings(page_host="192.0.2.1", page_port=8070), pages.parts):
            pass

    assert "TIMER_PAGE_KEY" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_host_that_is_not_ours_is_misdirected() -> None:
    pages = await Pages({"page_url": "https://timers.example/ops"}).open()
    foreign = ("evil.example", "", "127.0.0.1.evil.example", "[::", "localhost@evil.example:1")

    assert [(await pages.get("login", host=host)).status for host in foreign] == [421] * len(foreign)
    for host in ("timers.example", "localhost:9999", "[::1]:8070"):
        assert (await pages.get("login", host=host)).status == 200


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8070"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://127.0.0.1:8070"}, True),
        ({"origin": "http://127.0.0.1:8071"}, False),
        ({"origin": "null"}, False),
        ({"authorization": "Basic YTpi"}, False),
        ({}, False),
    ],
)
async def test_a_form_of_another_site_changes_nothing(headers: dict[str, str], passes: bool) -> None:
    pages = await Pages().open()
    await pages.have(schedule("a"))

    reply = await pages.ask("POST", "cancel", b"tenant=acme&id=a", {**FORM, **headers})

    assert reply.status == (303 if passes else 403)
    assert (pages.site.store.timers[ACME, call("a")].cancelled_at is not None) == passes


async def test_two_pages_on_one_host_do_not_log_each_other_out() -> None:
    names = set[str]()
    for port in (8070, 8071):
        pages = await Pages({"page_host": "192.0.2.1", "page_port": port, "page_key": PAGE_KEY}).open()
        reply = await pages.post("login", {"key": PAGE_KEY})
        names.add(reply.headers["set-cookie"].partition("=")[0])

    # A browser sends a cookie to every port of a host.
    assert len(names) == 2


async def test_a_session_ends_with_its_key_with_time_and_with_idleness(closed: Pages) -> None:
    await closed.add_key("tmr_ops_secret", ALL, *SCOPES_OF[Role.VIEWER])
    clock = closed.site.clock

    async def logged_in(key: str) -> str:
        reply = await closed.post("login", {"key": key})
        assert reply.status == 303
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        return cookie.partition(";")[0]

    session, other = await logged_in("tmr_ops_secret"), await logged_in(PAGE_KEY)
    assert [(await closed.get(cookie=each)).status for each in (session, other)] == [200, 200]
    assert (await closed.post("cancel", {"tenant": "acme", "id": "a"}, cookie=session)).status == 403
    assert [(await closed.get(cookie=session[:-4] + end)).status for end in ("", "AAAA")] == [401, 401]

    await closed.site.keys.revoke("ops", clock.now())
    clock.advance(6)  # A key is looked up again after five seconds.
    assert [(await closed.get(cookie=each)).status for each in (session, other)] == [401, 200]
    clock.advance(IDLE.total_seconds())
    assert (await closed.get(cookie=other)).status == 401
    used = await logged_in(PAGE_KEY)
    for _ in range(int(SESSION / IDLE) * 2):
        clock.advance(IDLE.total_seconds() / 2)
        reply = await closed.get(cookie=used)
        used = reply.headers.get("set-cookie", used).partition(";")[0]
    assert reply.status == 401


async def test_a_session_holds_on_every_instance_with_the_secret_and_ends_with_another_key() -> None:
    secret = {"page_host": "192.0.2.1", "page_secret": "s" * 40}
    one, other, changed = [
        await Pages({**secret, "page_key": key}).open() for key in (PAGE_KEY, PAGE_KEY, "n" * 40)
    ]

    session = (await one.post("login", {"key": PAGE_KEY})).headers["set-cookie"].partition(";")[0]

    assert [(await each.get(cookie=session)).status for each in (one, other, changed)] == [200, 200, 401]


async def test_five_tries_per_minute_are_enough(closed: Pages) -> None:
    tries = [await closed.post("login", {"key": f"wrong-{n}"}) for n in range(LOGINS_PER_MINUTE + 1)]
    right = await closed.post("login", {"key": PAGE_KEY})
    closed.site.clock.advance(60)

    assert [reply.status for reply in tries] == [401] * LOGINS_PER_MINUTE + [429]
    assert (right.status, (await closed.post("login", {"key": PAGE_KEY})).status) == (429, 303)


async def test_wrong_keys_of_scripts_count_as_in_the_rest_api(closed: Pages) -> None:
    many = WRONG_KEYS_PER_MINUTE + 3

    wrong = [(await closed.get(authorization=f"Bearer tmr_{n}_x")).status for n in range(many)]
    right = await closed.get(authorization=f"Bearer {PAGE_KEY}")

    assert wrong == [401] * WRONG_KEYS_PER_MINUTE + [429] * 3
    assert right.status == 200


async def test_tries_count_for_whoever_a_trusted_proxy_names_and_otherwise_for_the_peer() -> None:
    trusted = {"page_trusted_proxies": "10.0.0.0/24", "page_groups": "ops=admin", "page_key": PAGE_KEY}
    pages = await Pages(trusted).open()

    async def status(peer: str, forwarded: str) -> int:
        headers = {**FORM, "sec-fetch-site": "same-origin", "x-forwarded-for": forwarded}
        return (await pages.ask("POST", "login", b"key=wrong", headers, peer)).status

    many = range(LOGINS_PER_MINUTE)
    assert [await status("10.0.0.7", f"6.6.6.{n}, 192.0.2.1, 10.0.0.9") for n in many] == [401] * len(many)
    assert await status("10.0.0.7", "192.0.2.1") == 429  # What is left of it, anybody may have written.
    assert await status("10.0.0.7", "192.0.2.2") == 401
    assert [await status("192.0.2.3", f"6.6.6.{n}") for n in many] == [401] * len(many)
    assert await status("192.0.2.3", "7.7.7.7") == 429


async def test_headers_of_a_proxy_are_believed_from_that_proxy_only() -> None:
    trusted = {"page_trusted_proxies": "10.0.0.0/24", "page_groups": "ops=admin,support=viewer:acme"}
    pages = await Pages(trusted).open()

    async def status(peer: str, path: str = "", **headers: str) -> int:
        return (await pages.ask("GET", path, b"", headers, peer)).status

    named = {"x-forwarded-user": "ann", "x-forwarded-groups": "staff, ops"}
    assert await status("10.0.0.7", **named) == 200
    assert await status("10.0.1.7", **named, **{"x-forwarded-for": "10.0.0.7"}) == 401
    assert await status("10.0.0.7", **{**named, "x-forwarded-groups": "ops.evil"}) == 401
    support = {"x-forwarded-user": "bob", "x-forwarded-groups": "support"}
    assert await status("10.0.0.7", **support) == 200
    assert await status("10.0.0.7", "system", **support) == 403
    assert await status("10.0.0.7", "timers?tenant=globex", **support) == 404


async def test_every_answer_carries_the_policy(closed: Pages) -> None:
    replies = [await closed.get(path) for path in ("", "nothing", "login", "/", "/other", "static/none.css")]

    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "trusted-types 'none'" in policy
        assert (reply.headers["x-frame-options"], reply.headers["cache-control"]) == ("DENY", "no-store")


@pytest.mark.parametrize(
    ("comes_from", "parted"),
    [("cross-site", True), ("same-site", True), ("", True), ("none", False), ("same-origin", False)],
)
async def test_a_page_that_another_site_opened_is_parted_from_it(
    comes_from: str, parted: bool, closed: Pages
) -> None:
    headers = {"sec-fetch-site": comes_from} if comes_from else {}

    replies = [await closed.get(path, headers) for path in ("", "login", "nothing")]

    found = [reply.headers.get("cross-origin-opener-policy") for reply in replies]
    assert found == ["same-origin" if parted else None] * 3


async def test_the_only_style_is_the_one_that_the_policy_names_and_it_stands_in_the_page(
    closed: Pages,
) -> None:
    reply = await closed.get("login")
    page = reply.body.decode()
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()

    assert f"style-src 'sha256-{digest}';" in reply.headers["content-security-policy"]
    assert ".card" in style
    # Nothing has to be fetched before the page is painted: a module waits for the end of the document.
    fetched = re.findall(r"<(?:script|link)[^>]*>", page)
    assert [each for each in fetched if 'rel="icon"' not in each and 'type="module"' not in each] == []


def test_nothing_of_others_is_ever_markup() -> None:
    wrong = re.compile(
        r"\|\s*safe\b|Markup|innerHTML|outerHTML|insertAdjacent|document\.write|\bstyle=|\son[a-z]+=|eval\("
    )
    files = [*(FOLDER / "templates").glob("*"), *(FOLDER / "static").glob("*"), *FOLDER.rglob("*.py")]

    assert len(files) > 20
    assert {path.name: found for path in files if (found := wrong.findall(path.read_text("utf-8")))} == {}
