"""Mistakes are tried: the tests near to each of them first, all others if those notice nothing."""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from tests.mutation.bench import ROOT, Bench
from tests.mutation.explained import EXPLAINED
from tests.mutation.kept import Kept
from tests.mutation.mistakes import Mistake
from tests.mutation.tested import Tested

FIRST_FILES = 2
"""How many are run at first, then twice as many, and so on: most mistakes are noticed by the nearest."""
NEAR_S = 60.0
"""Tests that take this long together are run with every mistake before more are run with any."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Timed = tuple[float, str]
"""What a file of tests takes, and its name."""


class Benches:
    """Several copies of the project, each at work on one thing at a time."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._all = [Bench(Path(folder)) for folder in folders]
        self._free = SimpleQueue[Bench]()
        for bench in self._all:
            self._free.put(bench)

    def each(self, work: Callable[[Bench, Asked], Answer], things: Sequence[Asked]) -> list[Answer]:
        """Return what the work gives for each thing, in their order."""

        def do(thing: Asked) -> Answer:
            bench = self._free.get()
            try:
                return work(bench, thing)
            finally:
                self._free.put(bench)

        with ThreadPoolExecutor(len(self._all)) as pool:
            try:
                return list(pool.map(do, things))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for bench in self._all:
                    bench.stop()
                raise


class Trial:
    """Finds out what becomes of mistakes, and keeps which tests have noticed which."""

    def __init__(self, tested: Tested) -> None:
        self._tested = tested
        self._noticed = Kept(ROOT / "build" / "mutants-noticed.json")

    def of(self, mistakes: Sequence[Mistake], benches: Benches) -> list[str]:
        """Return for each mistake whether it was killed, survived or is explained."""
        outcomes = {
            mistake.name: "explained" if mistake.name in EXPLAINED else "killed"
            for mistake in mistakes
            if mistake.name in EXPLAINED or self._noticed.get(mistake.name)
        }
        for tests, part in (("the tests near to them", _near), ("all other tests that run them", _far)):
            left = [mistake for mistake in mistakes if mistake.name not in outcomes]
            print(f"{len(left)} mistakes to try on {tests}", file=sys.stderr, flush=True)
            noticed = benches.each(partial(self._is_noticed, part), left)
            outcomes |= {m.name: "killed" for m, was in zip(left, noticed, strict=True) if was}
        return [outcomes.get(mistake.name, "survived") for mistake in mistakes]

    def _is_noticed(self, part: Callable[[list[Timed]], list[Timed]], bench: Bench, mistake: Mistake) -> bool:
        running, count = part(self._tested.by(mistake)), FIRST_FILES
        by: Sequence[str] = ()
        while running and not by:
            now, running = running[:count], running[count:]
            by = bench.noticed_by(mistake, [file for _, file in now], sum(took_s for took_s, _ in now))
            if by:
                self._noticed.keep(mistake.name, by, [str(mistake.path), *by])
            count *= 2
        found = f"noticed by {' or '.join(by)}" if by else "not noticed"
        change = f"{mistake.before!r} becomes {mistake.after!r}"
        print(f"{mistake.path}:{mistake.line}: {change}: {found}", file=sys.stderr, flush=True)
        return bool(by)


def _near(files: list[Timed]) -> list[Timed]:
    return files[: _count(files)]


def _far(files: list[Timed]) -> list[Timed]:
    return files[_count(files) :]


def _count(files: list[Timed]) -> int:
    so_far_s = 0.0
    for count, (took_s, _) in enumerate(files):
        so_far_s += took_s
        if count >= FIRST_FILES and so_far_s > NEAR_S:
            return count
    return len(files)
