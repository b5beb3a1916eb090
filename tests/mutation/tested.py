"""Which files of tests run which lines of the product: only those can notice a mistake there."""

import ast
import functools
import hashlib
import json
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.mutation.bench import ROOT, Bench
from tests.mutation.mistakes import Mistake

KEPT = ROOT / "build" / "tested-lines.json"
ROOTS = ("src", "client/src")


class Tested:
    """What each file of tests takes, and the lines it runs; kept, because measuring takes minutes."""

    def __init__(self, files: Sequence[str], mutated: Sequence[Path]) -> None:
        self._mutated = [str(module) for module in mutated]
        self._modules = [
            str(p.relative_to(ROOT)) for root in ROOTS for p in sorted((ROOT / root).rglob("*.py"))
        ]
        known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        self._known: dict[str, dict[str, Any]] = {
            file: known[file] for file in files if file in known and _holds(known[file])
        }
        self._lock = threading.Lock()
        self.missing = [file for file in files if file not in self._known]
        """Files that are new, or that run something else than before."""

    def measure(self, bench: Bench, file: str) -> None:
        """Find out what a file of tests runs, and keep it at once: what comes next may be interrupted."""
        found = bench.reach(file, self._modules)
        if found is None:
            print(f"left out, as it fails without a mistake: {file}", file=sys.stderr, flush=True)
            return
        took_s, run = found
        lines = {module: sorted(inside) for module in run if (inside := _in_functions(module, run[module]))}
        made_of = {name: _hash(name) for name in (file, *lines) if name == file or name in self._mutated}
        print(f"{file} takes {took_s:.1f} s and runs {len(lines)} modules", file=sys.stderr, flush=True)
        with self._lock:
            self._known[file] = {"s": round(took_s, 1), "lines": lines, "made_of": made_of}
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(self._known))

    def by(self, mistake: Mistake) -> list[tuple[float, str]]:
        """Return the files whose tests run a mistake, with the seconds they take.

        First come those that are quick and run little else: they are about the module.
        """
        # What stands outside of functions is run once for all tests: those that use it may notice.
        where = [str(mistake.path), *(self._users(mistake.path) if mistake.place.is_run_at_import else ())]
        found = [
            (of["s"] / _share(of["lines"], where), of["s"], file)
            for file, of in self._known.items()
            if self._runs(of["lines"], mistake, where)
        ]
        return [(took_s, file) for _, took_s, file in sorted(found)]

    def _runs(self, lines: dict[str, list[int]], mistake: Mistake, where: Sequence[str]) -> bool:
        if mistake.place.is_run_at_import:
            return any(module in lines for module in where)
        return not set(mistake.place.lines).isdisjoint(lines.get(str(mistake.path), ()))

    def _users(self, module: Path) -> Iterable[str]:
        name = _dotted(module)
        return (user for user in self._modules if name in _imported(user))


def _share(lines: dict[str, list[int]], modules: Sequence[str]) -> float:
    return sum(len(lines.get(module, ())) for module in modules) / sum(map(len, lines.values()))


def _in_functions(module: str, lines: Iterable[int]) -> set[int]:
    nodes = ast.walk(ast.parse((ROOT / module).read_bytes()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {line for f in functions for line in range(f.body[0].lineno, (f.end_lineno or f.lineno) + 1)}
    return inside.intersection(lines)


def _dotted(module: Path) -> str:
    root = next(root for root in ROOTS if module.is_relative_to(root))
    return ".".join(module.relative_to(root).with_suffix("").parts)


@functools.cache
def _imported(module: str) -> set[str]:
    nodes = ast.walk(ast.parse((ROOT / module).read_bytes()))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    names = {f"{node.module}.{name.name}" for node in found for name in node.names}
    return names | {str(node.module) for node in found}


def _holds(known: dict[str, dict[str, str]]) -> bool:
    return all(_hash(name) == then for name, then in known["made_of"].items())


@functools.cache
def _hash(name: str) -> str:
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
