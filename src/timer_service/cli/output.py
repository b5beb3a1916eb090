"""What a command prints: a line for a person or JSON for a program, never text that steers a terminal."""

import argparse
import os
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from timer_service.printable import printable, printable_json

PIPED_WIDTH: Final = 4_096
"""Where a table goes to a file or a program, each row is one line."""


def tell(options: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    """Print a line for a person, or the facts for a program."""
    say(printable_json(facts) if options.json else printable(text))


def say(text: str) -> None:
    """Print at once; the caller has made text of others printable."""
    print(text, flush=True)


def add_row(table: Table, *cells: str) -> None:
    """Add a row that shows each text as it is, never as markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def print_table(table: Table) -> None:
    """Print a table with all its text: what a terminal is too narrow for goes on in the next line."""
    for column in table.columns:
        column.overflow = "fold"
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console, table.expand = Console(width=PIPED_WIDTH), False
    console.print(table)


def as_block(facts: dict[str, Any]) -> str:
    """Return one fact per line, with the values below each other."""
    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {printable(_plain(value))}" for name, value in facts.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {text}" for name, text in value.items()) or "none"
    return "-" if value is None else str(value)
