"""Ask every instance of the service how it is, and confirm a leap of its clock."""

import argparse

from timer_client import OperatorClient, wire
from timer_service.cli.arguments import Commands, add_client_arguments
from timer_service.cli.conversation import converse
from timer_service.cli.output import as_block, say, tell
from timer_service.printable import printable_json


def add_commands(commands: Commands) -> None:
    """Add `status` and `clock accept`."""
    parser = commands.add_parser("status", help="show how each instance is doing")
    add_client_arguments(parser)
    parser.set_defaults(handler=status)

    clock = commands.add_parser("clock", help="confirm a leap of the service's clock")
    clock_actions = clock.add_subparsers(title="actions", metavar="", required=True)
    accept = clock_actions.add_parser("accept", help="the wall clock is right: follow it")
    add_client_arguments(accept)
    accept.set_defaults(handler=accept_clock_step)


def status(options: argparse.Namespace) -> int:
    """Show how each instance is doing."""

    async def ask(client: OperatorClient) -> None:
        instances = [wire.fields_of(answer) for answer in await client.status()]
        if options.json:
            say("\n".join(map(printable_json, instances)))
        else:
            say("\n\n".join(map(as_block, instances)))

    return converse(options, OperatorClient, ask)


def accept_clock_step(options: argparse.Namespace) -> int:
    """Confirm that the wall clocks of all instances are right."""

    async def confirm(client: OperatorClient) -> None:
        for answer in await client.accept_clock_step():
            step_s = answer.accepted_step_seconds
            text = f"accepted a step of {step_s:g} s" if step_s else "no step was held back"
            tell(options, f"{answer.instance}: {text}", wire.fields_of(answer))

    return converse(options, OperatorClient, confirm)
