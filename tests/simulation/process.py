"""One life of the service: the real composition root, on the simulated machine."""

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import structlog
from structlog.testing import capture_logs

from tests.simulation.callbacks import Callbacks
from tests.simulation.client import SimulatedNats
from tests.simulation.clock import WallClock
from tests.simulation.loop import PROCESS, Lively, VirtualLoop
from timer_service.adapters.alarm import loop_alarm
from timer_service.adapters.nats.bus import NatsBus, NatsMeans
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.session import SessionMeans
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.system import NS_PER_MS, SystemClock
from timer_service.bootstrap import Parts, open_service
from timer_service.config import Settings, load_settings
from timer_service.service.run import Service, run_service
from timer_service.wiring.stores import OpenedStore

_SETTINGS = load_settings(http_port=0)


class Kept(Protocol):
    """Where timers are kept."""

    def process_died(self, process: Lively, /) -> None: ...

    def open_store(
        self, configured: Settings, now: Callable[[], datetime], /
    ) -> AbstractAsyncContextManager[OpenedStore]: ...


class Machine(Protocol):
    """What a process runs on."""

    loop: VirtualLoop
    nats: SimulatedNats
    wall: WallClock
    callbacks: Callbacks
    chance: Callable[[], float]
    verbose: bool

    @property
    def disk(self) -> Kept: ...

    def logged(self, level: str, event: str, fields: dict[str, Any]) -> None: ...


def settings(**values: Any) -> Settings:
    """Return settings without asking the environment again."""
    return _SETTINGS.model_copy(update=values)


class Process:
    """The service from its start to its end, however it ends."""

    def __init__(self, number: int, machine: Machine, configured: Settings) -> None:
        self.number = number
        self.dead = False
        self.frozen = False
        self.parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.service: Service | None = None
        self.suspended_s = 0.0
        self._machine = machine
        self._settings = configured
        context = copy_context()
        context.run(PROCESS.set, self)
        self._stop: asyncio.Event = asyncio.Event()
        self.main = machine.loop.create_task(self._run(), context=context)

    async def _run(self) -> None:
        async with open_service(self._settings, parts=parts_of(self._machine)) as service:
            self.service = service
            await run_service(service, self._stop)

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does."""
        self._stop.set()

    def kill(self) -> None:
        """End it at once: nothing that it still tries has any effect."""
        self.dead = True
        self.thaw()
        self._machine.disk.process_died(self)
        self._machine.nats.process_died(self)
        self.cancel_tasks()

    def cancel_tasks(self) -> None:
        """End what still runs of it."""
        for task in self.tasks:
            task.cancel()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        self._machine.loop._ready.extend(self.parked)
        self.parked.clear()

    @property
    def is_gone(self) -> bool:
        return all(task.done() for task in self.tasks)


def parts_of(machine: Machine) -> Parts:
    """Return what the service is built from on the simulated machine."""
    wall = machine.wall
    make_client = cast("type[TolerantClient]", machine.nats)
    means = NatsMeans(
        session=SessionMeans(make_client=make_client, elapsed_s=machine.loop.time), min_batched=2
    )
    return Parts(
        make_clock=partial(
            SystemClock, wall_ns=lambda: wall.now_ms() * NS_PER_MS, boot_ms=wall.boot_ms, alarm=loop_alarm
        ),
        chance=machine.chance,
        elapsed_s=machine.loop.time,
        open_store=machine.disk.open_store,
        make_bus=partial(NatsBus, means=means),
        open_sender=machine.callbacks.open_sender,
        serve_api=machine.callbacks.serve_api,
    )


@contextmanager
def logs_heard(machine: Machine) -> Iterator[None]:
    """Let the machine hear what the service logs."""
    logging = structlog.get_config()

    def keep(_: object, level: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        machine.logged(level, str(entry.pop("event")), dict(entry))
        raise structlog.DropEvent

    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(20 if machine.verbose else 40),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**logging)


def build_template(folder: Path) -> Path:
    """Return a database that the service's own migrations have made."""
    path = folder / "template.db"
    if not path.exists():

        async def make() -> None:
            async with open_sqlite_store(path, lambda: datetime(2026, 1, 1, tzinfo=UTC)):
                pass

        with capture_logs():
            asyncio.run(make())
    return path
