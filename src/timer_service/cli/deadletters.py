"""Look at what was refused and why, and send it again after a fix."""

import argparse
import base64
import sys
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from timer_client import OperatorClient
from timer_service.adapters.system import local_now
from timer_service.cli.arguments import Commands, add_client_arguments, count, duration
from timer_service.cli.conversation import converse
from timer_service.cli.exits import EXIT_REFUSED, EXIT_USAGE, CommandFailed
from timer_service.cli.output import add_row, print_table, say, tell
from timer_service.printable import printable_json

EXCERPT: Final = 80
"""Characters of a body in the list; `show` has all of it."""


def add_commands(commands: Commands) -> None:
    """Add `deadletters` and its actions."""
    group = commands.add_parser("deadletters", help="inspect refused messages, and send them again")
    actions = group.add_subparsers(title="actions", metavar="action", required=True)

    parser = actions.add_parser("list", help="list the newest letters")
    parser.add_argument("--tenant", help="only this tenant's letters")
    parser.add_argument(
        "--since", type=duration, default="24h", metavar="DURATION", help="how far back (%(default)s)"
    )
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="at most N (%(default)s)")
    add_client_arguments(parser)
    parser.set_defaults(handler=list_letters)

    parser = actions.add_parser("show", help="show a whole letter")
    parser.add_argument("sequence", type=count, help="its number in `deadletters list`")
    add_client_arguments(parser)
    parser.set_defaults(handler=show)

    parser = actions.add_parser("replay", help="send the refused message again")
    parser.add_argument("sequence", type=count, help="its number in `deadletters list`")
    parser.add_argument("--subject", help="send it to another subject")
    parser.add_argument("--body-file", type=Path, help="send this body instead of the refused one")
    add_client_arguments(parser)
    parser.set_defaults(handler=replay)


def list_letters(options: argparse.Namespace) -> int:
    """List the newest letters, newest last."""

    async def ask(client: OperatorClient) -> None:
        since = local_now() - options.since
        letters = await client.dead_letters(options.tenant, since, options.limit)
        if options.json:
            say("\n".join(map(printable_json, letters)))
            return
        table = Table("number", "received", "subject", "reason", "detail", expand=True)
        table.columns[1].min_width = 24
        for letter in letters:
            add_row(table, *_cells(letter))
        print_table(table)
        if len(letters) == options.limit:
            print(f"the newest {options.limit}; see more with --limit and --since", file=sys.stderr)

    return converse(options, OperatorClient, ask)


def show(options: argparse.Namespace) -> int:
    """Show a whole letter."""

    async def ask(client: OperatorClient) -> None:
        letter = await _letter(client, options.sequence)
        say(printable_json(letter, indent=None if options.json else 2))

    return converse(options, OperatorClient, ask)


def replay(options: argparse.Namespace) -> int:
    """Publish the refused message again."""
    body = None if options.body_file is None else _read(options.body_file)

    async def send(client: OperatorClient) -> None:
        letter = await _letter(client, options.sequence)
        if letter.get("notALetter"):
            text = f"{options.sequence} is not a letter of the service: there is no message to send again"
            raise CommandFailed(EXIT_REFUSED, text)
        subject = options.subject or letter["subject"]
        sent = _original_body(letter) if body is None else body
        sequence = await client.publish_again(subject, sent, letter_sequence=options.sequence)
        tell(
            options,
            f"letter {options.sequence} was sent again to {subject}",
            {"letter": options.sequence, "subject": subject, "sequence": sequence},
        )

    return converse(options, OperatorClient, send)


def _cells(letter: dict[str, Any]) -> tuple[str, str, str, str, str]:
    number = str(letter["letter"])
    if letter.get("notALetter"):
        return number, letter["storedAt"], letter["storedOn"], "not a letter", letter["body"][:EXCERPT]
    return number, letter["receivedAt"], letter["subject"], letter["reason"], letter["detail"]


async def _letter(client: OperatorClient, sequence: int) -> dict[str, Any]:
    letter = await client.dead_letter(sequence)
    if letter is None:
        raise CommandFailed(EXIT_REFUSED, f"there is no dead letter {sequence}")
    return letter


def _original_body(letter: dict[str, Any]) -> bytes:
    if letter.get("bodyTruncated"):
        text = "the letter holds only a part of the message: send a whole one with --body-file"
        raise CommandFailed(EXIT_REFUSED, text)
    body = str(letter["body"])
    return base64.b64decode(body) if letter["bodyEncoding"] == "base64" else body.encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(EXIT_USAGE, f"--body-file: cannot read {path}: {error.strerror}") from error
