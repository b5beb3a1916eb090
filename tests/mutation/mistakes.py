"""The mistakes that can be made in a module: each a change of a few characters."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATOR = re.compile(r"is\s+not|not\s+in|<=|>=|==|!=|<|>|is|in")
CALCULATED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Mod: ("%", "*")}
IN_SQL = (
    ("<=", "<"),
    (">=", ">"),
    (" AND ", " OR "),
    ("ASC", "DESC"),
    ("min(", "max("),
    ("LIMIT ", "LIMIT 1 + "),
)
LOOKS_LIKE_SQL = re.compile(r"\b(SELECT|UPDATE|DELETE|INSERT)\b")


Change = tuple[int, int, int, str, str]
"""The line, where the changed characters start and end in the file, in bytes; what they were and become."""


@dataclass(frozen=True, slots=True)
class Place:
    """The statement in which something stands."""

    scope: str
    """The names of the class and the function around it."""
    is_run_at_import: bool
    lines: range
    """A test that runs any of these lines runs the mistake."""
    start: int
    """In bytes."""
    text: str
    """Its first line."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One change of one module."""

    path: Path
    place: Place
    line: int
    start: int
    """Where the changed characters are in the file, in bytes, and where they end."""
    end: int
    before: str
    after: str
    nth: int = 1
    """Where a function has the same statement several times: which one."""

    @property
    def name(self) -> str:
        """What it is known by: no other mistake has this name, and the lines above it do not matter."""
        where = f"{self.path}: {self.place.scope}: {self.place.text} ({self.start - self.place.start})"
        nth = f", number {self.nth}" if self.nth > 1 else ""
        return f"{where}: {self.before!r} becomes {self.after!r}{nth}"

    def made_in(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mistakes(path: Path, source: bytes) -> Iterator[Mistake]:
    """Yield what can be done wrong in a module, in the order of its lines."""
    text = _Text(source)
    tree = ast.parse(source)
    left_out = _without_effect(tree)
    made = set[Change]()
    names = Counter[str]()
    for place, node in _nodes(text, tree, "", is_run_at_import=True):
        for change in _of_node(text, node) if id(node) not in left_out else ():
            # The text of an f-string is a node of its own, in the same place.
            if change not in made:
                made.add(change)
                mistake = Mistake(path, place, *change)
                names[mistake.name] += 1
                yield replace(mistake, nth=names[mistake.name])


def _nodes(
    text: "_Text", parent: ast.AST, scope: str, *, is_run_at_import: bool
) -> Iterator[tuple[Place, ast.AST]]:
    """Yield all that is inside a node, statement by statement."""
    for child in ast.iter_child_nodes(parent):
        inner, at_import = scope, is_run_at_import
        if isinstance(child, ast.stmt):
            for node in _own(child):
                yield text.place(child, node, scope, is_run_at_import=is_run_at_import), node
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{child.name}".strip(".")
            at_import = is_run_at_import and isinstance(child, ast.ClassDef)
        yield from _nodes(text, child, inner, is_run_at_import=at_import)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what it holds, without the statements inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _own(child)


class _Text:
    """A module's bytes, by line and column as the parser tells them."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def place(self, statement: ast.stmt, node: ast.AST, scope: str, *, is_run_at_import: bool) -> Place:
        # Of a statement that holds others, only its head is surely run.
        part = node if hasattr(statement, "body") and isinstance(node, ast.expr) else statement
        lines = range(part.lineno, (part.end_lineno or part.lineno) + 1)
        start = self.start(statement)
        text = self._source[start:].split(b"\n", 1)[0].decode()
        return Place(scope, is_run_at_import, lines, start, text)

    def change(self, line: int, start: int, end: int, after: str) -> Change:
        return line, start, end, self._source[start:end].decode(), after

    def whole(self, node: ast.expr | ast.stmt, after: str) -> Change:
        return self.change(node.lineno, self.start(node), self.end(node), after)

    def between(
        self, one: ast.expr, other: ast.expr, pattern: str | re.Pattern[str], after: str
    ) -> Iterator[Change]:
        start, end = self.end(one), self.start(other)
        if found := re.search(pattern, self._source[start:end].decode()):
            yield self.change(one.end_lineno or one.lineno, start + found.start(), start + found.end(), after)

    def inside(self, node: ast.expr, before: str, after: str) -> Iterator[Change]:
        start = self.start(node)
        found = self._source[start : self.end(node)].find(before.encode())
        if found >= 0:
            yield self.change(node.lineno, start + found, start + found + len(before), after)


def _of_node(text: _Text, node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            yield from text.between(left, right, OPERATOR, COMPARED[type(op)])
        case ast.BoolOp(op=op, values=[one, other, *_]):
            before, after = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield from text.between(one, other, rf"\b{before}\b", after)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in CALCULATED:
            before, after = CALCULATED[type(op)]
            yield from text.between(left, right, re.escape(before), after)
        case ast.UnaryOp(op=ast.Not()):
            yield text.change(node.lineno, text.start(node), text.start(node) + len("not "), "")
        case ast.Constant(value=bool() as value):
            yield text.whole(node, str(not value))
        case ast.Constant(value=int() as number):
            yield text.whole(node, str(number + 1))
        case (
            ast.Constant(value=str() as sql) | ast.JoinedStr(values=[ast.Constant(value=str() as sql), *_])
        ) if LOOKS_LIKE_SQL.search(sql):
            for before, after in IN_SQL:
                yield from text.inside(node, before, after)
        case ast.Call(func=ast.Name(id="min" | "max" as name) as function):
            yield text.whole(function, "max" if name == "min" else "min")
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield text.whole(node, "pass")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield text.whole(value, "None")
        case ast.Raise() | ast.Continue() | ast.Break():
            yield text.whole(node, "pass")


def _without_effect(tree: ast.Module) -> set[int]:
    """Return the nodes that change nothing of what a program does: annotations, docstrings, promises.

    Frozen classes and slots guard against mistakes of programmers; a program runs the same without them.
    """
    left_out: set[int] = set()
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                left_out.update(id(part) for part in ast.walk(annotation))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(id(node.value))
        if isinstance(node, ast.ClassDef):
            left_out.update(id(part) for decorator in node.decorator_list for part in ast.walk(decorator))
    return left_out
