"""Look at what was refused and why, and send it again after a fix."""

import argparse
import base64
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from timer_service.adapters.system import local_now
from timer_service.cli.conversation import converse, tell
from timer_service.cli.exits import EXIT_REFUSED, EXIT_USAGE, CommandFailed
from timer_service.client import TimerClient


def list_letters(options: argparse.Namespace) -> int:
    """List the newest letters, the newest last."""

    async def ask(client: TimerClient) -> None:
        since = local_now() - options.since
        letters = await client.dead_letters(options.tenant, since, options.limit)
        if options.json:
            print("\n".join(json.dumps(letter, ensure_ascii=False) for letter in letters))
            return
        table = Table("number", "received", "subject", "reason", "detail", expand=True)
        for column, width in zip(table.columns, (None, 24, None, None, None), strict=True):
            column.overflow, column.min_width = "fold", width
        for letter in letters:
            number = str(letter["letter"])
            table.add_row(number, letter["receivedAt"], letter["subject"], letter["reason"], letter["detail"])
        Console().print(table)
        if len(letters) == options.limit:
            print(f"the newest {options.limit}; --limit and --since show more", file=sys.stderr)

    return converse(options, ask)


def show(options: argparse.Namespace) -> int:
    """Show one letter whole."""

    async def ask(client: TimerClient) -> None:
        letter = await _letter(client, options.sequence)
        print(json.dumps(letter, ensure_ascii=False, indent=None if options.json else 2), flush=True)

    return converse(options, ask)


def replay(options: argparse.Namespace) -> int:
    """Publish the refused message again."""
    body = None if options.body_file is None else _read(options.body_file)

    async def send(client: TimerClient) -> None:
        letter = await _letter(client, options.sequence)
        subject = options.subject or letter["subject"]
        sent = _original_body(letter) if body is None else body
        sequence = await client.publish_again(subject, sent, letter_sequence=options.sequence)
        tell(
            options,
            f"letter {options.sequence} was sent again to {subject}",
            {"letter": options.sequence, "subject": subject, "sequence": sequence},
        )

    return converse(options, send)


async def _letter(client: TimerClient, sequence: int) -> dict[str, Any]:
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
