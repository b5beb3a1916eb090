"""No test fails because a machine is slow: what must be fast is measured by `make bench`."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.documents import ROOT
from tests.support.patience import PATIENCE_S

SHORTEST_S = 30.0
"""A limit against hanging is at least this long."""

CLOCKS = re.compile(
    r"(^|_)(perf_counter|monotonic|thread_time|process_time|elapsed|took|duration|late|lateness|total_seconds)$"
    r"|(lateness|elapsed|taken|waited|recovered|silence|answer|duration)\w*_(s|ms|us)$"
)
WAITS = re.compile(r"(TIMEOUT|WAIT|LIMIT|PATIENCE|PROMPT|LATE|BUSY|HELD_UP)\w*_(S|MS)$")
TAKE_A_LIMIT_FIRST = {"timeout", "join", "wait", "until", "next_msg"}
SHORT_BY_DEFAULT = re.compile(r"\.jetstream$|(client|connection)\.request$")
"""nats-py waits 5 s and half a second where nobody says otherwise."""

VIRTUAL = "simulation"
"""Its time is made up: no machine is slow in it."""
ALLOWED = {
    ("test_right_of_way.py", "async with asyncio.timeout(0):"): "the time-out that is tested",
    ("test_command_line.py", "async with asyncio.timeout(0.2):"): "tried again, up to PATIENCE_S",
    ("test_errors.py", "arrived.wait(0.01)"): "tried again, up to PATIENCE_S",
    ("test_streams.py", "ACK_WAIT_S = 17.0"): "a setting of the consumer, compared with what the broker has",
    ("test_source_and_sink.py", "wait({receiving}, timeout=0.05)"): "expects that nothing comes",
    ("test_publisher.py", "timeout_s=0.5"): "the time-out that is tested",
    ("test_batches.py", "timeout_s=0.0"): "the time-out that is tested: no answer comes",
    ("test_letters.py", "ROOM_TIMEOUT_S = 0.001"): "how long the code waits, not the test",
    ("world.py", 'request("$JS.API.INFO", timeout=0.5)'): "tried again, up to PATIENCE_S",
    ("world.py", "async with asyncio.timeout(5):"): "tried again, up to PATIENCE_S",
    ("test_consumer.py", "async with asyncio.timeout(5):"): "tried again, up to PATIENCE_S",
    ("test_postgres.py", "async with asyncio.timeout(5):"): "tried again, up to PATIENCE_S",
    ("test_postgres.py", 'request("$JS.API.INFO", timeout=0.5)'): "tried again, up to PATIENCE_S",
    ("kills.py", "async with asyncio.timeout(5):"): "tried again, up to PATIENCE_S",
    ("test_receivers.py", 'connection.request("POST", "/", b"{}"'): "the connection has its limit",
    ("test_callbacks.py", "client.request(method, self.url"): "aiohttp, which waits for five minutes",
    ("callback_site.py", "self._client.request(method, url"): "aiohttp, which waits for five minutes",
    ("test_lost_tail.py", "self.client.jetstream(timeout=5)"): "tried again until the broker is back",
    ("load.py", "self.client.jetstream(timeout=1)"): "the tenant sends again",
    ("load.py", '.cancel", request, timeout=3)'): "without an answer the ledger expects either outcome",
    ("load.py", "subject, body, timeout=1"): "the tenant sends again",
    ("test_client_package.py", "datetime.now(UTC)) < timedelta(hours=1)"): "an hour for one line",
    ("test_system_clock.py", "SystemClock().wait(0.02,"): "what is tested",
    ("test_system_clock.py", "SystemClock().wait(0,"): "what is tested",
}


def test_no_test_waits_or_measures_in_seconds_that_a_slow_machine_exceeds() -> None:
    found = [
        (path.name, line, reason)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if VIRTUAL not in path.parts
        for line, reason in short_limits(path.read_text("utf-8"))
    ]

    used = {
        (file, part) for file, part in ALLOWED for name, line, _ in found if name == file and part in line
    }
    assert [
        each for each in found if not any(each[0] == file and part in each[1] for file, part in used)
    ] == []
    assert set(ALLOWED) - used == set(), "no longer there"


@pytest.mark.parametrize(
    "source",
    [
        "assert elapsed < 0.5",
        "assert time.perf_counter() - started < 2",
        "assert 0 <= lateness_ms < 2000",
        "assert max(map(lateness_ms, events)) <= HELD_UP_MS",
        "assert (out_at - due_at).total_seconds() < 1",
        "assert datetime.now(UTC) < due",
        "await consumer.fetch(1, timeout=5)",
        "client.jetstream().publish(subject)",
        "await other.client.request(subject, body)",
        "process.wait(10)",
        "async def f():\n    async with asyncio.timeout(2): ...",
        "WAIT_S = 15.0",
        "def f(timeout_s: float = 10.0): ...",
    ],
)
def test_a_short_limit_is_found(source: str) -> None:
    assert list(short_limits(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "assert lateness_ms >= 0",
        "assert 0 <= lateness_ms",
        "assert len(found) < 5",
        "assert due <= datetime.now(UTC)",
        "await consumer.fetch(1, timeout=PATIENCE_S)",
        "client.jetstream(timeout=PATIENCE_S).publish(subject)",
        "await other.client.request(subject, body, timeout=PATIENCE_S)",
        "process.wait(60)",
        "DUE_S = 3",
    ],
)
def test_a_claim_that_needs_no_speed_is_left_alone(source: str) -> None:
    assert list(short_limits(source)) == []


def test_patience_outlasts_a_busy_machine() -> None:
    assert PATIENCE_S >= SHORTEST_S


def short_limits(source: str) -> Iterator[tuple[str, str]]:
    """Yield each line that a slow machine could make fail, and why."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        reason = _reason(node)
        if reason is not None:
            yield lines[getattr(node, "lineno", 1) - 1].strip(), reason


def _reason(node: ast.AST) -> str | None:
    match node:
        case ast.Assert() if any(map(_bounds_a_time, ast.walk(node.test))):
            return "asserts that something takes little time"
        case ast.keyword(arg="timeout" | "timeout_s") if _is_short(node.value):
            return "gives up early"
        case ast.Call() if _called(node) in TAKE_A_LIMIT_FIRST and any(map(_is_short, node.args[:1])):
            return "gives up early"
        case ast.Call() if _gives_up_by_itself(node):
            return "gives up early where no limit is given"
        case ast.Assign() if any(map(_is_wait, node.targets)) and _is_short(node.value):
            return "names a short limit"
        case ast.FunctionDef() | ast.AsyncFunctionDef() if _has_short_default(node):
            return "has a short limit by default"
    return None


def _bounds_a_time(node: ast.AST) -> bool:
    """Return whether a comparison holds a measured time below something else than a deadline."""
    if not isinstance(node, ast.Compare) or "deadline" in ast.dump(node):
        return False
    sides = [node.left, *node.comparators]
    return any(
        _is_measured(smaller if isinstance(operator, ast.Lt | ast.LtE) else larger)
        for smaller, operator, larger in zip(sides, node.ops, sides[1:], strict=False)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    )


def _is_measured(side: ast.expr) -> bool:
    names = {node.id for node in ast.walk(side) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(side) if isinstance(node, ast.Attribute)}
    return any(CLOCKS.search(name) for name in names) or "datetime.now(" in ast.unparse(side)


def _is_short(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Constant)
        and isinstance(value.value, int | float)
        and not isinstance(value.value, bool)
        and value.value < SHORTEST_S
    )


def _gives_up_by_itself(call: ast.Call) -> bool:
    named = {given.arg for given in call.keywords}
    return SHORT_BY_DEFAULT.search(ast.unparse(call.func)) is not None and not named & {"timeout", None}


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_wait(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and WAITS.search(target.id) is not None


def _has_short_default(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = function.args.posonlyargs + function.args.args
    given = zip(reversed(arguments), reversed(function.args.defaults), strict=False)
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return any(
        argument.arg in ("timeout", "timeout_s") and value is not None and _is_short(value)
        for argument, value in [*given, *named]
    )
