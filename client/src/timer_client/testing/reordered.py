"""A function as another process would run it: one that meets the members of a set in another order.

Python chooses another order for a set of texts in every process. Within one it stays, so that no test would
notice who relies on it.
"""

import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any, Final

_ORDER: Final = "__in_another_order__"
_WALKS: Final = frozenset(
    ("enumerate", "extend", "filter", "fromkeys", "iter", "join", "list", "map", "tuple", "zip")
)
"""Functions and methods that walk through what they are given."""


def reordered(function: Callable[..., Any], *, backwards: bool) -> Callable[..., Any]:
    """Return the function with every set that it walks through in one order, or in the opposite one.

    What it calls is left as it is, and so is a function whose source cannot be found.
    """
    if not isinstance(function, FunctionType):
        return function
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return function
    tree = ast.parse(source)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return function
    definition.decorator_list = []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    code = _compiled(_Reordering().visit(definition), function)
    if _ORDER not in code.co_freevars:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[_ORDER] = CellType(partial(_in_order, backwards))
    copy = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    return copy


def _compiled(definition: ast.stmt, function: FunctionType) -> CodeType:
    """Compile it inside another function, whose variables are those that it takes from around it."""
    names = [*function.__code__.co_freevars, _ORDER]
    module = ast.parse(f"def around({', '.join(names)}): ...")
    assert isinstance(module.body[0], ast.FunctionDef)
    module.body[0].body = [definition]
    ast.fix_missing_locations(module)
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    outer = compile(module, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    return _code_in(_code_in(outer, "around"), function.__code__.co_name)


def _code_in(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


class _Reordering(ast.NodeTransformer):
    """Has everything that is walked through looked at first."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = _wrapped(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = _wrapped(node.iter)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.Starred:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _wrapped(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _WALKS:
            node.args = [each if isinstance(each, ast.Starred) else _wrapped(each) for each in node.args]
        return node


def _wrapped(value: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(_ORDER, ast.Load()), [value], []), value)


def _in_order(backwards: bool, value: Any) -> Any:  # noqa: FBT001 - bound above
    return sorted(value, key=repr, reverse=backwards) if isinstance(value, set | frozenset) else value
