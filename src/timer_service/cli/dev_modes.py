"""How `dev` may differ from a real start: a clock that stands, deliveries that are hostile."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from timer_client import wire
from timer_service.adapters.system import local_now
from timer_service.cli.arguments import moment
from timer_service.cli.exits import EXIT_USAGE, CommandFailed
from timer_service.config import Settings

if TYPE_CHECKING:
    from timer_service.service.run import Service

USUAL_FOLDER = Path(".timer-service")


def add_mode_arguments(parser: argparse.ArgumentParser) -> None:
    """Let `dev` choose its folder, its clock and how events are delivered."""
    parser.add_argument(
        "--dir", type=Path, help=f"folder for its data ({USUAL_FOLDER}; a temporary one for a virtual clock)"
    )
    parser.add_argument(
        "--clock",
        choices=["system", "virtual"],
        default="system",
        help="virtual: time stands still until `timer-service clock advance` moves it (%(default)s)",
    )
    parser.add_argument(
        "--start-at", type=moment, metavar="TIME", help="what a virtual clock shows at first (now)"
    )
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="deliver every event twice, out of order and with stale generations, to test a consumer",
    )


@dataclass(frozen=True, slots=True)
class DevMode:
    """What was chosen for `dev`."""

    folder: Path | None
    """None for one that is removed at the end."""
    starts_at: datetime | None
    """What the virtual clock shows at first; None for the system's clock."""
    hostile: bool

    @classmethod
    def of(cls, options: argparse.Namespace) -> "DevMode":
        """Read the options, or raise CommandFailed for what does not go together."""
        if options.clock == "virtual":
            return cls(options.dir, options.start_at or local_now(), options.hostile)
        if options.start_at is not None:
            raise CommandFailed(EXIT_USAGE, "--start-at needs --clock virtual: no other clock can be set")
        return cls(options.dir or USUAL_FOLDER, None, options.hostile)

    @property
    def is_usual(self) -> bool:
        """Whether nothing is unusual but the broker."""
        return self.starts_at is None and not self.hostile

    def __str__(self) -> str:
        """Return the lines of the greeting that say what is unusual."""
        lines = ""
        if self.starts_at is not None:
            lines += f"  clock   virtual, stands at {wire.format_time(self.starts_at)}\n"
        if self.hostile:
            lines += "  events  hostile: twice, out of order, with stale generations\n"
        return lines

    @asynccontextmanager
    async def data(self) -> AsyncIterator[Path]:
        """Use the folder that was chosen, or one that leaves nothing behind."""
        if self.folder is not None:
            yield self.folder
            return
        with TemporaryDirectory(prefix="timer-service-") as folder:
            yield Path(folder)

    @asynccontextmanager
    async def open_service(self, settings: Settings, instance: str, parts: Any) -> AsyncIterator["Service"]:
        """Build the service as it was chosen."""
        # Here, because no real start may need anything of it.
        from timer_service.bootstrap import open_service  # noqa: PLC0415
        from timer_service.testing import virtual  # noqa: PLC0415
        from timer_service.testing.virtual_clock import VirtualClock  # noqa: PLC0415

        if self.starts_at is None:
            async with open_service(settings, instance, virtual.hostile(parts)) as service:
                yield service
            return
        if self.folder is None:
            parts = virtual.in_memory(parts)
        clock = VirtualClock(self.starts_at)
        async with virtual.open_virtual_service(
            settings, instance, clock, parts, hostile_delivery=self.hostile
        ) as opened:
            yield opened.service
