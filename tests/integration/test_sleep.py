"""A sleep outlives the process that sleeps: in Python, and in a shell."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.process import TimerServiceProcess, run_cli
from timer_client import TimerNotFound, Timers
from timer_service.testing import START
from timer_service.testing.kit import running_service

KILLS = 20
SPAN = timedelta(hours=3)


async def test_a_sleep_in_a_shell_takes_as_long_after_twenty_kills(
    shared_broker: NatsServer, prefix: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"broker_url": shared_broker.url, "subject_prefix": prefix}
    chance = random.Random(7)
    async with running_service(shared_broker.url, prefix) as virtual:
        asked_at = START

        async def sleeping() -> TimerServiceProcess:
            process = TimerServiceProcess(
                tmp_path, "sleep", "--id", "nightly-7", "--for", "3h", "--json", **settings
            )
            return await asyncio.to_thread(process.start)

        async with await nats.connect(shared_broker.url) as connection:
            timers = Timers(connection, tenant="default", prefix=prefix)
            for kill in range(KILLS):
                process = await sleeping()
                if kill == 0:
                    await _until_there(timers, "nightly-7")
                await asyncio.sleep(chance.random() / 10)
                await virtual.walk.advance_to(asked_at + kill * SPAN / KILLS)
                await asyncio.to_thread(process.kill)
            process = await sleeping()
            before = await timers.get("nightly-7")
            await virtual.walk.advance_to(asked_at + SPAN)
            code = await asyncio.to_thread(process.wait)
            after = await timers.get("nightly-7")
        again = await asyncio.to_thread(
            lambda: run_cli("sleep", "--id", "nightly-7", "--for", "3h", cwd=tmp_path, **settings)
        )

    assert (before.state, before.generation, before.due_at) == ("Scheduled", 1, asked_at + SPAN)
    assert (code, after.state, after.reached_at) == (0, "Reached", asked_at + SPAN)
    assert (again.returncode, again.stdout.split()[:3]) == (0, ["default/nightly-7", "was", "due"])


async def test_a_sleep_in_python_takes_as_long_after_twenty_restarts(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with running_service(shared_broker.url, prefix) as virtual:
        asked_at = START
        for restart in range(KILLS):
            async with await nats.connect(shared_broker.url) as connection:
                timers = Timers(connection, tenant="acme", prefix=prefix)
                sleeping = asyncio.ensure_future(timers.sleep("nightly-7", SPAN))
                await _until_there(timers, "nightly-7")
                await virtual.walk.advance_to(asked_at + restart * SPAN / KILLS)
                sleeping.cancel()
                await asyncio.wait({sleeping})
        async with await nats.connect(shared_broker.url) as connection:
            timers = Timers(connection, tenant="acme", prefix=prefix)
            sleeping = asyncio.ensure_future(timers.sleep("nightly-7", SPAN))
            await virtual.walk.advance_to(asked_at + SPAN)
            async with asyncio.timeout(PATIENCE_S):
                slept = await sleeping

    assert (slept.state, slept.generation, slept.due_at) == ("Reached", 1, asked_at + SPAN)
    assert slept.reached_at == asked_at + SPAN


async def test_a_sleep_waits_for_a_service_that_is_away(
    shared_broker: NatsServer, prefix: str, tmp_path: Path
) -> None:
    service = TimerServiceProcess(
        tmp_path, broker_url=shared_broker.url, subject_prefix=prefix, db_path=tmp_path / "timers.db"
    )
    service.start_ready().kill()
    async with await nats.connect(shared_broker.url) as connection:
        timers = Timers(connection, tenant="acme", prefix=prefix)
        sleeping = asyncio.ensure_future(timers.sleep("nightly-7", timedelta(milliseconds=1)))
        await asyncio.sleep(0)
        service.restart()
        try:
            async with asyncio.timeout(PATIENCE_S):
                slept = await sleeping
        finally:
            service.close()

    assert slept.state == "Reached"


def test_a_sleep_that_was_cancelled_ends_the_script(
    shared_broker: NatsServer, prefix: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"broker_url": shared_broker.url, "subject_prefix": prefix}
    service = TimerServiceProcess(tmp_path, db_path=tmp_path / "timers.db", **settings).start_ready()
    run_cli("cancel", "--tenant", "default", "--id", "nightly-7", cwd=tmp_path, **settings)

    slept = run_cli("sleep", "--id", "nightly-7", "--for", "3h", cwd=tmp_path, **settings)
    service.close()

    assert (slept.returncode, slept.stdout) == (4, "")
    assert "the sleep 'nightly-7' was cancelled" in slept.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--id", "nightly-7", "--for", "3"), "must be a duration"),
        (("--id", "two words", "--for", "3s"), "id must be 1 to 255 characters"),
        (("--for", "3s"), "the following arguments are required: --id"),
    ],
)
def test_a_wrong_sleep_is_refused_in_one_line(
    shared_broker: NatsServer, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = run_cli("sleep", *arguments, cwd=tmp_path, broker_url=shared_broker.url)

    assert refused.returncode == 2
    assert complaint in refused.stderr.splitlines()[-1]


async def _until_there(timers: Timers, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await timers.get(name)
                return
            except TimerNotFound:
                await asyncio.sleep(0.01)
