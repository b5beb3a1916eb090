"""Cut the power of a recorded store at every write and sync, and open what is left with the real one."""

import argparse
import asyncio
import hashlib
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiosqlite

from tests.support.guarantees import conclude
from tests.support.timers import at, cancel, schedule
from tests.torture.platter import KEPT, WAYS, Image, Platter
from tests.torture.recorder import Acknowledged, Recorder, Step, Synced
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.callback import Callback, Sink
from timer_service.domain.errors import TimerServiceError
from timer_service.domain.messages import Command, ScheduleTimer
from timer_service.domain.timer import Outcome
from timer_service.testing import START

FILE = "timers.db"
CHANGES = 60
CHANGES_A_LIFE = 15
SMALL_LOG = SqliteLimits(max_log_bytes=100_000, log_growth_bytes=1)
SHORT_CHECKPOINTS = {"PRAGMA wal_autocheckpoint = 8000": "PRAGMA wal_autocheckpoint = 20"}
"""A load of seconds has to see checkpoints, and the log begun again, as a load of hours does."""
MAX_TURNS = 20

Pragmas = Mapping[str, str]
"""Statements of the store, and what is carried out instead."""


@dataclass(slots=True)
class Recording:
    """A load: what it did to the files, and what they held after each change."""

    steps: list[Step] = field(default_factory=list)
    states: list[str] = field(default_factory=list)


async def recorded(folder: Path, seed: int = 1, pragmas: Pragmas | None = None) -> Recording:
    """Put a store through a load that is the same for a seed, over several lives of its process."""
    recorder, load, states = Recorder(folder), _Load(Random(seed)), list[str]()
    driver = partial(_connect, pragmas=SHORT_CHECKPOINTS | dict(pragmas or {}))
    with recorder.recording():
        for life in range(CHANGES // CHANGES_A_LIFE):
            limits = SMALL_LOG if life % 2 else SqliteLimits()
            opening = open_sqlite_store(folder / FILE, lambda: START, driver=driver, limits=limits)
            async with opening as store:
                for number in range(CHANGES_A_LIFE + (life == 0)):
                    if life or number:  # The first change is the schema.
                        await load.change(store)
                    recorder.acknowledge(len(states))
                    states.append(_contents(folder / FILE))
    return Recording(recorder.steps, states)


class _Inline(aiosqlite.Connection):
    """aiosqlite's connection without its thread: the same every time. Some pragmas are replaced."""

    def __init__(self, pragmas: Pragmas, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._pragmas = pragmas

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        return self._open().__await__()

    async def _open(self) -> aiosqlite.Connection:
        self._connection = self._connector()
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return fn(
            *(self._pragmas.get(each, each) if isinstance(each, str) else each for each in args), **kwargs
        )

    def stop(self) -> None:
        self._running = False


def _connect(address: str, pragmas: Pragmas = SHORT_CHECKPOINTS, **options: Any) -> aiosqlite.Connection:
    return _Inline(pragmas, lambda: sqlite3.connect(address, **options))


class _Load:
    """One change after another, each a transaction of the store that its caller waits for."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    async def change(self, store: SqliteTimerStore) -> None:
        """Make a change; the next one comes when this one is acknowledged."""
        kinds: tuple[Callable[[SqliteTimerStore], Awaitable[object]], ...]
        kinds = (self._apply, self._apply, self._apply, self._decide, self._decide, self._fire, self._purge)
        await self._random.choice(kinds)(store)

    async def _apply(self, store: SqliteTimerStore) -> None:
        await store.apply([self._command() for _ in range(self._random.randint(1, 12))], at(0))

    async def _decide(self, store: SqliteTimerStore) -> None:
        body = self._random.randbytes(self._random.choice((10, 1_000, 9_000)))
        request = replace(self._schedule(), callback=Callback("https://shop.example/hooks", body=body))
        await store.decide([request], at(-100))

    async def _fire(self, store: SqliteTimerStore) -> None:
        sink = self._random.choice(list(Sink))
        async with store.claim_due(at(0), 8, sink=sink) as claim:
            await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])

    async def _purge(self, store: SqliteTimerStore) -> None:
        await store.purge(at(1), 3)

    def _command(self) -> Command:
        if self._random.random() < 0.8:
            return self._schedule()
        return cancel(self._name(), number=self._number)

    def _schedule(self) -> ScheduleTimer:
        due_s = self._random.randint(-50, 50)
        correlation = "c" * self._random.randint(1, 200)
        return schedule(self._name(), due_s, number=self._number, correlation=correlation)

    def _name(self) -> str:
        self._number += 1
        return f"order-{self._random.randint(1, 60)}"


def _contents(path: Path) -> str:
    """Return all that a file holds, schema and rows; first whether SQLite finds it sound."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        [(integrity,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        return "\n".join((integrity, *connection.iterdump()))


@dataclass(slots=True)
class Cuts:
    """What came of cutting the power."""

    ways: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many different files were opened."""
        return self.ways.total()


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut after a step; what is left by chance is another thing in each turn, and always the same."""

    step: int
    way: str
    turn: int


async def cut_everywhere(recording: Recording, folder: Path, count: int, seed: int = 1) -> Cuts:
    """Open what so many power cuts leave, no two of them the same, spread over the whole recording."""
    cuts, chosen = Cuts(), _chosen(recording.steps, count, Random(seed))
    for cut, acknowledged, image in _images(recording.steps, chosen.__contains__):
        cuts.ways[cut.way] += 1
        wrong = await _wrong(folder, image, recording.states[acknowledged : acknowledged + 2])
        if wrong is not None:
            cuts.problems.append(f"{cut}: {wrong}")
    return cuts


def _chosen(steps: list[Step], count: int, random: Random) -> set[Cut]:
    share = min(1.0, 3 * count / (len(WAYS) * len(steps)))
    found: dict[tuple[bytes, int], Cut] = {}
    for turn in range(MAX_TURNS):
        some = _images(steps, lambda cut: cut.turn == turn and random.random() < share)  # noqa: B023 - used here
        for cut, acknowledged, image in some:
            found.setdefault((_digest(image), acknowledged), cut)
        if len(found) >= count:
            return set(random.sample(list(found.values()), count))
    raise ValueError(f"the recording has {len(found)} different power cuts, too few for {count}")


def _images(steps: list[Step], wanted: Callable[[Cut], bool]) -> Iterator[tuple[Cut, int, Image]]:
    """Yield what power cuts leave, and how much was acknowledged before."""
    platter, acknowledged = Platter(), 0
    for number, step in enumerate(steps):
        if isinstance(step, Acknowledged):
            acknowledged = step.change
        platter.follow(step)
        for way in (KEPT,) if platter.is_clean else WAYS:
            for turn in range(MAX_TURNS):
                cut = Cut(number, way, turn)
                if wanted(cut):
                    yield cut, acknowledged, platter.cut(way, Random(str(cut)))


def _digest(image: Image) -> bytes:
    digest = hashlib.blake2b()
    for name, content in sorted(image.items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.digest()


async def _wrong(folder: Path, image: Image, allowed: list[str]) -> str | None:
    """Start again on the files of an image; return what is wrong with them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in image.items():
        (folder / name).write_bytes(content)
    path = folder / FILE
    try:
        async with open_sqlite_store(path, lambda: START, driver=_connect) as store:
            found = _contents(path)
            [outcome] = await store.apply([schedule("after the cut", number=10**6)], at(0))
    except (TimerServiceError, sqlite3.Error) as error:
        return f"it does not start: {error}"
    if not found.startswith("ok\n"):
        return f"the file is damaged: {found.partition('BEGIN')[0]}"
    if found not in allowed:
        return "it holds neither all that was acknowledged nor that and the change that was under way"
    return None if outcome is Outcome.SCHEDULED else f"it takes no command: {outcome}"


async def _run(folder: Path, count: int, seed: int) -> tuple[Recording, Cuts]:
    (folder / "recorded").mkdir()
    recording = await recorded(folder / "recorded", seed=seed)
    return recording, await cut_everywhere(recording, folder / "cut", count, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.power_cuts", description=__doc__)
    parser.add_argument("--cuts", type=int, default=2_000, help="how many power cuts (2000)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the load and the cuts (1)")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    options = parser.parse_args()
    started = time.monotonic()
    # What is in memory shows the same as what is on a disk, and waits for none.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="power-cuts-", dir=memory) as folder:
        recording, cuts = asyncio.run(_run(Path(folder), options.cuts, options.seed))
    counts: dict[str, object] = {
        "power cuts, no two of which left the same files": cuts.count,
        **{f"of these, what was not synced is {way}": cuts.ways[way] for way in WAYS},
        "steps of the recorded store": len(recording.steps),
        "of these, syncs": sum(isinstance(step, Synced) for step in recording.steps),
        "changes acknowledged": len(recording.states),
        "damaged, or something acknowledged gone": len(cuts.problems),
        "seconds": round(time.monotonic() - started),
    }
    return conclude(counts, cuts.problems, options.record)


if __name__ == "__main__":
    sys.exit(main())
