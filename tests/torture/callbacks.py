"""Callbacks under races, kills and several instances: what was answered must be what came."""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.guarantees import conclude, exceeded
from tests.support.patience import PATIENCE_S
from tests.support.postgres import fresh_schema
from tests.torture.callback_site import Away, Receiver, Site
from timer_service.waiting import owned

LOT = 500
"""Timers that are created together, and due one after another."""
LOT_LASTS_S = 2.0
RACERS = 64
JITTER_S = 0.004
STEP_S = 0.02
PER_SECOND = 100
ANSWERS_IN_S = 0.1
"""What the receiver takes, so that some callbacks are always under way."""
LONGEST_LIFE_S = 0.6
NOTICED_S = 0.02
"""What the receiver may take to see that a sender is gone."""
TAKEN_OVER_WITHIN_S = 30.0

_OUTCOMES = """
SELECT tenant_id, service_call_id, state, attempts, status, ended_at FROM callback_deliveries ORDER BY 1, 2
"""

Counts = dict[str, Any]


async def races(folder: Path, count: int) -> Counts:
    """Cancel each timer at its due time: either the answer says so and nothing comes, or it comes once."""
    answers: dict[str, int] = {}
    async with Receiver().receiving() as receiver, Site(folder, receiver).running() as site:
        chance, offset_s = random.Random(1), 0.0
        for first in range(0, count, LOT):
            names = [f"order-{number}" for number in range(first, min(first + LOT, count))]
            lot = await _race(site, names, chance, offset_s)
            answers |= lot
            # So that both sides win about as often, however fast the machine is just now.
            won = sum(status == 200 for status in lot.values()) / len(lot)
            offset_s += STEP_S * (won - 0.5)
        reached = [name for name, status in answers.items() if status == 409]
        await site.until(lambda: all(name in receiver.calls for name in reached), "callbacks")
    cancelled = {name for name, status in answers.items() if status == 200}
    return {
        "races": len(answers),
        "won by the cancel": len(cancelled),
        "won by the due time": len(reached),
        "cancelled and called all the same": len(cancelled & receiver.calls.keys()),
        "refused and never called": len(set(reached) - receiver.calls.keys()),
        "called more than once": sum(len(calls) > 1 for calls in receiver.calls.values()),
        "called before the due time": _early(receiver),
    }


async def _race(site: Site, names: list[str], chance: random.Random, offset_s: float) -> dict[str, int]:
    first_s = time.time() + 1.0
    due = {name: first_s + number * LOT_LASTS_S / len(names) for number, name in enumerate(names)}
    timers = [
        {"serviceCallId": name, "dueAt": _iso(at), "callback": site.callback()} for name, at in due.items()
    ]
    status, created = await site.ask("POST", "/v1/timers:batch", {"timers": timers})
    assert status == 200, created
    assert {each["status"] for each in created["results"]} == {201}
    waiting, answers = iter(due.items()), dict[str, int]()

    async def cancel_one_after_another() -> None:
        for name, at in waiting:
            await asyncio.sleep(at + offset_s + chance.uniform(-JITTER_S, JITTER_S) - time.time())
            answers[name] = await _cancelled(site, name)

    await asyncio.gather(*(cancel_one_after_another() for _ in range(RACERS)))
    return answers


async def _cancelled(site: Site, name: str) -> int:
    """Cancel, again if the answer is not definite, and return the status that is."""
    while True:
        status, answer = await site.ask("DELETE", f"/v1/timers/{name}")
        if status in (200, 409):
            return status
        assert status == 503, answer


async def kills(folder: Path, count: int, database: str | None = None) -> Counts:
    """Kill a service under load again and again: every callback comes, a repeated one under the same id."""
    chance, accepted, waits_s = random.Random(2), set[str](), list[float]()
    instances = 1 if database is None else 2
    async with (
        Receiver(ANSWERS_IN_S).receiving() as receiver,
        Site(folder, receiver, database, instances).running() as site,
    ):
        async with owned(_load(site, accepted)):
            while len(waits_s) < count:
                await asyncio.sleep(chance.uniform(0.1, LONGEST_LIFE_S))
                waited = await _kill(site, chance.randrange(instances))
                if waited is not None:
                    waits_s.append(waited)
        await site.until(lambda: all(name in receiver.calls for name in accepted), "callbacks")
        await site.until(lambda: not receiver.unanswered, "answers")
        left = await _waiting(site)
    calls = receiver.calls
    return {
        "kill -9 of a service inside its calls": count,
        "callbacks": len(accepted),
        "lost": len(accepted - calls.keys()) + left,
        "called again": sum(len(each) > 1 for each in calls.values()),
        "called under another id": sum(len({call.id for call in each}) > 1 for each in calls.values()),
        "called before the due time": _early(receiver),
        "kill to first repeated call, median s": round(sorted(waits_s)[len(waits_s) // 2], 2),
        "kill to first repeated call, worst s": round(max(waits_s), 2),
    }


async def _load(site: Site, accepted: set[str]) -> None:
    """Create timers that are due soon, each asked for again until it is known to be there."""
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            number += 1
            tasks.create_task(_create(site, f"order-{number}", number % len(site.ports), accepted))
            await asyncio.sleep(1 / PER_SECOND)


async def _create(site: Site, name: str, instance: int, accepted: set[str]) -> None:
    body = {"serviceCallId": name, "delayMs": 300, "callback": site.callback()}
    while True:
        try:
            status, answer = await site.ask(
                "POST", "/v1/timers", body, instance=instance, headers={"idempotency-key": name}
            )
        except Away:
            instance = (instance + 1) % len(site.ports)
            await asyncio.sleep(0.05)
            continue
        if status in (200, 201):
            accepted.add(name)
            return
        assert status == 503, answer


async def _kill(site: Site, number: int) -> float | None:
    """Kill one instance; return how long a call that it had under way took to be repeated, if it had any.

    Alone it is started again at once, otherwise after another instance has taken over.
    """
    receiver, service = site.receiver, site.services[number]
    repeated: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    killed_s = time.time()
    await asyncio.to_thread(service.kill)
    await asyncio.sleep(NOTICED_S)
    cut_off = receiver.cut_off()
    receiver.watched = dict.fromkeys(cut_off, repeated)
    alone = len(site.services) == 1
    if alone:
        await asyncio.to_thread(service.restart)
    try:
        return (await asyncio.wait_for(repeated, TAKEN_OVER_WITHIN_S) - killed_s) if cut_off else None
    except TimeoutError:
        return TAKEN_OVER_WITHIN_S
    finally:
        receiver.watched = {}
        if not alone:
            await asyncio.to_thread(service.restart)
        # A service with nothing under way would be killed again before it is up, and so on forever.
        await asyncio.to_thread(service.wait_for_log, "service.started")


async def cluster(folder: Path, count: int, database: str) -> Counts:
    """Let two instances share a burst, then stop one inside its calls."""
    async with Receiver().receiving() as receiver, Site(folder, receiver, database, 2).running() as site:
        await _create_due_together(site, "burst", count)
        await site.until(lambda: len(receiver.calls) == count, "the burst")
        await _until_none_waits(site)
        burst = Counter(len(calls) for calls in receiver.calls.values())

        receiver.calls.clear()
        receiver.delay_s = 2.0
        stopped = count // 20
        await _create_due_together(site, "stopped", stopped)
        # The first one alone takes them, then it is frozen and the other one wakes up.
        os.kill(site.services[1].pid, signal.SIGSTOP)
        await site.until(lambda: len(receiver.unanswered) >= min(8, stopped), "calls under way")
        under_way = set(receiver.unanswered)
        os.kill(site.services[0].pid, signal.SIGSTOP)
        os.kill(site.services[1].pid, signal.SIGCONT)
        receiver.delay_s = 0.05
        await site.until(lambda: len(receiver.calls) == stopped, "the other instance")
        await _until_none_waits(site, instance=1)
        before = await _rows(database)
        os.kill(site.services[0].pid, signal.SIGCONT)
        await asyncio.sleep(5.0)  # What it had under way ends, and is kept or not.
        after = await _rows(database)
        again = [calls for calls in receiver.calls.values() if len(calls) > 1]
    return {
        "callbacks of two instances at one instant": count,
        "called once": burst[1],
        "called more than once": count - burst[1],
        "callbacks while one instance was stopped": stopped,
        "under way when it was stopped": len(under_way),
        "called again by the other": len(again),
        "called under another id": sum(len({call.id for call in calls}) > 1 for calls in again),
        "not delivered": sum(row["state"] != "Delivered" for row in after),
        "outcomes that a late one has changed": sum(
            one != other for one, other in zip(before, after, strict=True)
        ),
    }


async def _create_due_together(site: Site, name: str, count: int) -> None:
    due_at = _iso(time.time() + 5 + count / 500)
    for first in range(0, count, 1_000):
        timers = [
            {"serviceCallId": f"{name}-{number}", "dueAt": due_at, "callback": site.callback()}
            for number in range(first, min(first + 1_000, count))
        ]
        status, created = await site.ask("POST", "/v1/timers:batch", {"timers": timers})
        assert status == 200, created
        assert {each["status"] for each in created["results"]} == {201}


async def _until_none_waits(site: Site, instance: int = 0) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while await _waiting(site, instance):
        assert time.monotonic() < deadline, "deliveries wait forever"
        await asyncio.sleep(0.2)


async def _waiting(site: Site, instance: int = 0) -> int:
    """Return how many deliveries wait at the end, of those that had time to be kept."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status, page = await site.ask("GET", "/v1/deliveries?state=waiting&limit=500", instance=instance)
        assert status == 200, page
        if not page["deliveries"] or time.monotonic() > deadline:
            return len(page["deliveries"])
        await asyncio.sleep(0.2)


async def _rows(database: str) -> list[Any]:
    link = await asyncpg.connect(database)
    try:
        return list(await link.fetch(_OUTCOMES))
    finally:
        await link.close()


async def run(proof: str, count: int, folder: Path) -> Counts:
    """Run one of the proofs; the kills on both databases."""
    if proof == "races":
        return await races(folder, count)
    async with fresh_schema() as database:
        if proof == "cluster":
            return await cluster(folder, count, database)
        # At the same time: most of it is waiting until what a dead instance has claimed is free.
        found = await asyncio.gather(
            kills(folder / "sqlite", count), kills(folder / "postgres", count, database)
        )
    kinds = zip(("SQLite", "PostgreSQL"), found, strict=True)
    return {f"{kind}: {name}": value for kind, counts in kinds for name, value in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proof", choices=["races", "kills", "cluster"])
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="callbacks-", ignore_cleanup_errors=True) as folder:
        counts = asyncio.run(run(options.proof, options.count, Path(folder)))
    counts["seconds"] = round(time.monotonic() - started)
    return conclude(counts, exceeded(f"make callback-{options.proof}", counts), options.record)


def _early(receiver: Receiver) -> int:
    return sum(call.arrived_s < call.due_s for calls in receiver.calls.values() for call in calls)


def _iso(at_s: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)).isoformat()


if __name__ == "__main__":
    sys.exit(main())
