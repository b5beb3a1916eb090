"""The shape of the code: small modules, classes and functions, no private imports, nothing patched."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.documents import ROOT

SOURCES = (ROOT / "src" / "timer_service", ROOT / "client" / "src" / "timer_client")
OURS = ("timer_service", "timer_client")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Member = ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign

MAX_MODULE_LINES = 350
MAX_CLASS_LINES = 200
MAX_FUNCTION_LINES = 40
MAX_PORT_MEMBERS = 8
"""Of its own: what it inherits from another port is counted there."""
MAX_FLOWS_LINES = 900
"""Of durable functions with all journals: this much a timer service owes its users, and no more."""
REPEATED_LINES = 6
"""A passage of this many lines may not stand twice."""

TABLES: dict[str, str] = {}
"""Functions that may be longer, and why."""

_OTHER_BOUND = re.compile(r"^_?(?:MOST|LEAST|LONGEST|SHORTEST|OLDEST|LARGEST)_|_(?:LIMIT|WAIT)(?:_M?S)?$")
"""Other names for MAX_…, MIN_… and …_TIMEOUT_S."""

_PATCHING = re.compile(r"(?:^|\.)(?:setattr|delattr|setitem|delitem|patch(?:\.(?:object|dict|multiple))?)$")
_PUT_INTO = re.compile(r"^vars\(|\.__dict__$|^sys\.modules$")

PATCHED = {
    ("test_sqlite_store.py", "os.pwrite"): "a disk that is full",
    ("test_backup_copy.py", "os.fsync"): "tells what is on disk, and when",
    ("planted.py", "by.name"): "plants bugs in modules that imported the function",
    ("planted.py", "owner.name"): "plants bugs",
    ("forked.py", "sys.argv"): "the arguments of a process that is about to start",
    ("flow_worker.py", "time.time_ns"): "the wall clock of a worker, a year off",
    ("test_letters.py", "asyncio.timeout"): "counts the timers of the event loop",
    ("test_system_clock.py", "time.time_ns"): "the operating system's clock",
    ("test_stores.py", "sys.modules.asyncpg"): "a driver that is not installed",
    ("test_service.py", "rig.store.method"): "a fake store that fails",
    ("test_callback_sender.py", "receiver.answer"): "a receiver of the test's own",
    ("crashes.py", "world.loop.before_step"): "a hook of the simulated event loop",
    ("world.py", "target.name"): "faults of the simulated disk",
    ("recorder.py", "watched.name"): "SQLite's table of file methods",
}
"""What tests put in the place of something, and why; no name of the product is among them."""


def test_every_module_fits_in_a_short_read() -> None:
    lengths = {_name(path): len(path.read_text("utf-8").splitlines()) for path in _modules()}

    assert {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}


def test_every_class_has_one_duty() -> None:
    lengths = dict(_lengths(ast.ClassDef))

    assert {name: lines for name, lines in lengths.items() if lines > MAX_CLASS_LINES} == {}


def test_every_function_fits_on_a_screen() -> None:
    lengths = dict(_lengths(ast.FunctionDef, ast.AsyncFunctionDef))

    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    assert {name: lines for name, lines in too_long.items() if name not in TABLES} == {}
    assert TABLES.keys() <= too_long.keys()


def test_every_port_is_small() -> None:
    members = {
        f"{path.name}::{node.name}": sum(isinstance(each, Member) for each in node.body)
        for path in sorted((SOURCES[0] / "ports").glob("*.py"))
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and "Protocol" in {ast.unparse(base) for base in node.bases}
    }

    assert {name: count for name, count in members.items() if count > MAX_PORT_MEMBERS} == {}


def test_durable_functions_stay_small() -> None:
    folder = ROOT / "client" / "src" / "timer_client" / "flows"

    assert sum(len(_code_lines(path)) for path in folder.rglob("*.py")) <= MAX_FLOWS_LINES
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".py", ".pyc"}


def test_no_module_imports_a_private_name_of_another() -> None:
    private = [
        f"{_name(path)}: {node.module}.{each.name}"
        for path in _modules()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS)
        for each in node.names
        if each.name.startswith("_") and each.name != "__version__"
    ]

    assert private == []


def test_bounds_are_named_alike() -> None:
    names = {
        f"{_name(path)}::{target.id}"
        for path in _modules()
        for node in _tree(path).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and _OTHER_BOUND.search(target.id)
    }

    assert names == set()


def test_no_passage_stands_twice() -> None:
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in _modules():
        lines = list(_telling_lines(path))
        for start in range(len(lines) - REPEATED_LINES + 1):
            passage = tuple(text for _, text in lines[start : start + REPEATED_LINES])
            places[passage].append(f"{_name(path)}:{lines[start][0]}")

    assert [found for found in places.values() if len(found) > 1] == []


def test_no_test_patches_the_product() -> None:
    patched = {
        (path.name, name)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in _patches(ast.parse(path.read_text("utf-8")))
    }

    assert patched - PATCHED.keys() == set()
    assert PATCHED.keys() - patched == set()


@functools.cache
def _modules() -> list[Path]:
    return [path for source in SOURCES for path in sorted(source.rglob("*.py"))]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _name(path: Path) -> str:
    source = next(source for source in SOURCES if path.is_relative_to(source))
    return path.relative_to(source.parent).as_posix()


def _lengths(*kinds: type[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield every definition of these kinds with the number of its lines, without its docstring."""
    for path in _modules():
        for name, node in _definitions(_tree(path), ""):
            if isinstance(node, kinds) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1 - _docstring_lines(node)
                yield f"{_name(path)}::{name}", lines


def _definitions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")
        else:
            yield from _definitions(node, prefix)


def _docstring_lines(node: Definition) -> int:
    if ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def _code_lines(path: Path) -> set[int]:
    """Return the lines that are neither blank nor only a comment or a docstring."""
    text = path.read_text("utf-8")
    told = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.end_lineno
        for line in range(node.lineno, node.end_lineno + 1)
    }
    return {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if number not in told and line.strip() and not line.strip().startswith("#")
    }


def _telling_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something: no imports, comments, blank lines or lone brackets."""
    text = path.read_text("utf-8")
    imports = {
        line
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno
        for line in range(node.lineno, node.end_lineno + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if number not in imports and not stripped.startswith("#") and any(map(str.isalnum, stripped)):
            yield number, stripped


def _patches(tree: ast.Module) -> Iterator[str]:
    """Yield what a test puts something else in the place of."""
    modules = {
        each.asname or each.name.split(".")[0] if isinstance(node, ast.Import) else each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if isinstance(node, ast.Import) or (node.module or "").startswith(OURS)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_patching(node.func) and node.args:
            yield ".".join(ast.unparse(argument).strip("'\"") for argument in node.args[:2])
        for target in _targets(node):
            if isinstance(target, ast.Attribute) and _root(target) in modules:
                yield ast.unparse(target)
            if isinstance(target, ast.Subscript) and _PUT_INTO.search(ast.unparse(target.value)):
                yield ast.unparse(target)


def _is_patching(function: ast.expr) -> bool:
    return bool(_PATCHING.search(ast.unparse(function)))


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a statement puts a value into, or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _root(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""
