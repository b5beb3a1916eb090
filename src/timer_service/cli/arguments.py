"""What several commands have in common: arguments, and how their values are read."""

import argparse
from datetime import datetime, timedelta
from typing import TypeAlias

from timer_client import wire
from timer_service.config import parse_duration

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - no public name
"""Where a group of commands adds its own."""

STORE_URL = "sqlite:///path or postgresql://…"


def add_timer_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command name one timer."""
    parser.add_argument("--tenant", required=True, help="the timer's owner")
    parser.add_argument("--id", required=True, help="the timer's id")
    add_client_arguments(parser)


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command name the broker and ask for JSON."""
    parser.add_argument("--server", metavar="URL", help="the broker, instead of TIMER_BROKER_URL")
    add_json_argument(parser)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Let a command answer a program."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def tenant(text: str) -> str:
    """Read a tenant's id: what is kept for one that cannot be would never be found."""
    if wire.is_tenant_id(text):
        return text
    raise argparse.ArgumentTypeError(f"must be {wire.TENANT_RULE} (got {text!r})")


def port(text: str) -> int:
    """Read a port."""
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535 (got {text!r})")


def count(text: str) -> int:
    """Read a number from 1."""
    if text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 (got {text!r})")


def duration(text: str) -> timedelta:
    """Read a duration such as 1h30m."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def span(text: str) -> timedelta:
    """Read a duration that a message can hold."""
    longest = timedelta(milliseconds=wire.MAX_SPAN_MS)
    if (read := duration(text)) > longest:
        raise argparse.ArgumentTypeError(
            f"must be at most 10 years; for a later time use --at (got {text!r})"
        )
    return read


def moment(text: str) -> datetime:
    """Read a moment with its offset."""
    try:
        return wire.parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} (got {text!r})") from error
