"""The tables of settings and commands in docs/, written from the code: `make docs`."""

import argparse
from collections.abc import Callable, Iterator

from tests.support.documents import ROOT, read
from timer_service.cli.main import build_parser
from timer_service.config import Settings, env_name

BEGIN, END = "<!-- reference: begin -->\n\n", "<!-- reference: end -->"
SHARED = ("--server", "--json")
"""Options that mean the same for every command that takes them."""


def settings() -> str:
    """Return every setting with its default, its meaning and what is allowed."""
    lines = ["| variable | default | meaning | allowed |", "|---|---|---|---|"]
    # What a part of the settings has in a class of its own comes last.
    for name in sorted(Settings.model_fields, key=lambda name: name not in Settings.__annotations__):
        field = Settings.model_fields[name]
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        cells = (f"`{env_name(name)}`", _default(field.default), field.description, extra["allowed"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Return every command with its arguments, a heading each."""
    return "\n".join(
        "\n".join(_section(name, text, parser)) for name, text, parser in _commands(build_parser())
    )


PAGES: dict[str, Callable[[], str]] = {"docs/configuration.md": settings, "docs/cli.md": commands}
"""Each page with what stands between its markers."""


def written(page: str) -> str:
    """Return the page as the code would have it."""
    before, begin, rest = read(page).partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{page} has no line {BEGIN}"
    assert end, f"{page} has no line {END}"
    return before + begin + PAGES[page]() + "\n" + end + after


def _default(value: object) -> str:
    if value is None:
        return "not set"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield every command, and every action of a command that has some: its words, its help, its grammar."""
    for group in parser._actions:
        if not isinstance(group, argparse._SubParsersAction):
            continue
        for choice in group._choices_actions:
            command = group.choices[choice.dest]
            actions = [(f"{choice.dest} {words}", text, action) for words, text, action in _commands(command)]
            yield from actions or [(choice.dest, choice.help or "", command)]


def _section(name: str, text: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{text[:1].upper()}{text[1:]}.\n"
    arguments = [action for action in parser._actions if "--help" not in action.option_strings]
    own = [action for action in arguments if not set(SHARED) & set(action.option_strings)]
    shared = [f"`{option}`" for option in SHARED if option in parser._option_string_actions]
    if own:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{_argument(action)}` | {_meaning(action, parser)} |" for action in own)
        yield ""
    if shared:
        yield f"{'Also' if own else 'Takes'} {' and '.join(shared)}.\n"


def _argument(action: argparse.Action) -> str:
    if not action.option_strings:
        return action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.nargs == 0:
        return action.option_strings[-1]
    choices = "{" + ",".join(map(str, action.choices or ())) + "}"
    value = choices if action.choices else action.metavar or action.dest.upper()
    return f"{action.option_strings[-1]} {value}"


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {"default": action.default}
    others = [
        f"`{each.option_strings[-1]}`"
        for group in parser._mutually_exclusive_groups
        if action in group._group_actions
        for each in group._group_actions
        if each is not action
    ]
    needed = "required" if action.required and action.option_strings else ""
    needed = f"required, or {' or '.join(others)}" if others else needed
    return "; ".join(part for part in (text, needed) if part) or "optional"


if __name__ == "__main__":
    for each in PAGES:
        (ROOT / each).write_text(written(each), "utf-8")
