"""Which files of tests run which lines of the product: only those can notice a mistake there."""

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.bench import ROOT, Bench
from tests.mutation.mistakes import Mistake

KEPT = ROOT / "build" / "tested-lines.json"
ROOTS = ("src", "client/src")


class Tested:
    """What each file of tests takes, and the lines it runs; kept, because measuring takes minutes."""

    def __init__(self, files: Sequence[str], modules: Sequence[Path]) -> None:
        self._modules = [str(module) for module in modules]
        known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        self._known = {file: known[file] for file in files if file in known and _holds(known[file])}
        self.missing = [file for file in files if file not in self._known]

    def measure(self, bench: Bench, workers: int) -> None:
        """Measure the files that are new or that run something else than before."""
        took_s, data = bench.measure(self.missing, workers)
        lines: dict[str, dict[str, list[int]]] = {file: {} for file in self.missing}
        for module in self._modules:
            for line, files in data.contexts_by_lineno(str(bench.folder / module)).items():
                for file in files:
                    if file in lines:
                        lines[file].setdefault(module, []).append(line)
        for file in self.missing:
            made_of = {name: _hash(name) for name in (file, *lines[file])}
            # A file that fails in a copy of the project cannot notice anything.
            self._known[file] = {"s": took_s.get(file), "lines": lines[file], "made_of": made_of}
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(self._known))

    def by(self, mistake: Mistake) -> list[tuple[float, str]]:
        """Return the files whose tests run a mistake, the quickest first, with the seconds they take."""
        return sorted(
            (of["s"], file)
            for file, of in self._known.items()
            if of["s"] is not None and self._runs(of["lines"], mistake)
        )

    def _runs(self, lines: dict[str, list[int]], mistake: Mistake) -> bool:
        if mistake.place.is_run_at_import:
            # Imported once for all tests: any that runs the module, or one that uses it, may notice.
            return any(module in lines for module in (str(mistake.path), *self._users(mistake.path)))
        return not set(mistake.place.lines).isdisjoint(lines.get(str(mistake.path), ()))

    def _users(self, module: Path) -> Iterable[str]:
        name = _dotted(module)
        return (user for user in self._modules if name in _imported(ROOT / user))


def _dotted(module: Path) -> str:
    root = next(root for root in ROOTS if module.is_relative_to(root))
    return ".".join(module.relative_to(root).with_suffix("").parts)


def _imported(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_bytes()))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def _holds(known: dict[str, dict[str, str]]) -> bool:
    return all(_hash(name) == then for name, then in known["made_of"].items())


def _hash(name: str) -> str:
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
