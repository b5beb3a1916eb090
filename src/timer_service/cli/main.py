"""The command line as a whole, and its last line of defence."""

import argparse
import os
import sys
from collections.abc import Sequence

from timer_service import __version__
from timer_service.cli import (
    clock,
    deadletters,
    deliveries,
    instances,
    keys,
    listening,
    running,
    secrets,
    settings,
    sleeping,
    stores,
    timers,
)
from timer_service.cli.exits import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandFailed,
    complain,
)
from timer_service.domain.errors import CriticalError, InvalidConfiguration

EPILOG = """\
Exit codes: 0 done · 1 failed · 2 wrong arguments or settings · 3 no broker, or it does not answer ·
4 the service refused, or there is no such timer or letter · 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code = int(options.handler(options))
        if sys.stdout is not None:
            sys.stdout.flush()  # When the interpreter does it, it is too late to end quietly.
        return code
    except InvalidConfiguration as error:
        return complain(EXIT_USAGE, f"configuration: {error}")
    except CriticalError as error:
        return complain(EXIT_FAILED, str(error))
    except CommandFailed as error:
        return complain(error.code, str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `watch | head -1`: what is left for it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.close()
        return EXIT_OK


def build_parser() -> argparse.ArgumentParser:
    """Return the grammar of all commands."""
    parser = argparse.ArgumentParser(
        prog="timer-service",
        description="Durable timers over NATS JetStream and HTTP. Without a command, runs the service.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"timer-service {__version__}")
    parser.set_defaults(handler=running.run)
    commands = parser.add_subparsers(title="commands", metavar="command")
    for group in (
        running,
        timers,
        sleeping,
        instances,
        clock,
        deadletters,
        deliveries,
        keys,
        stores,
        secrets,
        listening,
        settings,
    ):
        group.add_commands(commands)
    return parser
