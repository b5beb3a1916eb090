"""The command line's grammar, and its last line of defence."""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from timer_client import wire
from timer_service import __version__
from timer_service.cli import copying, deadletters, files, running, timers
from timer_service.cli.exits import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandFailed,
    complain,
)
from timer_service.config import parse_duration
from timer_service.domain.errors import CriticalError, InvalidConfiguration

EPILOG = """\
Exit codes: 0 done · 1 failed · 2 wrong arguments or settings · 3 no broker, or it does not answer ·
4 the service refused, or there is no such timer · 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.handler(options))
    except InvalidConfiguration as error:
        return complain(EXIT_USAGE, f"configuration: {error}")
    except CriticalError as error:
        return complain(EXIT_FAILED, str(error))
    except CommandFailed as error:
        return complain(error.code, str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `watch | head -1`.
        sys.stderr.close()
        return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="timer-service",
        description="Durable timers over NATS JetStream. Without a command: run the service.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"timer-service {__version__}")
    parser.set_defaults(handler=running.run)
    commands = parser.add_subparsers(title="commands", metavar="")
    _add_running(commands)
    _add_changing(commands)
    _add_asking(commands)
    _add_deadletters(commands)
    _add_files(commands)
    return parser


_Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it


def _add_running(commands: "_Commands[argparse.ArgumentParser]") -> None:
    run = commands.add_parser("run", help="run the service against TIMER_BROKER_URL (the default)")
    run.set_defaults(handler=running.run)

    dev = commands.add_parser("dev", help="run the service with its own broker, to try it out")
    dev.add_argument("--dir", type=Path, default=Path(".timer-service"), help="for its data (%(default)s)")
    dev.add_argument("--port", type=_port, help="the broker's port (4222, or a free one)")
    dev.set_defaults(handler=running.dev)


def _add_changing(commands: "_Commands[argparse.ArgumentParser]") -> None:
    schedule = commands.add_parser("schedule", help="schedule or move a timer")
    schedule.add_argument("--tenant", required=True)
    schedule.add_argument("--id", help="the timer's id (a new UUIDv7 if left out)")
    when = schedule.add_mutually_exclusive_group(required=True)
    when.add_argument("--in", dest="after", type=_duration, metavar="DURATION", help="such as 10s or 1h30m")
    when.add_argument("--at", type=_moment, metavar="TIME", help="such as 2026-12-01T09:00:00+01:00")
    schedule.add_argument("--correlation-id", help="carried to the event")
    _add_client_arguments(schedule)
    schedule.set_defaults(handler=timers.schedule)

    cancel = commands.add_parser("cancel", help="cancel a timer")
    _add_timer_arguments(cancel)
    cancel.set_defaults(handler=timers.cancel)


def _add_asking(commands: "_Commands[argparse.ArgumentParser]") -> None:
    watch = commands.add_parser("watch", help="print each DueTimeReached as it comes, with its lateness")
    watch.add_argument("--tenant", help="only this tenant's")
    watch.add_argument("--count", type=_count, metavar="N", help="end after N events")
    _add_client_arguments(watch)
    watch.set_defaults(handler=timers.watch)

    get = commands.add_parser("get", help="show one timer")
    _add_timer_arguments(get)
    get.set_defaults(handler=timers.get)

    listing = commands.add_parser("list", help="list a tenant's timers by due time")
    listing.add_argument("--tenant", required=True)
    listing.add_argument("--state", choices=["Scheduled", "Reached", "Cancelled"])
    listing.add_argument("--correlation-id")
    listing.add_argument("--due-from", type=_moment, metavar="TIME", help="inclusive")
    listing.add_argument("--due-before", type=_moment, metavar="TIME", help="exclusive")
    listing.add_argument("--limit", type=_count, default=50, metavar="N", help="at most N (%(default)s)")
    _add_client_arguments(listing)
    listing.set_defaults(handler=timers.list_timers)

    status = commands.add_parser("status", help="show how the service is")
    _add_client_arguments(status)
    status.set_defaults(handler=timers.status)

    clock = commands.add_parser("clock", help="confirm a leap of the service's clock")
    clock_actions = clock.add_subparsers(title="actions", metavar="", required=True)
    accept = clock_actions.add_parser("accept", help="the wall clock is right: follow it")
    _add_client_arguments(accept)
    accept.set_defaults(handler=timers.accept_clock_step)


def _add_deadletters(commands: "_Commands[argparse.ArgumentParser]") -> None:
    group = commands.add_parser("deadletters", help="look at what was refused, and send it again")
    actions = group.add_subparsers(title="actions", metavar="", required=True)

    listing = actions.add_parser("list", help="list the newest letters")
    listing.add_argument("--tenant", help="only this tenant's")
    listing.add_argument("--since", type=_duration, default="24h", metavar="DURATION", help="(%(default)s)")
    listing.add_argument("--limit", type=_count, default=20, metavar="N", help="at most N (%(default)s)")
    _add_client_arguments(listing)
    listing.set_defaults(handler=deadletters.list_letters)

    show = actions.add_parser("show", help="show one letter whole")
    show.add_argument("sequence", type=_count, help="its number in `deadletters list`")
    _add_client_arguments(show)
    show.set_defaults(handler=deadletters.show)

    replay = actions.add_parser("replay", help="send the refused message again")
    replay.add_argument("sequence", type=_count, help="its number in `deadletters list`")
    replay.add_argument("--subject", help="to another subject than before")
    replay.add_argument("--body-file", type=Path, help="with this body in place of the refused one")
    _add_client_arguments(replay)
    replay.set_defaults(handler=deadletters.replay)


def _add_files(commands: "_Commands[argparse.ArgumentParser]") -> None:
    backup = commands.add_parser(
        "backup", help="copy the database while the service runs, and verify the copy"
    )
    backup.add_argument("path", type=Path, help="the file to write; it must not exist yet")
    backup.add_argument("--json", action="store_true", help="for programs")
    backup.set_defaults(handler=files.backup)

    copy = commands.add_parser("copy", help="move all timers to another store, and verify them")
    copy.add_argument(
        "--from", dest="source", required=True, metavar="URL", help="sqlite:///path or postgresql://…"
    )
    copy.add_argument("--to", dest="target", required=True, metavar="URL", help="an empty store")
    copy.add_argument("--restart", action="store_true", help="start an unfinished copy again")
    copy.add_argument("--json", action="store_true", help="for programs")
    copy.set_defaults(handler=copying.copy)

    reopen = commands.add_parser("reopen", help="use a store again whose timers were moved by copy")
    reopen.add_argument("store", metavar="URL", help="sqlite:///path or postgresql://…")
    reopen.add_argument("--json", action="store_true", help="for programs")
    reopen.set_defaults(handler=copying.reopen)

    config = commands.add_parser("config", help="print the effective settings, secrets masked")
    config.add_argument("--json", action="store_true", help="for programs")
    config.set_defaults(handler=files.config)


def _add_timer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--id", required=True, help="the timer's id")
    _add_client_arguments(parser)


def _add_client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help="the broker, in place of TIMER_BROKER_URL")
    parser.add_argument("--json", action="store_true", help="for programs")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535 (got {text!r})")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 (got {text!r})")


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _moment(text: str) -> datetime:
    try:
        return wire.parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} (got {text!r})") from error
