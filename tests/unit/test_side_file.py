"""A file beside that of the timers: it may be read while somebody makes it."""

from pathlib import Path

from tests.support.sqlite import left_by_a_kill
from timer_service.adapters.sqlite.side_file import SideFile

SCHEMA = "CREATE TABLE IF NOT EXISTS thing (name TEXT)"


async def test_a_file_that_was_just_made_has_nothing_in_it(tmp_path: Path) -> None:
    path = tmp_path / "side"
    path.touch()

    assert await SideFile(path, SCHEMA).ask("SELECT name FROM thing", ()) == []


async def test_what_was_written_is_found(tmp_path: Path) -> None:
    file = SideFile(tmp_path / "side", SCHEMA)

    await file.change("INSERT INTO thing VALUES (?)", ("one",))

    assert await file.ask("SELECT name FROM thing", ()) == [("one",)]


async def test_a_change_that_was_cut_off_is_undone_by_who_reads_next(tmp_path: Path) -> None:
    file = SideFile(tmp_path / "side", SCHEMA)
    await file.change("INSERT INTO thing VALUES (?)", ("one",))

    left_by_a_kill(tmp_path / "side")

    assert (tmp_path / "side-journal").stat().st_size > 0
    assert await file.ask("SELECT name FROM thing", ()) == [("one",)]
