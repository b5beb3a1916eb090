"""One site under torture: the real service, the real broker, the wire between them, and what befalls them."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy
from nats.js.errors import NotFoundError

from tests.support.broker import SERVICE_LOGIN, SHIPPED_PERMISSIONS, NatsServer
from tests.support.process import TimerServiceProcess
from tests.torture.ledger import Findings, Ledger, read_rows, still_scheduled
from tests.torture.load import COMMANDS, EVENTS, Tenants, now_ms
from tests.torture.machine import Machine
from tests.torture.wire import FaultyWire

SETTLED_S = 60.0
"""After the last fault everything that is due has to be out within this many seconds."""
RECOVERY_LIMIT_S = 45.0

ALLOWED = "$SERVICE_PERMISSIONS"
"""What the service is shipped with, and no more."""
REVOKED = '{ publish: { allow: [">"], deny: ["timer.events.acme.>"] }, subscribe: [">"] }'
USERS = """include '{shipped}'
no_auth_user: test
authorization {{ users: [
  {{ user: service, password: secret, permissions: {permissions} }}
  {{ user: test, password: secret }}
  # The broker wants every variable of the included file to be used.
  {{ user: other, password: secret, permissions: $SERVICE_PERMISSIONS }}
  {{ user: operator, password: secret, permissions: $OPERATOR_PERMISSIONS }}
  {{ user: monitor, password: secret, permissions: $MONITOR_PERMISSIONS }}
] }}"""


class Site:
    """Everything that runs, and the ledger of it."""

    def __init__(self, folder: Path, seed: int, longest_s: float = 8.0) -> None:
        self.ledger = Ledger()
        self.random = Random(seed)
        self._folder = folder
        self._seed = seed
        self.broker = NatsServer(folder / "broker", self._users(ALLOWED))
        self.machine = Machine(folder / "machine")
        self.wire = FaultyWire(self.broker.port)
        self.tenants = Tenants(self.broker.url, self.ledger, seed, longest_s)
        self.db_path = folder / "timers.db"
        self.service: TimerServiceProcess
        self.ended_by_itself: list[str] = []
        self._left: list[tuple[str, str]] = []
        """Some of the timers that should have been marked when that was last looked for."""
        self.most: dict[str, int] = {"memory in MB": 0, "open files": 0, "log of the database in MB": 0}

    async def open(self) -> None:
        await asyncio.to_thread(self.broker.start)
        await self.wire.mend()
        await self.tenants.open()
        self.service = TimerServiceProcess(
            self._folder / "service",
            broker_url=f"nats://127.0.0.1:{self.wire.port}",
            **SERVICE_LOGIN,
            db_path=self.db_path,
            ack_wait=2_000,
            log_level="warning",
        )
        with self.machine.around():
            self.service.start()
        await self.until(self._has_streams, "the service to make its streams")

    def _users(self, permissions: str) -> str:
        shipped = os.path.relpath(SHIPPED_PERMISSIONS, self._folder / "broker")
        return USERS.format(shipped=shipped, permissions=permissions)

    async def close(self) -> None:
        await self.tenants.close()
        self.service.close()
        await self.wire.cut()
        self.broker.kill()

    async def until(
        self, holds: Callable[[], Awaitable[bool]], what: str, limit_s: float = SETTLED_S
    ) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                if await holds():
                    return
            except (NatsError, TimeoutError, OSError):
                pass  # The broker may be away, or the stream.
            if time.monotonic() > deadline:
                left = f"; left: {self._left}" if self._left else ""
                raise AssertionError(f"waited {limit_s:g} s in vain for {what}{left}")
            await asyncio.sleep(0.05)

    async def _has_streams(self) -> bool:
        await self.tenants.jetstream.stream_info(COMMANDS)
        await self.tenants.jetstream.stream_info(EVENTS)
        return True

    def _restart(self) -> None:
        with self.machine.around():
            self.service.restart()

    # Nemeses: each does its worst, puts it right again, and says from when on the service can recover.

    async def kill_service(self) -> float:
        await asyncio.to_thread(self.service.kill)
        await asyncio.sleep(self.random.choice((0.0, 0.2, 1.0)))
        self._restart()
        return time.monotonic()

    async def kill_broker(self) -> float:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.sleep(self.random.choice((0.0, 0.2, 1.0)))
        await asyncio.to_thread(self.broker.start)
        return time.monotonic()

    async def stop_service_in_order(self) -> float:
        code = await asyncio.to_thread(self.service.terminate)
        if code != 0:
            self.ended_by_itself.append(f"exit code {code} after SIGTERM")
        self._restart()
        return time.monotonic()

    async def freeze_service(self) -> float:
        os.kill(self.service.pid, signal.SIGSTOP)
        await asyncio.sleep(1 + self.random.random() * 3)
        os.kill(self.service.pid, signal.SIGCONT)
        return time.monotonic()

    async def freeze_broker(self) -> float:
        self.broker.freeze()
        await asyncio.sleep(1 + self.random.random() * 3)
        self.broker.thaw()
        return time.monotonic()

    async def partition(self) -> float:
        await self.wire.cut()
        await asyncio.sleep(self.random.random() * 3)
        await self.wire.mend()
        return time.monotonic()

    async def delay(self) -> float:
        self.wire.delay_s = 0.05 + self.random.random() * 0.3
        await asyncio.sleep(3)
        self.wire.delay_s = 0.0
        return time.monotonic()

    async def half_open(self) -> float:
        self.wire.stall()
        await asyncio.sleep(1 + self.random.random() * 5)
        if self.random.random() < 0.5:
            await self.wire.reset()
        self.wire.flow()
        return time.monotonic()

    async def cut_in_a_message(self) -> float:
        self.wire.cut_after_bytes = self.random.randrange(20_000)
        await asyncio.sleep(1)
        self.wire.cut_after_bytes = None
        return time.monotonic()

    async def swallow_replies(self) -> float:
        self.wire.swallows_replies = True
        await asyncio.sleep(1 + self.random.random() * 3)
        self.wire.swallows_replies = False
        await self.wire.reset()  # What is left of the last message is not a message.
        return time.monotonic()

    async def fill_event_stream(self) -> float:
        await self._configure(EVENTS, max_msgs=1, discard=DiscardPolicy.NEW)
        await asyncio.sleep(2)
        await self._configure(EVENTS, max_msgs=-1, discard=DiscardPolicy.OLD)
        return time.monotonic()

    async def fill_command_stream(self) -> float:
        before = (await self.tenants.jetstream.stream_info(COMMANDS)).config.max_msgs
        await self._configure(COMMANDS, max_msgs=1)
        await asyncio.sleep(2)
        await self._configure(COMMANDS, max_msgs=before)
        return time.monotonic()

    async def _configure(self, stream: str, **changes: Any) -> None:
        async def done() -> bool:
            config = (await self.tenants.jetstream.stream_info(stream)).config.evolve(**changes)
            await self.tenants.jetstream.update_stream(config)
            return True

        await self.until(done, f"{stream} to take {changes}")

    async def delete_consumer(self) -> float:
        await self.tenants.jetstream.delete_consumer(COMMANDS, "timer-service")
        return time.monotonic()

    async def delete_event_stream(self) -> float:
        # What was in it counts as fired: others have read it.
        await self.tenants.read_events()
        # Twice in a row: an event is seen on its subject before the service has made the stream again.
        with suppress(NotFoundError):
            await self.tenants.jetstream.delete_stream(EVENTS)
        return time.monotonic()

    async def delete_command_stream(self) -> float:
        """Delete it while it is empty: what it held would be gone with it."""
        self.tenants.may_work.clear()
        try:
            await self.tenants.finished()
            await self.until(self._nothing_waits, "the command stream to be empty")
            await self.tenants.read_letters()
            self.ledger.era += 1
            await self.tenants.jetstream.delete_stream(COMMANDS)
            await self.until(self._has_streams, "the service to make the stream again")
        finally:
            self.tenants.may_work.set()
        return time.monotonic()

    async def _nothing_waits(self) -> bool:
        return await self.tenants.waiting_commands() == 0

    async def revoke_permissions(self) -> float:
        self.broker.reconfigure(self._users(REVOKED))
        self.broker.reload()
        await asyncio.sleep(2)
        self.broker.reconfigure(self._users(ALLOWED))
        self.broker.reload()
        return time.monotonic()

    async def fill_disk(self) -> float:
        self.machine.fail(errno.ENOSPC)
        await asyncio.sleep(2)
        self.machine.recover()
        return time.monotonic()

    async def step_clock(self) -> float:
        """Step by less than the limit, which is followed, or by more, which is held back; then back."""
        step_s = self.random.choice((-30, -1, 1, 30, 7_200, 315_360_000))
        if 0 < step_s < 3_600:
            self.ledger.put_ahead(now_ms(), step_s * 1000)
        self.machine.step_clock(step_s * 1000)
        await asyncio.sleep(2)
        if 0 < step_s < 3_600:
            self.ledger.put_ahead(now_ms(), step_s * 1000)
        self.machine.step_clock(0)
        return time.monotonic()

    # The run.

    async def suffer(self, kind: str) -> None:
        """Let one nemesis loose and wait until timers fire again."""
        if not self.service.is_running:
            self.ended_by_itself.append(f"before {kind}: {''.join(self.service.stderr[-3:])}")
            self._restart()
        since = await NEMESES[kind](self)
        self.ledger.faults[kind] += 1
        self.tenants.seen.clear()
        async with asyncio.timeout(RECOVERY_LIMIT_S):
            await self.tenants.seen.wait()
        if kind in ("kill -9 of the service", "kill -9 of the broker"):
            self.ledger.recoveries_s[kind].append(time.monotonic() - since)
        self._measure()

    def _measure(self) -> None:
        now = self.measured()
        self.most = {name: max(most, round(now.get(name, 0))) for name, most in self.most.items()}

    def measured(self) -> dict[str, float]:
        """Return what the service takes at this moment; nothing if it does not run."""
        process = Path(f"/proc/{self.service.pid}")
        if not self.service.is_running or not process.exists():
            return {}
        pages = int((process / "statm").read_text().split()[1])
        log = self.db_path.with_name(self.db_path.name + "-wal")
        return {
            "memory in MB": pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000,
            "open files": len(list((process / "fd").iterdir())),
            "log of the database in MB": log.stat().st_size / 1_000_000 if log.exists() else 0,
        }

    async def settle(self) -> Findings:
        """Let everything that is due come out, end the service, and look at what is there."""
        await self.tenants.finished()
        await self.until(self._nothing_waits, "every command to be consumed")
        await self.until(self.nothing_is_left, "everything that is due to be out")
        code = await asyncio.to_thread(self.service.terminate)
        if code != 0:
            self.ended_by_itself.append(f"exit code {code} at the end")
        await self.tenants.read_events()
        await self.tenants.read_letters()
        return self.ledger.check(read_rows(self.db_path), now_ms())

    async def nothing_is_left(self) -> bool:
        """Return whether all timers that have to fire in this run are marked."""
        self._left = still_scheduled(self.db_path, now_ms() + round(self.tenants.longest_s * 1000))
        return not self._left


NEMESES: dict[str, Callable[[Site], Awaitable[float]]] = {
    "kill -9 of the service": Site.kill_service,
    "kill -9 of the broker": Site.kill_broker,
    "SIGTERM of the service": Site.stop_service_in_order,
    "SIGSTOP of the service": Site.freeze_service,
    "SIGSTOP of the broker": Site.freeze_broker,
    "partition": Site.partition,
    "slow network": Site.delay,
    "half-open connection": Site.half_open,
    "connection cut within a message": Site.cut_in_a_message,
    "replies swallowed": Site.swallow_replies,
    "event stream full": Site.fill_event_stream,
    "command stream full": Site.fill_command_stream,
    "consumer deleted": Site.delete_consumer,
    "event stream deleted": Site.delete_event_stream,
    "command stream deleted": Site.delete_command_stream,
    "permissions revoked": Site.revoke_permissions,
    "disk full": Site.fill_disk,
    "clock stepped": Site.step_clock,
}
"""Name to what it does; each puts it right again at its end."""
