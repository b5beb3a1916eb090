"""Back up a database, and move all timers from one store to another."""

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path

from timer_service.adapters.sqlite.backup import back_up
from timer_service.cli.arguments import STORE_URL, Commands, add_json_argument
from timer_service.cli.exits import EXIT_FAILED, EXIT_OK, CommandFailed
from timer_service.cli.output import tell
from timer_service.config import load_settings
from timer_service.domain.errors import CriticalError, TransientError
from timer_service.workflows.copy_secrets import copy_keys, copy_secrets
from timer_service.workflows.copy_timers import CopyReport, copy_timers


def add_commands(commands: Commands) -> None:
    """Add `backup`, `copy` and `reopen`."""
    parser = commands.add_parser(
        "backup", help="copy the database while the service runs, and verify the copy"
    )
    parser.add_argument("path", type=Path, help="the file to write; it must not exist yet")
    add_json_argument(parser)
    parser.set_defaults(handler=backup)

    parser = commands.add_parser("copy", help="move all timers to another store, and verify them")
    parser.add_argument("--from", dest="source", required=True, metavar="URL", help=STORE_URL)
    parser.add_argument("--to", dest="target", required=True, metavar="URL", help="an empty store")
    parser.add_argument("--restart", action="store_true", help="start an unfinished copy from the beginning")
    add_json_argument(parser)
    parser.set_defaults(handler=copy)

    parser = commands.add_parser("reopen", help="use a store again after `copy` has moved its timers")
    parser.add_argument("store", metavar="URL", help=STORE_URL)
    add_json_argument(parser)
    parser.set_defaults(handler=reopen)


def backup(options: argparse.Namespace) -> int:
    """Copy the database while the service runs, and verify the copy."""
    settings = load_settings()
    if settings.postgres_url is not None:
        raise CriticalError("TIMER_STORE_URL names a PostgreSQL database: back it up with pg_dump")
    report = back_up(settings.sqlite_path, options.path)
    tell(
        options,
        f"{options.path}: {report.timers} timers, {report.pending} of them pending, "
        f"{report.size_bytes} bytes, verified",
        {
            "path": str(options.path),
            "timers": report.timers,
            "pending": report.pending,
            "bytes": report.size_bytes,
        },
    )
    return EXIT_OK


def copy(options: argparse.Namespace) -> int:
    """Copy, verify, and report what was copied."""
    try:
        report = asyncio.run(_copy(options))
    except TransientError as error:
        raise CommandFailed(EXIT_FAILED, f"{error}; run the same command again to continue") from error
    tell(
        options,
        f"{report.timers} timers copied, {report.pending} of them pending; both stores have the same "
        f"content (SHA-256 {report.checksum}). Start the service on the new one; it refuses the old one",
        {"timers": report.timers, "pending": report.pending, "sha256": report.checksum},
    )
    return EXIT_OK


def reopen(options: argparse.Namespace) -> int:
    """Let a store be used again although its timers were moved."""
    target = asyncio.run(_reopen(options.store))
    text = (
        f"it may be used again; its timers are also in {target}, where nothing may run now"
        if target
        else "nothing to do: its timers were not moved"
    )
    tell(options, text, {"movedTo": target})
    return EXIT_OK


async def _reopen(url: str) -> str | None:
    from timer_service.wiring.stores import open_archive  # noqa: PLC0415 - as below

    async with open_archive(url, as_source=True) as archive:
        return await archive.copying.reopen()


async def _copy(options: argparse.Namespace) -> CopyReport:
    # Here, because they take time that no other command has to wait for.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from timer_service.wiring.stores import open_archives  # noqa: PLC0415

    # On stderr, and only where a person looks: stdout belongs to the result.
    bar = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        disable=options.json or not sys.stderr.isatty(),
        transient=True,
    )
    task = bar.add_task("copying")

    def show(what: str, done: int, total: int) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar:
        async with open_archives(options.source, options.target) as (source, target):
            return await copy_timers(
                source=source,
                target=target,
                restart=options.restart,
                progress=show,
                first=partial(_copy_secrets_and_keys, options.source, options.target),
            )


async def _copy_secrets_and_keys(source: str, target: str) -> None:
    # Here, as above.
    from timer_service.wiring.stores import open_secrets_and_keys  # noqa: PLC0415

    async with (
        open_secrets_and_keys(source) as (secrets, keys),
        open_secrets_and_keys(target) as (secrets_there, keys_there),
    ):
        await copy_secrets(secrets, secrets_there)
        await copy_keys(keys, keys_there)
