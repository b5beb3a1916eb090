"""The `timer-service` command."""

import argparse
import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import nats
import nats.errors
import structlog
import uuid6
import uvloop
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError

from timer_service import __version__, wire
from timer_service.adapters.nats.embedded import USUAL_PORT, EmbeddedBroker, embedded_broker
from timer_service.adapters.system import local_now
from timer_service.bootstrap import open_service
from timer_service.client import Reached, TimerClient
from timer_service.config import Settings, load_settings, unknown_variables
from timer_service.domain.errors import CriticalError, InvalidConfiguration
from timer_service.observability import configure_logging
from timer_service.service import run_service

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_BROKER: Final = 3
EXIT_INTERRUPTED: Final = 130
CONNECT_TIMEOUT_S: Final = 2
CONFIRM_TIMEOUT_S: Final = 5.0

_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

log = structlog.get_logger(__name__)


class _NoBroker(Exception):
    """The broker cannot be reached, or does not take the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.handler(options))
    except InvalidConfiguration as error:
        return _complain(EXIT_USAGE, f"configuration: {error}")
    except CriticalError as error:
        return _complain(EXIT_FAILED, str(error))
    except _NoBroker as error:
        return _complain(EXIT_NO_BROKER, str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `watch | head -1`.
        sys.stderr.close()
        return EXIT_OK


def _complain(code: int, text: str) -> int:
    print(f"timer-service: {text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="timer-service",
        description="Durable timers over NATS JetStream. Without a command: run the service.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments or settings, 3 no broker, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"timer-service {__version__}")
    parser.set_defaults(handler=_run)
    commands = parser.add_subparsers(title="commands", metavar="")

    run = commands.add_parser("run", help="run the service against TIMER_BROKER_URL (the default)")
    run.set_defaults(handler=_run)

    dev = commands.add_parser("dev", help="run the service with a broker of its own, to try it out")
    dev.add_argument("--dir", type=Path, default=Path(".timer-service"), help="for its data (%(default)s)")
    dev.add_argument("--port", type=_port, help=f"the broker's port ({USUAL_PORT}, or a free one)")
    dev.set_defaults(handler=_dev)

    schedule = commands.add_parser("schedule", help="schedule or move a timer")
    _add_timer_arguments(schedule, id_help="the timer's id (a new UUIDv7 if left out)", id_required=False)
    when = schedule.add_mutually_exclusive_group(required=True)
    when.add_argument("--in", dest="after", type=_duration, metavar="DURATION", help="such as 10s or 1h30m")
    when.add_argument("--at", type=_moment, metavar="TIME", help="such as 2026-12-01T09:00:00+01:00")
    schedule.add_argument("--correlation-id", help="carried to the event")
    schedule.set_defaults(handler=_schedule)

    cancel = commands.add_parser("cancel", help="cancel a timer")
    _add_timer_arguments(cancel, id_help="the timer's id", id_required=True)
    cancel.set_defaults(handler=_cancel)

    watch = commands.add_parser("watch", help="print each DueTimeReached as it comes, with its lateness")
    watch.add_argument("--tenant", help="only this tenant's")
    watch.add_argument("--count", type=int, metavar="N", help="end after N events")
    _add_client_arguments(watch)
    watch.set_defaults(handler=_watch)

    config = commands.add_parser("config", help="print the effective settings, secrets masked")
    config.add_argument("--json", action="store_true", help="for programs")
    config.set_defaults(handler=_config)
    return parser


def _add_timer_arguments(parser: argparse.ArgumentParser, *, id_help: str, id_required: bool) -> None:
    parser.add_argument("--tenant", required=True, help="the tenant")
    parser.add_argument("--id", required=id_required, help=id_help)
    _add_client_arguments(parser)


def _add_client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help="the broker, in place of TIMER_BROKER_URL")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for programs")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535 (got {text!r})")


def _duration(text: str) -> timedelta:
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"must be a duration such as 10s, 1h30m or 500ms (got {text!r})")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"is too long a duration (got {text!r})") from error


def _moment(text: str) -> datetime:
    try:
        return wire.parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} (got {text!r})") from error


# Running the service


def _run(_: argparse.Namespace) -> int:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    _run_loop(lambda: _serve(settings, _stop_on_signals()))
    return EXIT_OK


def _dev(options: argparse.Namespace) -> int:
    # A broker of our own: what the environment says of another one's address and credentials is not for it.
    unset = {name: None for name in Settings.model_fields if name.startswith("broker_")}
    data: Path = options.dir
    settings = load_settings(**unset | {"broker_url": "nats://localhost", "db_path": data / "timers.db"})
    configure_logging(settings.log_level, settings.log_format)

    async def serve() -> None:
        stop = _stop_on_signals()
        async with embedded_broker(data, options.port) as broker:
            _greet(broker, data)
            ours = settings.model_copy(update={"broker_url": broker.url})
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(_fail_with(broker))
                await _serve(ours, stop)
                watcher.cancel()

    _run_loop(serve)
    return EXIT_OK


async def _fail_with(broker: EmbeddedBroker) -> None:
    code = await broker.process.wait()
    raise CriticalError(f"the embedded nats-server ended with code {code}: see {broker.log_path}")


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    for hint in unknown_variables():
        log.warning("setting.unknown", detail=hint)
    async with open_service(settings) as service:
        log.info("service.started", version=__version__, db_path=str(settings.db_path))
        await run_service(service, stop)
    log.info("service.stopped")


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    return stop


def _run_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run on uvloop; of the errors that end the loops together, raise the one that says what to do."""

    async def run() -> None:
        await work()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except BaseExceptionGroup as group:
        critical = _first_critical(group)
        if critical is None:
            raise
        raise critical from None


def _first_critical(group: BaseExceptionGroup[BaseException]) -> CriticalError | None:
    for error in group.exceptions:
        found = _first_critical(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, CriticalError):
            return found
    return None


def _greet(broker: EmbeddedBroker, data: Path) -> None:
    command = "timer-service" if shutil.which("timer-service") else sys.argv[0]
    server = "" if broker.port == USUAL_PORT else f" --server {broker.url}"
    print(
        f"timer-service {__version__} with a broker of its own; stop it with Ctrl-C\n"
        f"  broker  {broker.url}\n"
        f"  data    {data}\n"
        "Try in another terminal:\n"
        f"  {command} watch{server}\n"
        f"  {command} schedule --tenant acme --id order-42 --in 10s{server}\n"
        f"  {command} cancel --tenant acme --id order-42{server}",
        flush=True,
    )


# Talking to a running service


def _schedule(options: argparse.Namespace) -> int:
    try:
        due_at = options.at or wire.parse_time((local_now() + options.after).isoformat())
    except OverflowError:
        return _complain(EXIT_USAGE, "--in: the due time must be before the year 10000")
    timer_id = options.id or str(uuid6.uuid7())

    async def send(client: TimerClient) -> None:
        accepted = await client.schedule(
            options.tenant, timer_id, due_at, correlation_id=options.correlation_id
        )
        _tell(
            options,
            f"{options.tenant}/{timer_id} is due at {wire.format_time(due_at)} ({_from_now(due_at)})",
            {
                "tenantId": options.tenant,
                "serviceCallId": timer_id,
                "dueAt": wire.format_time(due_at),
                "commandId": accepted.command_id,
                "stream": accepted.stream,
                "sequence": accepted.sequence,
            },
        )

    return _talk(options, send)


def _cancel(options: argparse.Namespace) -> int:
    async def send(client: TimerClient) -> None:
        accepted = await client.cancel(options.tenant, options.id)
        _tell(
            options,
            f"{options.tenant}/{options.id} is to be cancelled",
            {
                "tenantId": options.tenant,
                "serviceCallId": options.id,
                "commandId": accepted.command_id,
                "stream": accepted.stream,
                "sequence": accepted.sequence,
            },
        )

    return _talk(options, send)


def _watch(options: argparse.Namespace) -> int:
    if options.tenant is not None and not wire.is_tenant_id(options.tenant):
        return _complain(EXIT_USAGE, f"--tenant must be {wire.TENANT_RULE} (got {options.tenant!r})")

    async def follow(client: TimerClient) -> None:
        seen = 0
        if not options.json:
            print("watching; Ctrl-C ends it", file=sys.stderr, flush=True)
        async for reached in client.watch(options.tenant):
            print(_as_json(reached) if options.json else _as_line(reached), flush=True)
            seen += 1
            if options.count is not None and seen >= options.count:
                return

    return _talk(options, follow, for_ever=True)


def _as_json(reached: Reached) -> str:
    return json.dumps({**json.loads(reached.body), "latenessMs": reached.lateness_ms}, ensure_ascii=False)


def _as_line(reached: Reached) -> str:
    payload, correlation = reached.payload, reached.envelope.correlation_id
    line = (
        f"{wire.format_time(datetime.fromtimestamp(reached.received_ms / 1000, UTC))}  "
        f"{payload.tenant_id}/{payload.service_call_id}  "
        f"due {wire.format_time(payload.due_at)}  {reached.lateness_ms:+d} ms  "
        f"generation {payload.generation}"
    )
    return f"{line}  correlation {correlation}" if correlation else line


def _tell(options: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False) if options.json else text, flush=True)


def _from_now(moment: datetime) -> str:
    seconds = (moment - local_now()).total_seconds()
    return f"in {seconds:.1f} s" if seconds > 0 else "past: fires at once"


def _talk(
    options: argparse.Namespace, talk: Callable[[TimerClient], Awaitable[None]], *, for_ever: bool = False
) -> int:
    settings = load_settings(**({"broker_url": options.server} if options.server else {}))

    async def converse() -> None:
        async with _connection(settings, for_ever=for_ever) as connection:
            client = TimerClient(connection, prefix=settings.subject_prefix, domain=settings.jetstream_domain)
            await talk(client)

    try:
        asyncio.run(converse())
    except ValueError as error:
        return _complain(EXIT_USAGE, str(error))
    return EXIT_OK


@asynccontextmanager
async def _connection(settings: Settings, *, for_ever: bool) -> AsyncIterator[Client]:
    """Connect, and turn what can go wrong into one line for a person."""
    errors: list[str] = []

    async def remember(error: Exception) -> None:
        if not errors or errors[-1] != str(error):
            errors.append(str(error))
            if for_ever and connection is not None:
                print(f"timer-service: {error}", file=sys.stderr, flush=True)

    connection: Client | None = None
    where = settings.shown()["TIMER_BROKER_URL"]
    try:
        connection = await nats.connect(
            **settings.nats_connect_options(),
            name="timer-service-cli",
            connect_timeout=CONNECT_TIMEOUT_S,
            allow_reconnect=for_ever,
            max_reconnect_attempts=-1 if for_ever else 1,
            reconnect_time_wait=0,
            error_cb=remember,
        )
        yield connection
    except NoStreamResponseError as error:
        raise _NoBroker(
            f"the broker at {where} has no stream for commands: start timer-service on it once"
        ) from error
    except APIError as error:
        raise _NoBroker(f"the broker at {where} did not take the command: {error.description}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        detail = errors[-1] if errors else str(error) or type(error).__name__
        raise _NoBroker(f"cannot reach the broker at {where}: {detail}") from error
    finally:
        if connection is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await connection.close()


def _config(options: argparse.Namespace) -> int:
    shown = load_settings().shown()
    if options.json:
        print(json.dumps(shown))
    else:
        width = max(map(len, shown))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in shown.items()))
    return EXIT_OK
