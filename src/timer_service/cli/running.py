"""Run the service, in production form or with a broker of its own."""

import argparse
import asyncio
import gc
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop
from pydantic import SecretStr

from timer_service import __version__
from timer_service.adapters.http.listening import listen
from timer_service.adapters.nats.embedded import EmbeddedBroker, embedded_broker
from timer_service.adapters.system import allow_files, instance_name
from timer_service.cli.arguments import Commands, port
from timer_service.cli.dev_modes import DevMode, add_mode_arguments
from timer_service.cli.exits import EXIT_OK
from timer_service.cli.greeting import greet
from timer_service.config import Settings, load_settings, unknown_variables
from timer_service.domain.errors import CriticalError
from timer_service.observability.logs import configure_logging
from timer_service.waiting import first_critical, first_done, owned

GC_AFTER_OBJECTS: Final = 50_000
TIDY_EVERY_S: Final = 300.0
"""How often Python gives back what it keeps for later; that takes a few milliseconds."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread of the store may keep the interpreter from the event loop: 5 ms otherwise."""
ENOUGH_FILES: Final = 4_096
"""For all connections that may be open at once, to us and to receivers, and for the store and the broker."""
DEV_API_PORT: Final = 8090
DEV_TENANT: Final = "dev"
LOOPBACK: Final = "127.0.0.0/8,::1"

DEV_PAGE_PORT: Final = 8070

Listeners = tuple[socket.socket | None, socket.socket | None, socket.socket | None]
"""Where health and metrics are served, where the REST API is, and where the page is."""

log = structlog.get_logger(__name__)


def add_commands(commands: Commands) -> None:
    """Add `run` and `dev`."""
    parser = commands.add_parser("run", help="run the service against TIMER_BROKER_URL (the default)")
    parser.set_defaults(handler=run)

    parser = commands.add_parser("dev", help="run the service with a broker of its own, to try it out")
    parser.add_argument("--port", type=port, help="the broker's port (4222, or a free one)")
    add_mode_arguments(parser)
    parser.set_defaults(handler=dev)


def run(_: argparse.Namespace) -> int:
    """Run the service against the configured broker."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    _run_loop(lambda: _serve(settings, _stop_on_signals()))
    return EXIT_OK


def dev(options: argparse.Namespace) -> int:
    """Run the service with a broker of its own."""
    mode = DevMode.of(options)
    # A broker of our own: what the environment says of another one's address and credentials is not for it.
    unset: dict[str, Any] = {name: None for name in Settings.model_fields if name.startswith("broker_")}
    ours = {
        "broker_url": "nats://localhost",
        "broker_inbox_prefix": "_INBOX",
        "jetstream_domain": None,
        "stream_replicas": 1,
        "store_url": None,
    }
    settings = load_settings(**unset | ours)
    configure_logging(settings.log_level, settings.log_format)

    async def serve() -> None:
        stop = _stop_on_signals()
        async with mode.data() as data, embedded_broker(data, options.port) as broker:
            # From here on, not only once the service is loaded: another one may start at the same time.
            with ExitStack() as stack:
                listeners = _listen(settings), _listen_for_api(settings), _listen_for_page(settings)
                for each in listeners:
                    if each is not None:
                        stack.enter_context(closing(each))
                found = {
                    "broker_url": broker.url,
                    "http_port": _port_of(listeners[0]),
                    "api_port": _port_of(listeners[1]),
                    "page_port": _port_of(listeners[2]),
                    "db_path": data / "timers.db",
                    **_to_try(settings, data),
                }
                chosen = settings.model_copy(update=found)
                greet(broker, chosen, data, mode)
                async with asyncio.TaskGroup() as tasks:
                    watcher = tasks.create_task(_fail_with(broker))
                    await _serve(chosen, stop, listeners, mode)
                    watcher.cancel()

    _run_loop(serve)
    return EXIT_OK


def _listen(settings: Settings) -> socket.socket | None:
    """Listen on the usual port, or on any if that is taken; None if nothing is to be served."""
    if not settings.http_port:
        return None
    remedy = "set TIMER_HTTP_HOST, or TIMER_HTTP_PORT=0 to disable it"
    return listen(settings.http_host, settings.http_port, 0, remedy=remedy)


def _listen_for_api(settings: Settings) -> socket.socket | None:
    """Listen for the REST API on the configured port, or on a usual one, or on any; None if it is off."""
    if not settings.api_port and "api_port" in settings.model_fields_set:
        return None
    remedy = "set TIMER_API_HOST, or TIMER_API_PORT=0 to disable it"
    return listen(settings.api_host, settings.api_port or DEV_API_PORT, 0, remedy=remedy)


def _listen_for_page(settings: Settings) -> socket.socket | None:
    """Listen for the page in the same way."""
    if not settings.page_port and "page_port" in settings.model_fields_set:
        return None
    remedy = "set TIMER_PAGE_HOST, or TIMER_PAGE_PORT=0 to disable it"
    return listen(settings.page_host, settings.page_port or DEV_PAGE_PORT, 0, remedy=remedy)


def _port_of(listener: socket.socket | None) -> int:
    return 0 if listener is None else int(listener.getsockname()[1])


def _to_try(settings: Settings, data: Path) -> dict[str, Any]:
    """Return a key to try the REST API with, the same at every start, and where callbacks may go.

    That is this machine, where `timer-service listen` is. What the settings say stands.
    """
    found: dict[str, Any] = {} if settings.callback_allow is not None else {"callback_allow": LOOPBACK}
    if settings.api_key is not None:
        return found
    path = data / "api-key"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32), "utf-8")
    return found | {"api_key": SecretStr(path.read_text("utf-8").strip()), "api_tenant": DEV_TENANT}


async def _fail_with(broker: EmbeddedBroker) -> None:
    code = await broker.process.wait()
    raise CriticalError(f"the embedded nats-server ended with code {code}: see {broker.log_path}")


async def _serve(
    settings: Settings,
    stop: asyncio.Event,
    listeners: Listeners = (None, None, None),
    mode: DevMode | None = None,
) -> None:
    # Here, because it takes half a second that no other command has to wait for.
    from timer_service.bootstrap import Parts, open_service  # noqa: PLC0415
    from timer_service.service.run import run_service  # noqa: PLC0415

    for hint in unknown_variables():
        log.warning("setting.unknown", detail=hint)
    started, instance = asyncio.Event(), instance_name()
    # A real start is built from real parts, whatever `dev` may be told.
    opening = open_service if mode is None or mode.is_usual else mode.open_service

    async def serve() -> None:
        health, api, page = listeners
        parts = Parts(listener=health, api_listener=api, page_listener=page, is_dev=mode is not None)
        async with opening(settings, instance, parts) as service:
            started.set()
            log.info(
                "service.started",
                version=__version__,
                store=settings.store_name,
                instance=instance,
                http_port=settings.http_port,
                api_port=settings.api_port,
                page_port=settings.page_port,
            )
            # All that the start has made stays: looking through it once more stops every loop for 20 ms.
            gc.freeze()
            async with owned(keep_memory_level()):
                await run_service(service, stop)

    await _stop_before(started, stop, serve())
    log.info("service.stopped")


async def keep_memory_level(every_s: float = TIDY_EVERY_S) -> None:
    """Look for cycles now and then; without an end.

    By the number of objects alone that would take days. Meanwhile what errors leave behind piles up, and the
    places of small tuples that Python keeps to use again, up to 2,000 of each length: it looks like a leak.
    """
    while True:
        await asyncio.sleep(every_s)
        gc.collect()


async def _stop_before(started: asyncio.Event, stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; if it is to stop before it has started, while it waits for a database, end it at once."""
    async with owned(work, stop.wait()) as (working, stopping):
        await first_done(working, stopping)
        if working.done() or started.is_set():
            await working


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    return stop


def _run_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run on uvloop; of the errors that end the loops together, raise the one that says what to do."""

    async def work_once() -> None:
        await work()

    # A connection is a file, and so is the store: receivers and callers must not leave it without.
    allow_files(ENOUGH_FILES)
    # Timers and messages make no cycles: looking for some after every 700 objects costs more than it frees.
    gc.set_threshold(GC_AFTER_OBJECTS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work_once())
    except BaseExceptionGroup as group:
        critical = first_critical(group)
        if critical is None:
            raise
        raise critical from None
