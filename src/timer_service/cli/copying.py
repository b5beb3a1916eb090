"""Move all timers from one store to another."""

import argparse
import asyncio
import sys

from timer_service.cli.conversation import tell
from timer_service.cli.exits import EXIT_FAILED, EXIT_OK, CommandFailed
from timer_service.domain.errors import TransientError
from timer_service.workflows.copy_timers import CopyReport, copy_timers


def copy(options: argparse.Namespace) -> int:
    """Copy, verify, and say what was copied."""
    try:
        report = asyncio.run(_copy(options))
    except TransientError as error:
        raise CommandFailed(EXIT_FAILED, f"{error}; run the same command again to go on") from error
    tell(
        options,
        f"{report.timers} timers copied, {report.pending} of them pending; both stores read the same "
        f"(SHA-256 {report.checksum}). Start the service on the new one; it refuses the old one",
        {"timers": report.timers, "pending": report.pending, "sha256": report.checksum},
    )
    return EXIT_OK


def reopen(options: argparse.Namespace) -> int:
    """Let a store be used again whose timers were moved."""
    target = asyncio.run(_reopen(options.store))
    text = (
        f"it may be used again; its timers are also in {target}, where nothing may run now"
        if target
        else "nothing to do: its timers were not moved"
    )
    tell(options, text, {"movedTo": target})
    return EXIT_OK


async def _reopen(url: str) -> str | None:
    from timer_service.stores import open_archive  # noqa: PLC0415 - as below

    async with open_archive(url, as_source=True) as archive:
        return await archive.reopen()


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

    from timer_service.stores import open_archives  # noqa: PLC0415

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
            return await copy_timers(source=source, target=target, restart=options.restart, progress=show)
