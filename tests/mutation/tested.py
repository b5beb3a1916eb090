"""Which files of tests run which lines of the product: only those can notice a mistake there."""

import ast
import functools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.bench import ROOT, Bench
from tests.mutation.kept import Kept
from tests.mutation.mistakes import Mistake

ROOTS = ("src", "client/src")


class Tested:
    """What each file of tests takes, and the lines it runs; kept, because measuring takes minutes."""

    def __init__(self, files: Sequence[str], mutated: Sequence[Path]) -> None:
        self._files = files
        self._mutated = [str(module) for module in mutated]
        self._modules = [
            str(path.relative_to(ROOT)) for root in ROOTS for path in sorted((ROOT / root).rglob("*.py"))
        ]
        self._kept = Kept(ROOT / "build" / "tested-lines.json")
        self.missing = [file for file in files if self._kept.get(file) is None]
        """Files that are new, or that run something else than before."""

    def measure(self, bench: Bench, file: str) -> None:
        """Find out what a file of tests runs."""
        found = bench.reach(file, self._modules)
        if found is None:
            print(f"left out, as it fails without a mistake: {file}", file=sys.stderr, flush=True)
            return
        took_s, run = found
        print(f"{file} takes {took_s:.1f} s and runs {len(run)} modules", file=sys.stderr, flush=True)
        lines = {module: sorted(inside) for module in run if (inside := _in_functions(module, run[module]))}
        mutated = [module for module in lines if module in self._mutated]
        self._kept.keep(file, {"s": round(took_s, 1), "lines": lines}, [file, *mutated])

    def by(self, mistake: Mistake) -> list[tuple[float, str]]:
        """Return the files whose tests run a mistake, with the seconds they take.

        First come those that are quick and run little else: they are about the module.
        """
        # What stands outside of functions is run once for all tests: those that use it may notice.
        where = [str(mistake.path), *(self._users(mistake.path) if mistake.place.is_run_at_import else ())]
        found = [
            (of["s"] / _share(of["lines"], where), of["s"], file)
            for file in self._files
            if (of := self._kept.get(file)) and self._runs(of["lines"], mistake, where)
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
