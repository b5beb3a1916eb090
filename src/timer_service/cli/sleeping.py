"""Sleep in a shell script, and continue the same sleep after a restart."""

import argparse
from functools import partial

from timer_client import Timers, wire
from timer_service.cli.arguments import Commands, add_client_arguments, duration
from timer_service.cli.conversation import converse
from timer_service.cli.output import tell

TENANT = "default"


def add_commands(commands: Commands) -> None:
    """Add `sleep`."""
    parser = commands.add_parser(
        "sleep", help="sleep for a while; started again with the same id, continue the same sleep"
    )
    parser.add_argument("--tenant", default=TENANT, help="the timer's owner (%(default)s)")
    parser.add_argument("--id", required=True, help="the sleep's name; use a new one for every sleep")
    parser.add_argument(
        "--for",
        dest="span",
        required=True,
        type=duration,
        metavar="DURATION",
        help="for this long, such as 3h, counted from the first start",
    )
    add_client_arguments(parser)
    parser.set_defaults(handler=sleep)


def sleep(options: argparse.Namespace) -> int:
    """Wait until the timer of this name is due; the first who asks sets its due time."""

    async def wait(client: Timers) -> None:
        timer = await client.sleep(options.id, options.span)
        due = "" if timer.due_at is None else f" at {wire.format_time(timer.due_at)}"
        tell(options, f"{options.tenant}/{options.id} was due{due}", wire.fields_of(timer))

    return converse(options, partial(Timers, tenant=options.tenant), wait, reconnect=True)
