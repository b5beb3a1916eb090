"""Kill the real process right before the n-th write or sync of its store, for every n."""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from nats.errors import Error as NatsError

from tests.support.broker import NatsServer
from tests.support.guarantees import conclude
from tests.support.messages import in_seconds
from tests.support.process import TimerServiceProcess
from tests.support.world import World
from tests.torture.machine import Machine

NEAR = [f"near-{number}" for number in range(6)]
AT_ONCE = 4


@dataclass(slots=True)
class Outcome:
    """What came of one scenario."""

    step: int | None
    lives: int = 1
    steps: int = 0
    problems: list[str] = field(default_factory=list)


async def kill_at(step: int | None, folder: Path, broker: NatsServer, prefix: str) -> Outcome:
    """Let a service live through a first start, commands and firings, and die before one step of it."""
    outcome = Outcome(step)
    folder.mkdir(parents=True)
    machine = Machine(folder / "machine")
    if step is not None:
        machine.kill_at(step)
    world = await World(folder, broker, prefix).open()
    service = world.service(ack_wait=1_000, polling_interval=500)
    try:
        async with _supervised(service, machine, outcome):
            await world.until(lambda: _has_streams(world), "the service to make its streams")
            await world.schedule("acme", NEAR[0], in_seconds(3600))
            await world.schedule("acme", "cancelled", in_seconds(3600))
            await world.schedule("acme", "far", in_seconds(3600))
            for number, call in enumerate(NEAR):
                await world.schedule("acme", call, in_seconds(0.2 + number / 10))
            await world.cancel("acme", "cancelled")
            await world.wait_until_consumed()
            await world.until(lambda: _all_reached(world), "all timers to fire")
        code = service.terminate()
        if code == -signal.SIGKILL and outcome.lives == 1:  # The step was one of its last.
            outcome.lives += 1
            service.restart().wait_for_log("broker.connected")
            code = service.terminate()
        if code != 0:
            outcome.problems.append(f"it ended with {code}")
        if step is None:
            outcome.steps = machine.steps
        await _check(world, outcome)
    except AssertionError as error:
        outcome.problems.append(f"{error} {''.join(service.stderr[-3:])}")
    finally:
        await world.close()
    return outcome


@contextlib.asynccontextmanager
async def _supervised(
    service: TimerServiceProcess, machine: Machine, outcome: Outcome
) -> AsyncIterator[None]:
    """Start the service, and again whenever it dies."""
    with machine.around():
        service.start()

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.02)
            if not service.is_running:
                outcome.lives += 1
                with machine.around():
                    service.restart()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _has_streams(world: World) -> bool:
    with contextlib.suppress(NatsError, TimeoutError):
        async with asyncio.timeout(5):
            await world.jetstream.stream_info(world.commands_stream)
            await world.jetstream.stream_info(world.events_stream)
        return True
    return False


async def _all_reached(world: World) -> bool:
    states = {row["service_call_id"]: row["state"] for row in world.rows()}
    return all(states.get(call) == "Reached" for call in NEAR)


async def _check(world: World, outcome: Outcome) -> None:
    """Compare with what must be, whether or not anybody died."""
    rows = {row["service_call_id"]: (row["state"], row["generation"]) for row in world.rows()}
    expected = dict.fromkeys(NEAR, ("Reached", 1)) | {
        NEAR[0]: ("Reached", 2),
        "cancelled": ("Cancelled", 1),
        "far": ("Scheduled", 1),
    }
    if rows.get(NEAR[0]) == ("Reached", 1):
        # Its first command was under way when the process died, and came again after the second: too late.
        expected[NEAR[0]] = ("Reached", 1)
    if rows != expected:
        outcome.problems.append(f"the rows are {rows}")
    fired = sorted(event["payload"]["serviceCallId"] for event in await world.events())
    if fired != NEAR:
        outcome.problems.append(f"the events are {fired}")


async def kill_at_every_step(folder: Path, jobs: int) -> list[Outcome]:
    """Run the story once in peace, and then once for each of its steps."""
    broker = NatsServer(folder / "broker")
    await asyncio.to_thread(broker.start)
    try:
        peaceful = await kill_at(None, folder / "peaceful", broker, "peaceful")
        free = asyncio.Semaphore(jobs)

        async def one(step: int) -> Outcome:
            async with free:
                return await kill_at(step, folder / str(step), broker, f"s{step}")

        return [peaceful, *await asyncio.gather(*(one(step) for step in range(peaceful.steps)))]
    finally:
        broker.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.kills", description=__doc__)
    parser.add_argument("--jobs", type=int, default=AT_ONCE, help=f"scenarios at once ({AT_ONCE})")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        outcomes = asyncio.run(kill_at_every_step(Path(folder), options.jobs))
    broken = [f"step {o.step}: {problem}" for o in outcomes for problem in o.problems]
    counts: dict[str, object] = {
        "writes and syncs of the store": outcomes[0].steps,
        "processes killed before one of them": sum(o.lives - 1 for o in outcomes),
        "timers lost, doubled or wrong": len(broken),
        "seconds": round(time.monotonic() - started),
    }
    return conclude(counts, broken, options.record)


if __name__ == "__main__":
    sys.exit(main())
