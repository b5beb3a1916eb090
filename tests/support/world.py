"""What a test of the whole service needs: a broker, the process, and a tenant's view of both."""

import asyncio
import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.process import TimerServiceProcess

NO_REDELIVERY_MS = 600_000
"""As TIMER_ACK_WAIT: a command that got stuck does not come again while the test lives, so that it shows."""

REGISTER = re.compile(
    r"(due|correlation|trace|first)_stream_(created_us|sequence)|first_if_absent|pending_due_ms"
)
"""Which command set a part of the row, and what an index needs: not part of what a row says."""


class World:
    """A timer-service and its broker, used only through NATS, the file and the process."""

    def __init__(self, folder: Path, broker: NatsServer, prefix: str) -> None:
        self.folder = folder
        self.broker = broker
        self.prefix = prefix
        self.db_path = folder / "timers.db"
        stem = prefix.upper()
        self.commands_stream = f"{stem}_COMMANDS"
        self.events_stream = f"{stem}_EVENTS"
        self.letters_stream = f"{stem}_DEADLETTER"
        self.client: Client
        self.jetstream: JetStreamContext
        self._processes: list[TimerServiceProcess] = []

    async def open(self, **options: Any) -> "World":
        """Connect as a tenant; `options` of nats.connect are for brokers that ask who is there."""
        self.client = await nats.connect(
            self.broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore, **options
        )
        self.jetstream = self.client.jetstream(timeout=PATIENCE_S)
        return self

    async def close(self) -> None:
        for process in self._processes:
            process.close()
        with contextlib.suppress(Exception):
            await self.client.close()

    def service(self, **settings: object) -> TimerServiceProcess:
        """Prepare a service process on this world's broker and file; the test starts it."""
        defaults = {
            "broker_url": self.broker.url,
            "db_path": self.db_path,
            "subject_prefix": self.prefix,
            **self.broker.service_login,
        }
        process = TimerServiceProcess(self.folder, **{**defaults, **settings})
        self._processes.append(process)
        return process

    async def send(self, envelope: dict[str, Any], *, subject: str | None = None) -> int:
        """Publish a command as a tenant would and return its sequence in the stream."""
        default = f"{self.prefix}.commands.{envelope['tenantId']}.{envelope['type']}"
        return await self.send_raw(subject or default, messages.encode(envelope), envelope.get("id"))

    async def send_raw(self, subject: str, body: bytes, message_id: str | None = None) -> int:
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        answer = await self.jetstream.publish(subject, body, headers=headers)
        return int(answer.seq)

    async def schedule(self, tenant: str, call: str, due: datetime | str, **changes: Any) -> int:
        return await self.send(messages.schedule(tenant, call, due, **changes))

    async def cancel(self, tenant: str, call: str, **changes: Any) -> int:
        return await self.send(messages.cancel(tenant, call, **changes))

    async def events(self, tenant: str | None = None) -> list[dict[str, Any]]:
        """Return every event the stream holds, in its order."""
        wanted = f"{self.prefix}.events.{tenant or '*'}.*"
        return [json.loads(body) for _, body, _ in await self._stream(self.events_stream, wanted)]

    async def letters(self) -> list[dict[str, Any]]:
        """Return every dead letter, each with the subject it stands on as `letterSubject`."""
        found = await self._stream(self.letters_stream, f"{self.prefix}.deadletter.>")
        return [{**json.loads(body), "letterSubject": subject} for subject, body, _ in found]

    async def stored_ids(self) -> list[str]:
        """Return the Nats-Msg-Id of every event the stream holds, in its order."""
        found = await self._stream(self.events_stream, f"{self.prefix}.events.>")
        return [headers["Nats-Msg-Id"] for _, _, headers in found]

    async def _stream(self, name: str, subject: str) -> list[tuple[str, bytes, dict[str, str]]]:
        try:
            info = await self.jetstream.stream_info(name)
        except NotFoundError:
            return []
        if info.state.messages == 0:
            return []
        subscription = await self.jetstream.subscribe(subject, stream=name, ordered_consumer=True)
        found: list[tuple[str, bytes, dict[str, str]]] = []
        try:
            consumer = await subscription.consumer_info()
            if consumer.num_pending == 0 and consumer.delivered and consumer.delivered.consumer_seq == 0:
                return []
            while True:
                message = await subscription.next_msg(timeout=PATIENCE_S)
                found.append((message.subject, message.data, message.headers or {}))
                if message.metadata.num_pending == 0:
                    return found
        finally:
            await subscription.unsubscribe()

    async def wait_for_events(
        self, count: int, tenant: str | None = None, timeout_s: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        """Wait until the stream holds this many events and return them all."""
        return await self._wait_for_count(lambda: self.events(tenant), count, timeout_s)

    async def wait_for_event_count(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the stream holds this many events, without reading them; an outage only delays it."""

        async def enough() -> bool:
            with contextlib.suppress(NatsError, TimeoutError):
                async with asyncio.timeout(5):
                    return (await self.jetstream.stream_info(self.events_stream)).state.messages >= count
            return False

        await self.until(enough, f"{count} events", timeout_s)

    async def wait_for_letters(self, count: int, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        return await self._wait_for_count(self.letters, count, timeout_s)

    async def _wait_for_count(
        self, read: Callable[[], Awaitable[list[dict[str, Any]]]], count: int, timeout_s: float
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def enough() -> bool:
            found[:] = await read()
            return len(found) >= count

        await self.until(enough, f"{count} messages", timeout_s)
        return found

    async def until(
        self, condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until a condition holds; fail with `what` where it does not."""
        deadline = time.monotonic() + timeout_s
        while not await condition():
            assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
            await asyncio.sleep(0.02)

    async def wait_until_consumed(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the service has acknowledged or set aside every command."""

        async def empty() -> bool:
            return (await self.jetstream.stream_info(self.commands_stream)).state.messages == 0

        await self.until(empty, "the command stream to be empty", timeout_s)

    async def wait_for_broker(self) -> None:
        """Wait until our own connection has found the broker again, with JetStream ready."""

        async def answers() -> bool:
            with contextlib.suppress(NatsError, TimeoutError):
                await self.client.request("$JS.API.INFO", timeout=0.5)
                return True
            return False

        await self.until(answers, "the broker to answer")

    async def deliveries(self) -> int:
        """Return how often the broker gave the service a command; one that came again counts again."""
        consumer = await self.jetstream.consumer_info(self.commands_stream, "timer-service")
        assert consumer.delivered is not None
        return int(consumer.delivered.consumer_seq)

    async def wait_until_all_reached(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the file holds this many timers and every one is marked as reached."""

        async def reached() -> bool:
            return [row["state"] for row in self.rows()] == ["Reached"] * count

        await self.until(reached, f"{count} timers to be marked as reached", timeout_s)

    def row(self, tenant: str, call: str) -> dict[str, Any] | None:
        """Return the timer's row as it stands in the file."""
        rows = self.rows("WHERE tenant_id = ? AND service_call_id = ?", tenant, call)
        return rows[0] if rows else None

    def rows(self, where: str = "", *parameters: Any) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(f"{self.db_path.as_uri()}?mode=ro", uri=True)) as link:
            link.row_factory = sqlite3.Row
            rows = link.execute(f"SELECT * FROM timer_schedules {where}", parameters).fetchall()
            return [{k: v for k, v in dict(row).items() if not REGISTER.fullmatch(k)} for row in rows]

    async def wait_for_row(self, tenant: str, call: str, **columns: Any) -> dict[str, Any]:
        """Wait until the timer's row has these values."""

        async def there() -> bool:
            row = self.row(tenant, call)
            return row is not None and {name: row[name] for name in columns} == columns

        await self.until(there, f"{tenant}/{call} with {columns}")
        row = self.row(tenant, call)
        assert row is not None
        return row


async def _ignore(error: Exception) -> None:
    """Broker outages are part of many tests."""
