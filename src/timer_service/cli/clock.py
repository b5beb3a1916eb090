"""The service's clock: confirm a leap of the real one, or move a virtual one."""

import argparse
from datetime import datetime, timedelta

from timer_client import OperatorClient, wire
from timer_client.clock import ClockClient
from timer_service.cli.arguments import Commands, add_client_arguments, duration, moment
from timer_service.cli.conversation import converse
from timer_service.cli.exits import EXIT_USAGE, complain
from timer_service.cli.output import tell


def add_commands(commands: Commands) -> None:
    """Add `clock accept`, `clock now` and `clock advance`."""
    clock = commands.add_parser("clock", help="confirm a leap of the service's clock, or move a virtual one")
    actions = clock.add_subparsers(title="actions", metavar="action", required=True)

    parser = actions.add_parser("accept", help="confirm that the wall clock is right, and follow it")
    add_client_arguments(parser)
    parser.set_defaults(handler=accept_clock_step)

    parser = actions.add_parser("now", help="show the time of a service with a virtual clock")
    add_client_arguments(parser)
    parser.set_defaults(handler=now)

    parser = actions.add_parser(
        "advance", help="let virtual time pass, and wait until every consumer has acknowledged"
    )
    parser.add_argument("span", nargs="?", type=duration, help="this much time, such as 3d or 1h30m")
    parser.add_argument("--to", type=moment, metavar="TIME", help="until this time")
    parser.add_argument("--next", action="store_true", help="until the next timer is due")
    add_client_arguments(parser)
    parser.set_defaults(handler=advance)


def accept_clock_step(options: argparse.Namespace) -> int:
    """Confirm that the wall clocks of all instances are right."""

    async def confirm(client: OperatorClient) -> None:
        for answer in await client.accept_clock_step():
            step_s = answer.accepted_step_seconds
            text = f"accepted a step of {step_s:g} s" if step_s else "no step was held back"
            tell(options, f"{answer.instance}: {text}", wire.fields_of(answer))

    return converse(options, OperatorClient, confirm)


def now(options: argparse.Namespace) -> int:
    """Show what a virtual clock shows."""

    async def ask(client: ClockClient) -> None:
        shown = wire.format_time(await client.now())
        tell(options, shown, {"now": shown})

    return converse(options, ClockClient, ask)


def advance(options: argparse.Namespace) -> int:
    """Move a virtual clock."""
    span: timedelta | None = options.span
    to: datetime | None = options.to
    if (span is not None) + (to is not None) + options.next != 1:
        return complain(EXIT_USAGE, "say how far: a span such as 3d, --to TIME or --next, only one of them")

    async def move(client: ClockClient) -> None:
        if span is not None:
            moved = await client.advance(span)
        else:
            moved = await (client.advance_to_next() if to is None else client.advance_to(to))
        shown = wire.format_time(moved.now)
        tell(
            options,
            f"it is {shown}; events published: {moved.published}",
            {"now": shown, "published": moved.published},
        )

    return converse(options, ClockClient, move)
