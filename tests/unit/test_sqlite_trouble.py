"""What the SQLite store makes of questions without an end, and of files that are busy or missing."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, cast

import aiosqlite
import pytest

from tests.support.timers import ACME, GLOBEX, scheduled_timer
from timer_service.adapters.sqlite.archive import open_sqlite_archive
from timer_service.adapters.sqlite.limits import DEFAULT_LIMITS, SqliteLimits
from timer_service.adapters.sqlite.opening import in_short_turns
from timer_service.adapters.sqlite.questions import ANSWERERS, Questions
from timer_service.domain.errors import CriticalError, StoreFailed
from timer_service.testing import START
from timer_service.workflows.copy_timers import copy_timers


class FakeConnection:
    """A connection whose question ends when it is interrupted."""

    def __init__(self) -> None:
        self.interrupted = asyncio.Event()

    async def interrupt(self) -> None:
        self.interrupted.set()


def new_questions(limits: SqliteLimits = DEFAULT_LIMITS) -> tuple[Questions, list[FakeConnection]]:
    fakes = [FakeConnection() for _ in range(ANSWERERS)]
    return Questions(Path("timers.db"), cast("list[aiosqlite.Connection]", fakes), limits), fakes


async def test_where_nobody_may_ask_a_question_that_does_not_end_is_interrupted() -> None:
    asked, fakes = new_questions(SqliteLimits(hold_timeout_s=0.001))
    asking = asyncio.Event()

    async def endless() -> None:
        async with asked.asking(ACME) as connection:
            asking.set()
            await cast("Any", connection).interrupted.wait()

    question = asyncio.ensure_future(endless())
    await asking.wait()
    async with asyncio.timeout(60), asked.held_back():
        late = asyncio.ensure_future(_ask(asked, GLOBEX))
        await question
        assert not late.done()
    await late

    assert [fake.interrupted.is_set() for fake in fakes].count(True) == 1


async def test_where_nobody_may_ask_a_question_that_ends_soon_is_left_alone() -> None:
    asked, fakes = new_questions(SqliteLimits(hold_timeout_s=60))
    asking, end = asyncio.Event(), asyncio.Event()

    async def short() -> None:
        async with asked.asking(ACME):
            asking.set()
            await end.wait()

    question = asyncio.ensure_future(short())
    await asking.wait()
    asyncio.get_running_loop().call_soon(end.set)
    async with asyncio.timeout(60), asked.held_back():
        assert not any(fake.interrupted.is_set() for fake in fakes)
    await question


async def _ask(asked: Questions, tenant_id: str) -> None:
    async with asked.asking(tenant_id):
        pass


def locked(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


class FakeWriter:
    def __init__(self) -> None:
        self.executed: list[str] = []

    async def execute(self, sql: str) -> None:
        self.executed.append(sql)


@pytest.mark.parametrize(
    ("errors", "patience_ms", "tries"),
    [
        ([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY], 60_000, 3),
        ([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY], 0, 1),
        ([sqlite3.SQLITE_IOERR], 60_000, 1),
    ],
)
async def test_a_file_that_is_busy_at_the_start_is_waited_for_in_short_turns(
    errors: list[int], patience_ms: int, tries: int
) -> None:
    left, tried = list(errors), 0

    async def prepare() -> None:
        nonlocal tried
        tried += 1
        if left:
            raise locked(left.pop(0))

    writer = FakeWriter()
    preparing = in_short_turns(cast("aiosqlite.Connection", writer), prepare, patience_ms)

    if tries > len(errors):
        await preparing
        assert writer.executed[-1] == "PRAGMA busy_timeout = 60000"
    else:
        with pytest.raises(sqlite3.OperationalError):
            await preparing

    assert tried == tries


async def test_a_source_that_is_missing_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(CriticalError, match=r"there is no database at .*: check --from"):
        async with open_sqlite_archive(tmp_path / "none.db", lambda: START, must_exist=True):
            pass

    assert list(tmp_path.iterdir()) == []


async def test_a_batch_of_a_copy_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    async with open_sqlite_archive(tmp_path / "timers.db", lambda: START, must_exist=False) as archive:
        await archive.write([scheduled_timer("order-1")], {})

        with pytest.raises(StoreFailed):
            await archive.write([scheduled_timer("order-0"), scheduled_timer("order-1")], {})

        assert await archive.count() == 1
        await archive.write([scheduled_timer("order-2")], {})
        assert await archive.count() == 2


async def test_a_copy_that_is_itself_unfinished_is_no_source(tmp_path: Path) -> None:
    async with (
        open_sqlite_archive(tmp_path / "half.db", lambda: START, must_exist=False) as half,
        open_sqlite_archive(tmp_path / "target.db", lambda: START, must_exist=False) as target,
    ):
        await half.copying.begin("sqlite:///elsewhere.db")

        with pytest.raises(CriticalError, match="is itself an unfinished copy"):
            await copy_timers(source=half, target=target, restart=False, progress=lambda *_: None)

        assert await target.copying.unfinished_copy_of() is None
