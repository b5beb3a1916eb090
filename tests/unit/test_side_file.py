"""A file beside that of the timers: it may be read while somebody makes it."""

from pathlib import Path

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
