"""Ask every instance of the service how it is."""

import argparse

from timer_client import OperatorClient, wire
from timer_service.cli.arguments import Commands, add_client_arguments
from timer_service.cli.conversation import converse
from timer_service.cli.output import as_block, say
from timer_service.printable import printable_json


def add_commands(commands: Commands) -> None:
    """Add `status`."""
    parser = commands.add_parser("status", help="show how each instance is doing")
    add_client_arguments(parser)
    parser.set_defaults(handler=status)


def status(options: argparse.Namespace) -> int:
    """Show how each instance is doing."""

    async def ask(client: OperatorClient) -> None:
        instances = [wire.fields_of(answer) for answer in await client.status()]
        if options.json:
            say("\n".join(map(printable_json, instances)))
        else:
            say("\n\n".join(map(as_block, instances)))

    return converse(options, OperatorClient, ask)
