"""A copy of the project in which mistakes are made: the tree itself is only read."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coverage import CoverageData

from tests.mutation.mistakes import Mistake

ROOT = Path(__file__).parents[2]
LEFT_OUT = (
    *(".git", ".venv", ".*cache", ".hypothesis", ".coverage*"),
    *("__pycache__", "node_modules", "build", "dist"),
)
PLUGIN = Path(__file__).with_name("unshrunk.py")
KEPT_BY_PYTEST = ".mutants"
PYTEST = (
    *("-m", "pytest", "-q", "--tb=no", "-o", f"cache_dir={KEPT_BY_PYTEST}", "--hypothesis-seed=0"),
    *("-m", "not upgrade and not cluster and not clients", "-p", PLUGIN.stem),
)
REACHED = ".reached"
PASSED = (0, 5)
"""What pytest returns if all tests pass, and if there are none."""
REACHES_WITHIN_S = 1800.0
HANGS_AFTER_S = 240.0
"""Beyond twice what the tests take without a mistake; a test waits for half of this."""
NOTHING_YET = ""
TRIES = 4
"""How often the machine may hold up the same tests."""
TICK_S = 0.5
ENDS_WITHIN_S = 20.0

# Python keeps what it compiled by the second and the size of a file: no two mistakes share a second.
_seconds = itertools.count(1_000_000_000)


class Bench:
    """A copy of the project and a way to run its tests."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        shutil.copy(PLUGIN, folder)
        imported_from = [str(folder / "src"), str(folder / "client/src"), str(folder)]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(imported_from)}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._ticks = 0

    def noticed_by(self, mistake: Mistake, files: Sequence[str], takes_s: float) -> Sequence[str]:
        """Return the file of a test that fails because of the mistake; all if it is not known which one.

        A test that fails and then passes, or hangs without the mistake as well, was held up by the machine.
        """
        at_most_s = 2 * takes_s + HANGS_AFTER_S
        failed_before: str | None = NOTHING_YET
        self._forget_failures()
        for _ in range(TRIES):
            with self._made(mistake):
                code = self._run(*PYTEST, "--stepwise", *files, at_most_s=at_most_s)
            if code in PASSED:
                return ()
            if code is None:
                return () if self._run(*PYTEST, *files, at_most_s=at_most_s) is None else files
            if (failed := self._failed()) == failed_before:
                return files if failed is None else [failed.partition("::")[0]]
            failed_before = failed  # The next run goes on with this test.
        return ()

    def reach(self, file: str, modules: Sequence[str]) -> tuple[float, dict[str, list[int]]] | None:
        """Return what a file of tests takes, and the lines it runs by module; None if it does not pass."""
        kept = self.folder / REACHED
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        settings = kept / "settings"
        included = "".join(f"\n  {self.folder / module}" for module in modules)
        settings.write_text(
            "[run]\nparallel = true\npatch = subprocess, fork\n"
            f"data_file = {kept / 'lines'}\ninclude ={included}\n"
        )
        self._forget_failures()
        took_s = 0.0
        for _ in range(TRIES):
            code = self._run(
                *("-m", "coverage", "run", f"--rcfile={settings}", *PYTEST, "--last-failed", file),
                at_most_s=REACHES_WITHIN_S,
            )
            took_s += self._ticks * TICK_S
            if code in PASSED:
                return took_s, self._lines(kept, modules)
        return None

    def stop(self) -> None:
        """End what is being run, and run nothing more."""
        self._is_stopped = True
        self._end()

    def _lines(self, kept: Path, modules: Sequence[str]) -> dict[str, list[int]]:
        found: dict[str, set[int]] = {}
        for path in kept.glob("lines.*"):
            data = CoverageData(str(path))
            data.read()
            for module in modules:
                found.setdefault(module, set()).update(data.lines(str(self.folder / module)) or ())
        return {module: sorted(lines) for module, lines in found.items() if lines}

    def _forget_failures(self) -> None:
        shutil.rmtree(self.folder / KEPT_BY_PYTEST, ignore_errors=True)

    def _failed(self) -> str | None:
        """Return the test at which the last run has stopped; None if it did not get as far as a test."""
        kept = self.folder / KEPT_BY_PYTEST / "v/cache/stepwise"
        failed: str | None = json.loads(kept.read_text())["last_failed"] if kept.exists() else None
        return failed

    @contextmanager
    def _made(self, mistake: Mistake) -> Iterator[None]:
        path = self.folder / mistake.path
        source, known = path.read_bytes(), path.stat()
        path.write_bytes(mistake.made_in(source))
        second = next(_seconds)
        os.utime(path, (second, second))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))

    def _run(self, *arguments: str, at_most_s: float) -> int | None:
        """Run Python and return its exit code; None if it had to be stopped."""
        if self._is_stopped:
            raise InterruptedError
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # Counted in ticks: while the machine stops everything, this program does not count either.
        for self._ticks in range(1, round(at_most_s / TICK_S) + 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(TICK_S)
        self._end()
        return None

    def _end(self) -> None:
        """As with Ctrl-C first, so that tests end what they have started."""
        if self._process is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(ENDS_WITHIN_S)
