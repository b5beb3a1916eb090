"""What the clients share: a connection that the caller owns, its names, how one asks and publishes."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from uuid import UUID

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import PubAck
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from timer_client import wire
from timer_client.cancelling import cancellable
from timer_client.errors import NotPermitted, RequestRefused, ServiceAway, TimerError, TimerNotFound
from timer_client.subjects import PREFIX_RULE, StreamNames, Subjects, is_prefix

ANSWER_TIMEOUT_S: Final = 5.0
PUBLISH_TIMEOUTS_S: Final = (1.0, 2.0, 5.0, 10.0)
"""How long each try to publish a command waits for the broker; all of them carry one id."""
RETRY_PAUSE_S: Final = 0.25
"""Between tries where the broker says at once that it has no stream: it may just have started."""

LISTEN_S: Final = 0.1
"""How soon it is noticed that the broker has forbidden something."""

Answer = TypeVar("Answer", bound=wire.Model)
Result = TypeVar("Result")


class BrokerClient:
    """A NATS connection that the caller owns, and the names of the service on it."""

    def __init__(self, connection: Client, *, prefix: str = "timer", domain: str | None = None) -> None:
        if not _keeps(is_prefix, prefix):
            raise ValueError(f"prefix must be {PREFIX_RULE} (got {prefix!r})")
        self._connection = connection
        self._domain = domain
        self._api_prefix = f"$JS.{domain}.API" if domain else "$JS.API"
        self._jetstream: JetStreamContext = connection.jetstream(**({"domain": domain} if domain else {}))
        self._subjects = Subjects(prefix)
        self._streams = StreamNames.of(prefix)

    async def _ask(self, subject: str, request: wire.Model, model: type[Answer]) -> Answer:
        """Send a request and return its answer; once only, because not every request may be repeated."""
        asking = self._connection.request(subject, wire.write_model(request), timeout=ANSWER_TIMEOUT_S)
        return as_model(model, read_answer(await self._answered(subject, asking)))

    async def _answered(self, subject: str, asking: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the broker's answer; if it is forbidden, none comes, and the broker says so elsewhere."""
        before = self._connection.last_error
        task = asyncio.ensure_future(asking)
        try:
            while not task.done() and not self._is_forbidden(subject, before):
                await asyncio.wait({task}, timeout=LISTEN_S)
            if not task.done():
                raise self._explain(TimeoutError(), subject, before)
            return task.result()
        except NatsError as error:
            raise self._explain(error, subject, before) from error
        finally:
            task.cancel()

    async def _publish(self, subject: str, body: bytes, message_id: str) -> PubAck:
        """Publish until the broker confirms, under one id: what arrives twice is stored once."""
        before = self._connection.last_error
        for timeout_s in PUBLISH_TIMEOUTS_S:
            try:
                with cancellable():
                    return await self._jetstream.publish(
                        subject, body, timeout=timeout_s, headers={"Nats-Msg-Id": message_id}
                    )
            except (TimeoutError, NoStreamResponseError) as error:
                failure: NatsError | TimeoutError = error
                if self._is_forbidden(subject, before):
                    break
            except NatsError as error:
                failure = error
                break
            await asyncio.sleep(RETRY_PAUSE_S)
        raise self._explain(failure, subject, before) from failure

    def _explain(self, error: Exception, subject: str, before: Exception | None) -> TimerError:
        """Return what an error of the broker means for the caller, and what to do about it."""
        prefix = self._subjects.prefix
        if self._is_forbidden(subject, before):
            return NotPermitted(
                f"the broker does not let this user publish to {subject}: grant it (docs/permissions.md)"
            )
        if isinstance(error, NotFoundError | NoStreamResponseError):
            return ServiceAway(
                f"the broker has no stream for {subject}: start timer-service on it once, or give Timers the"
                f" prefix (TIMER_SUBJECT_PREFIX) and the domain that the service has (prefix is {prefix!r})"
            )
        if isinstance(error, NoRespondersError):
            return ServiceAway(
                f"no timer-service answers on {subject}: start it, or give Timers the prefix"
                f" (TIMER_SUBJECT_PREFIX) that it has (prefix is {prefix!r})"
            )
        if isinstance(error, APIError):
            return RequestRefused(str(error.code), f"the broker refused {subject}: {error.description}")
        if isinstance(error, TimeoutError):
            return ServiceAway(f"no answer on {subject} in time: it may have been carried out, or not")
        return ServiceAway(f"the broker cannot be reached: {error}")

    def _is_forbidden(self, subject: str, before: Exception | None) -> bool:
        """Return whether the broker forbade this since; nats-py puts its words into lower case."""
        last = self._connection.last_error
        told = "" if last is None or last is before else str(last)
        return "permissions violation" in told and subject.lower() in told


def read_answer(message: Msg) -> dict[str, Any]:
    """Return what the service answered, or raise RequestRefused."""
    headers = message.headers or {}
    if "Nats-Service-Error" in headers:
        wait = headers.get("Retry-After", "")
        code = headers.get("Nats-Service-Error-Code", "")
        raise (TimerNotFound if code == "404" else RequestRefused)(
            code, headers["Nats-Service-Error"], int(wait) if wait.isdigit() else None
        )
    result: dict[str, Any] = json.loads(message.data)
    return result


def as_model(model: type[Answer], answer: dict[str, Any]) -> Answer:
    """Return an answer by its model; raise RequestRefused for one that the service never gives."""
    try:
        return wire.read_value(model, answer)
    except wire.WireError as error:
        raise RequestRefused("500", f"the answer cannot be read: {error.detail}") from error


def check_ids(tenant_id: str, service_call_id: str | None = None, correlation_id: str | None = None) -> None:
    """Refuse here what the service would refuse: the caller learns of it at once."""
    if not _keeps(wire.is_tenant_id, tenant_id):
        raise ValueError(f"tenant must be {wire.TENANT_RULE} (got {tenant_id!r})")
    if service_call_id is not None and not _keeps(wire.is_service_call_id, service_call_id):
        raise ValueError(f"id must be {wire.SERVICE_CALL_RULE} (got {service_call_id!r})")
    if correlation_id is not None and not _keeps(wire.is_correlation_id, correlation_id):
        raise ValueError(f"correlation id must be {wire.CORRELATION_RULE} (got {correlation_id!r})")


def _keeps(rule: Callable[[str], bool], value: object) -> bool:
    return isinstance(value, str) and rule(value)


def new_id() -> UUID:
    """Return a UUIDv7: 48 bits of milliseconds, then random bits."""
    moment = now_ms() << 80
    version_and_variant = 0x7 << 76 | 0b10 << 62
    return UUID(int=moment | version_and_variant | secrets.randbits(12) << 64 | secrets.randbits(62))


def now_ms() -> int:
    """Return this machine's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
