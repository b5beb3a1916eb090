"""The pytest plugin as a user meets it: in a project of their own, alone and with several processes."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.broker import nats_server_binary
from tests.support.documents import marked_blocks
from tests.support.patience import PATIENCE_S

pytest_plugins = ["pytester"]

TESTING = "docs/testing.md"
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


SHARING = """
def test_one(timer_service, tmp_path_factory):
    note(timer_service, tmp_path_factory, "one")

def test_two(timer_service, tmp_path_factory):
    note(timer_service, tmp_path_factory, "two")

def note(timer_service, tmp_path_factory, name):
    path = tmp_path_factory.getbasetemp().parent / f"note-{name}"
    path.write_text(f"{timer_service.broker_url} {timer_service.prefix}")
"""

ALONE = """
from datetime import timedelta

async def test_one(timer_service):
    await alone(timer_service)

async def test_two(timer_service):
    await alone(timer_service)

async def alone(timer_service):
    assert await timer_service.all_scheduled() == []
    async with timer_service.timers() as timers:
        await timers.schedule("order-42", timer_service.now() + timedelta(days=3))
    [timer] = await timer_service.all_scheduled()
    assert timer.service_call_id == "order-42"
"""

WRONG_USE = """
from datetime import timedelta
import pytest

DAY = timedelta(days=1)

async def test_assertions(timer_service):
    with pytest.raises(AssertionError) as nothing:
        await timer_service.assert_scheduled("order-1")
    assert str(nothing.value) == "order-1 is not scheduled; nothing is scheduled"
    async with timer_service.timers() as timers:
        await timers.schedule("order-42", timer_service.now() + DAY)
    with pytest.raises(AssertionError) as other:
        await timer_service.assert_scheduled("order-1")
    assert str(other.value) == (
        "order-1 is not scheduled; "
        "scheduled: order-42 at 2026-01-02T12:00:00.000Z (in 1 day, 0:00:00)"
    )
    with pytest.raises(AssertionError) as later:
        await timer_service.assert_scheduled("order-42", in_=2 * DAY, delta=timedelta(hours=1))
    assert str(later.value) == (
        "order-42 is due at 2026-01-02T12:00:00.000Z (in 1 day, 0:00:00), "
        "not at 2026-01-03T12:00:00.000Z (in 2 days, 0:00:00) give or take 1:00:00"
    )
    with pytest.raises(AssertionError, match="order-42 is scheduled, due at"):
        await timer_service.refute_scheduled("order-42")
    await timer_service.assert_scheduled("order-42", at=timer_service.now() + DAY)
    await timer_service.assert_scheduled("order-42", in_=DAY * 1.01, delta=timedelta(hours=1))

async def test_arguments(timer_service):
    for wrong in ({}, {"to": timer_service.now(), "days": 1}):
        with pytest.raises(TypeError, match="say how far, with one of a timedelta, keywords such"):
            await timer_service.advance(**wrong)
    with pytest.raises(TypeError, match="span must be a timedelta"):
        await timer_service.advance(3)
    with pytest.raises(ValueError, match="time cannot go back"):
        await timer_service.advance(to=timer_service.now() - DAY)
    with pytest.raises(TypeError, match="give in_ or at, not both"):
        async with timer_service.timers() as timers:
            await timers.schedule("order-42", timer_service.now() + DAY)
        await timer_service.assert_scheduled("order-42", in_=DAY, at=timer_service.now())
    with pytest.raises(AssertionError, match="order-7 is not scheduled"):
        await timer_service.fire_now("order-7")

@pytest.mark.timer_service(settle_timeout=timedelta(seconds=0.3))
async def test_nobody_pulls(timer_service):
    async def never(firing): ...
    async with timer_service.timers() as timers:
        async with timers.consume("billing", never):
            pass
        await timers.schedule("order-42", timer_service.now() + DAY)
        with pytest.raises(Exception, match="time stands at .* consumer test-billing "):
            await timer_service.advance(days=2)
"""

HOSTILE = """
from datetime import datetime, timedelta, UTC
import pytest

START = datetime(2030, 1, 1, tzinfo=UTC)

@pytest.mark.timer_service(hostile=True, starts_at=START)
async def test_marker(timer_service):
    came = []
    assert timer_service.now() == START
    async with timer_service.connect() as connection, timer_service.timers() as timers:
        subscription = await connection.subscribe(f"{timer_service.prefix}.events.>")
        await connection.flush()
        await timers.schedule("order-42", START + timedelta(days=1))
        await timer_service.fire_now("order-42")
        assert timer_service.now() == START
        first, second = [await subscription.next_msg(timeout=30) for _ in range(2)]
        assert b"order-42" in first.data
        assert b"order-42" in second.data
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of a user's, in an empty folder."""
    pytester.makeini(INI)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest as the user would, in a process of its own."""
    return project.runpytest_subprocess("-q", "-p", "no:cacheprovider", *arguments)


def test_what_the_page_says_of_the_fixture_holds_in_several_processes(project: pytest.Pytester) -> None:
    page = marked_blocks(TESTING)
    program, hostile = page["example: fixture"], page["example: hostile"]
    files = {
        "page": program,
        "page_hostile": hostile,
        "sharing": SHARING,
        "alone": ALONE,
        "wrong": WRONG_USE,
        "hostile": HOSTILE,
    }
    project.makepyfile(**{f"test_{name}": text for name, text in files.items()})

    result = run(project, "-n", "2", "--basetemp", "run")

    tests = re.findall(r"^(?:async )?def test_", "\n".join(files.values()), re.MULTILINE)
    result.assert_outcomes(passed=len(tests))
    notes = [path.read_text().split() for path in (project.path / "run").glob("note-*")]
    assert len(notes) == 2
    assert len({broker for broker, _ in notes}) == 1
    assert len({prefix for _, prefix in notes}) == 2


def test_who_does_not_use_it_loads_nothing_and_without_the_service_it_says_what_to_install(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(
        """
        import sys

        def test_that_does_not_use_it():
            ours = {"timer_client", "timer_service", "nats", "pydantic", "structlog"}
            assert ours.isdisjoint(sys.modules)
            assert "timer_client_pytest" in sys.modules

        def test_that_does(timer_service): ...
        """
    )
    project.makeconftest(
        """
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "timer_service":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        """
    )

    result = run(project, "-p", "no:asyncio", "-o", "filterwarnings=", "-o", "asyncio_mode=")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*pip install 'timer-service[[]embedded]' (missing: timer_service*"])


def test_the_server_ends_even_if_its_users_are_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from timer_service.testing.shared_broker import shared_broker\n"
        "from timer_service.adapters.nats.embedded import find_nats_server\n"
        "with shared_broker(Path(sys.argv[1]), find_nats_server()) as url:\n"
        "    print(url, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    addresses = set()
    with ExitStack() as users:
        for _ in range(2):
            user = users.enter_context(_started(sys.executable, "-c", program, str(tmp_path)))
            assert user.stdout is not None
            addresses.add(user.stdout.readline())
        assert len(addresses) == 1
        assert _servers(tmp_path) == 1

    deadline = time.monotonic() + PATIENCE_S
    while _servers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _servers(tmp_path) == 0


@contextmanager
def _started(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a process, and kill it at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _servers(folder: Path) -> int:
    """Count the servers whose data are below a folder."""
    count = 0
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().decode()
        except OSError:
            continue
        count += command.startswith(nats_server_binary()) and f"{folder}/" in command
    return count
