"""The README's tables say what the code does: settings, commands, exit codes."""

import argparse
from typing import Any

from tests.support.documents import code_words, table
from timer_service.cli import exits
from timer_service.cli.main import _parser
from timer_service.config import Settings, env_name

README = "README.md"


def test_the_readme_lists_every_setting_as_the_code_has_it() -> None:
    described = [tuple(row.values()) for row in table(README, "variable")]

    assert described == [
        (f"`{env_name(name)}`", _default(field.default), field.description, _allowed(field.json_schema_extra))
        for name, field in Settings.model_fields.items()
    ]


def test_the_readme_lists_every_command_and_its_options() -> None:
    shared = {"--server", "--json"}
    described = {
        word.removeprefix("timer-service "): {
            option.split()[0] for option in code_words(row["what it does"]) if option.startswith("--")
        }
        for row in table(README, "command")
        for word in code_words(row["command"])
        if word != "timer-service"
    }

    assert described == {name: _options(parser) - shared for name, parser in _commands().items()}


def test_the_readme_lists_every_exit_code() -> None:
    described = [int(row["exit code"]) for row in table(README, "exit code")]

    assert described == sorted(value for name, value in vars(exits).items() if name.startswith("EXIT_"))


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(extra: Any) -> str:
    return str(extra["allowed"])


def _commands(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """Return every command, and every action of a command that has some, by its words."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in (parser or _parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                actions = _commands(command)
                found |= {f"{name} {word}": inner for word, inner in actions.items()} or {name: command}
    return found


def _options(parser: argparse.ArgumentParser) -> set[str]:
    names = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    return names - {"--help"}
