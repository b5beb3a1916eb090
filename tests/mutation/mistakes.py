"""The mistakes that can be made in a module: each a change of a few characters."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Mistake:
    """One change of one module."""

    path: Path
    line: int
    start: int
    """Where the changed characters are in the file, in bytes, and where they end."""
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """What it is known by: the line's number may change."""
        return f"{self.path}: {self.before!r} becomes {self.after!r}"

    def made_in(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mistakes(path: Path, source: bytes) -> Iterator[Mistake]:
    """Yield what can be done wrong in a module, in the order of its lines."""
    text = _Text(path, source)
    tree = ast.parse(source)
    left_out = _annotations_and_docstrings(tree)
    for node in ast.walk(tree):
        if id(node) not in left_out:
            yield from _of_node(text, node)


class _Text:
    """A module's bytes, by line and column as the parser tells them."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path = path
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

    def change(self, line: int, start: int, end: int, after: str) -> Mistake:
        return Mistake(self.path, line, start, end, self._source[start:end].decode(), after)

    def whole(self, node: ast.expr | ast.stmt, after: str) -> Mistake:
        return self.change(node.lineno, self.start(node), self.end(node), after)

    def between(
        self, one: ast.expr, other: ast.expr, pattern: str | re.Pattern[str], after: str
    ) -> Iterator[Mistake]:
        start, end = self.end(one), self.start(other)
        if found := re.search(pattern, self._source[start:end].decode()):
            yield self.change(one.end_lineno or one.lineno, start + found.start(), start + found.end(), after)

    def inside(self, node: ast.expr, before: str, after: str) -> Iterator[Mistake]:
        start = self.start(node)
        found = self._source[start : self.end(node)].find(before.encode())
        if found >= 0:
            yield self.change(node.lineno, start + found, start + found + len(before), after)


def _of_node(text: _Text, node: ast.AST) -> Iterator[Mistake]:
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


def _annotations_and_docstrings(tree: ast.Module) -> set[int]:
    """Return the nodes that change nothing of what a program does."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                left_out.update(id(part) for part in ast.walk(annotation))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(id(node.value))
    return left_out
