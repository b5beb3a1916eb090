"""A copy of the project in which mistakes are made: the tree itself is only read."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from coverage import Coverage, CoverageData

from tests.mutation.mistakes import Mistake
from tests.mutation.watching import SECONDS

ROOT = Path(__file__).parents[2]
LEFT_OUT = (
    *(".git", ".venv", ".*cache", ".hypothesis", ".coverage*"),
    *("__pycache__", "node_modules", "build", "dist"),
)
PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-m", "not upgrade and not cluster and not clients"),
)
MEASURED_FOR_S = 3600.0
HANGS_AFTER_S = 300.0
"""Beyond what the tests take without a mistake."""
ENDS_WITHIN_S = 20.0

# Python keeps what it compiled by the second and the size of a file: no two mistakes share a second.
_seconds = itertools.count(1_000_000_000)


class Bench:
    """A copy of the project and a way to run its tests."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        imported_from = [str(folder / "src"), str(folder / "client/src"), str(folder)]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(imported_from)}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process: subprocess.Popen[bytes] | None = None

    def notices(self, mistake: Mistake, files: Sequence[str], takes_s: float) -> bool:
        """Return whether any of these tests fails, or hangs, with the mistake."""
        path = self.folder / mistake.path
        source, known = path.read_bytes(), path.stat()
        path.write_bytes(mistake.made_in(source))
        second = next(_seconds)
        os.utime(path, (second, second))
        try:
            return self._run(*PYTEST, "-x", *files, takes_s=takes_s) != 0
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))

    def measure(self, files: Sequence[str], workers: int) -> tuple[dict[str, float], CoverageData]:
        """Run files of tests; return what those that succeed take, and the lines run, by file of tests."""
        self._run(
            *("-m", "coverage", "run", *PYTEST),
            *("-p", "tests.mutation.watching", "-n", str(workers), *files),
            takes_s=MEASURED_FOR_S,
        )
        coverage = Coverage(str(self.folder / ".coverage"), config_file=False)
        coverage.combine([str(self.folder)])
        return json.loads((self.folder / SECONDS).read_text()), coverage.get_data()

    def stop(self) -> None:
        """End what is being run: as with Ctrl-C first, so that tests end what they have started."""
        if self._process is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(ENDS_WITHIN_S)

    def _run(self, *arguments: str, takes_s: float) -> int | None:
        """Run Python and return its exit code; None if it had to be stopped."""
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return self._process.wait(takes_s + HANGS_AFTER_S)
        except subprocess.TimeoutExpired:
            self.stop()
            return None
