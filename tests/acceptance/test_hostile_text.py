"""Text of tenants is text for the operator's terminal: never markup, never a command to it."""

import json

import pytest

from tests.support.messages import in_seconds
from tests.support.process import run_cli
from tests.support.world import World

IDS = ["[/x]", "order[bold]42[red]", "[link=https://example.com]pay", ":smile:", "\u202etxt.exe"]
SHOWN = [*IDS[:-1], "\\u202etxt.exe"]
CLEAR_SCREEN = "\x1b[2J"


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose lines are not folded."""
    monkeypatch.setenv("COLUMNS", "250")


def cli(world: World, *arguments: str) -> str:
    """Run a command that must do its work, and return what it printed."""
    done = run_cli(*arguments, cwd=world.folder, broker_url=world.broker.url)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def cells(printed: str) -> list[list[str]]:
    """Return the rows of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]


async def test_timers_are_listed_and_shown_with_their_ids_as_they_are(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(3600)
    for call in IDS:
        await world.schedule("acme", call, due, correlationId=f"[/{call}]")
    await world.wait_until_consumed()

    listed = cells(cli(world, "list", "--tenant", "acme"))
    as_json = [json.loads(line) for line in cli(world, "list", "--tenant", "acme", "--json").splitlines()]
    one = cli(world, "get", "--tenant", "acme", f"--id={IDS[-1]}")

    assert sorted((row[0], row[4]) for row in listed) == sorted((call, f"[/{call}]") for call in SHOWN)
    assert sorted(timer["serviceCallId"] for timer in as_json) == sorted(IDS)
    assert "serviceCallId  \\u202etxt.exe\n" in one


async def test_letters_are_listed_with_subjects_and_details_as_they_are(world: World) -> None:
    world.service().start_ready()
    subject = f"timer.commands.acme.{CLEAR_SCREEN}[/x]"
    await world.send_raw(subject, "[bold]\x9b31m\u202e".encode())
    await world.wait_for_letters(1)

    [row] = cells(cli(world, "deadletters", "list"))
    shown = cli(world, "deadletters", "show", "1")
    [line] = cli(world, "deadletters", "list", "--json").splitlines()

    assert row[2:4] == ["timer.commands.acme.\\x1b[2J[/x]", "unknown_type"]
    assert "[2J[/x]" in row[4]
    assert json.loads(shown)["subject"] == json.loads(line)["subject"] == subject
    assert json.loads(shown)["body"] == "[bold]\x9b31m\u202e"
    assert not set("\x1b\x9b\u202e") & set(shown + line)


async def test_what_is_not_a_letter_is_shown_as_such_and_not_sent_again(world: World) -> None:
    world.service().start_ready()
    # As a tenant can: the broker's acknowledgement goes wherever the reply subject says.
    await world.client.publish("timer.commands.acme.Other", b"{}", reply="timer.deadletter.globex")
    await world.wait_for_letters(2)
    for body in (b"not JSON", b'["reason"]', b'{"reason": 1}', b"[" * 5_000, b"\xff" + CLEAR_SCREEN.encode()):
        await world.send_raw("timer.deadletter.acme", body)

    rows = {int(row[0]): row for row in cells(cli(world, "deadletters", "list"))}
    strange = {number: row for number, row in rows.items() if row[3] == "not a letter"}
    acknowledgement = next(number for number, row in strange.items() if "globex" in row[2])
    shown = json.loads(cli(world, "deadletters", "show", str(acknowledgement)))
    replay = run_cli(
        *("deadletters", "replay", str(acknowledgement)), cwd=world.folder, broker_url=world.broker.url
    )

    assert len(rows) == 7
    assert len(strange) == 6
    assert strange[7][4] == "\\xff\\x1b[2J"
    assert (shown["notALetter"], shown["storedOn"]) == (True, "timer.deadletter.globex")
    assert json.loads(shown["body"])["stream"] == "TIMER_COMMANDS"
    assert (replay.returncode, replay.stdout) == (4, "")
    assert "is not a letter" in replay.stderr


async def test_the_console_log_shows_a_hostile_subject_escaped(world: World) -> None:
    service = world.service(log_format="console", log_level="debug").start()
    await world.until(lambda: _said(service.stderr, "broker.connected"), "the service to be ready")

    await world.send_raw(f"timer.commands.acme.{CLEAR_SCREEN}", b"{}")
    await world.wait_for_letters(1)
    service.terminate()

    log = "".join(service.stderr)
    assert "\\x1b[2J" in log
    assert CLEAR_SCREEN not in log


async def _said(lines: list[str], event: str) -> bool:
    return any(event in line for line in lines)
