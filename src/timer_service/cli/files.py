"""Commands that need no broker: settings and backups."""

import argparse
import json

from timer_service.adapters.sqlite.backup import back_up
from timer_service.cli.conversation import tell
from timer_service.cli.exits import EXIT_OK
from timer_service.config import load_settings
from timer_service.domain.errors import CriticalError


def config(options: argparse.Namespace) -> int:
    """Print the effective settings."""
    shown = load_settings().shown()
    if options.json:
        print(json.dumps(shown))
    else:
        width = max(map(len, shown))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in shown.items()))
    return EXIT_OK


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
