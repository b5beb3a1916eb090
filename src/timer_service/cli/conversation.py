"""Talk to a broker for one command: connect, say what went wrong in one line, close."""

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError

from timer_client import NotPermitted, RequestRefused, ServiceAway, TimerCancelled, TimerError
from timer_client.connection import BrokerClient
from timer_service.cli.exits import (
    EXIT_INTERRUPTED,
    EXIT_NO_BROKER,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    CommandFailed,
    complain,
)
from timer_service.config import Settings, load_settings, nats_connect_options

CONNECT_TIMEOUT_S: Final = 2

Talker = TypeVar("Talker", bound=BrokerClient)


def converse(
    options: argparse.Namespace,
    client: Callable[..., Talker],
    talk: Callable[[Talker], Awaitable[None]],
    *,
    reconnect: bool = False,
) -> int:
    """Connect to the broker, talk, and return the exit code."""
    settings = load_settings(**({"broker_url": options.server} if options.server is not None else {}))
    # Over TLS, asyncio warns of every orderly end of a connection.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

    # Not by cancelling, which nats-py swallows now and then: there is nothing here to clean up.
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))

    async def conversation() -> None:
        async with _connection(settings, reconnect=reconnect) as connection:
            prefix, domain = settings.subject_prefix, settings.jetstream_domain
            await talk(client(connection, prefix=prefix, domain=domain))

    try:
        asyncio.run(conversation())
    except RequestRefused as error:
        raise CommandFailed(EXIT_REFUSED, f"{error.description} ({error.code})") from error
    except TimerCancelled as error:
        raise CommandFailed(EXIT_REFUSED, str(error)) from error
    except ValueError as error:
        raise CommandFailed(EXIT_USAGE, str(error)) from error
    return EXIT_OK


@asynccontextmanager
async def _connection(settings: Settings, *, reconnect: bool) -> AsyncIterator[Client]:
    """Connect, and turn what can go wrong into one line for a person."""
    errors: list[str] = []
    connection: Client | None = None

    async def remember(error: Exception) -> None:
        if not errors or errors[-1] != str(error):
            errors.append(str(error))
            if reconnect and connection is not None:
                complain(EXIT_NO_BROKER, str(error))

    where = settings.shown()["TIMER_BROKER_URL"]
    try:
        connection = await nats.connect(**_once(settings), error_cb=remember)
        if reconnect:
            # The broker is there, or we would not be here: from now on wait for it whenever it goes away.
            await connection.close()
            connection = await nats.connect(**_always(settings), error_cb=remember)
        yield connection
    except BrokenPipeError:
        raise  # Nobody reads our own output any more.
    except (NotPermitted, ServiceAway, nats.errors.Error, OSError) as error:
        raise CommandFailed(EXIT_NO_BROKER, _explain(error, where, errors)) from error
    finally:
        if connection is not None:
            with suppress(nats.errors.Error, OSError):
                await connection.close()


def _once(settings: Settings) -> dict[str, Any]:
    return {
        **nats_connect_options(settings),
        "name": "timer-service-cli",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
    }


def _always(settings: Settings) -> dict[str, Any]:
    return {
        **_once(settings),
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 1,
    }


def _explain(error: Exception, where: str, reported: list[str]) -> str:
    if isinstance(error, TimerError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, NoStreamResponseError):
        return f"the broker at {where} has no stream for commands: start timer-service on it once"
    if isinstance(error, nats.errors.NoRespondersError):
        return f"no timer-service answers on the broker at {where}: is it running?"
    if isinstance(error, APIError):
        return f"the broker at {where} refused: {error.description}"
    detail = reported[-1] if reported else str(error) or type(error).__name__
    return f"cannot reach the broker at {where}: {detail}"
