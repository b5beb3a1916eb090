"""Every place at which the service can be waiting, read from its source; and where it waits at a moment."""

import ast
import asyncio
import gc
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import timer_service
from timer_service.right_of_way import InTurns

PACKAGE = Path(timer_service.__file__).parent
WATCHED = (
    "workflows/schedule_timers.py",
    "workflows/fire_due_timers.py",
    "workflows/open_questions.py",
    "workflows/decide_timer.py",
    "workflows/purge_timers.py",
    "workflows/hand_over.py",
    "workflows/deliver_callbacks.py",
    "adapters/retrying.py",
    "adapters/sqlite/store.py",
    "adapters/sqlite/marks.py",
    "adapters/sqlite/deliveries.py",
    "adapters/sqlite/opening.py",
    "adapters/sqlite/writer.py",
    "adapters/sqlite/pending.py",
    "adapters/sqlite/connections.py",
    "adapters/sqlite/looks.py",
    "adapters/sqlite/due_tenants.py",
    "adapters/sqlite/questions.py",
    "adapters/sqlite/write_ahead_log.py",
    "adapters/sqlite/epochs.py",
    "adapters/sqlite/schema.py",
    "adapters/nats/answers.py",
    "adapters/nats/backlog.py",
    "adapters/nats/batches.py",
    "adapters/nats/bus.py",
    "adapters/nats/connecting.py",
    "adapters/nats/inbox.py",
    "adapters/nats/letters.py",
    "adapters/nats/positions.py",
    "adapters/nats/publisher.py",
    "adapters/nats/replies.py",
    "adapters/nats/session.py",
    "adapters/nats/sink.py",
    "adapters/nats/source.py",
    "adapters/nats/streams.py",
    "adapters/nats/requests.py",
    "adapters/endpoints.py",
    "adapters/nats/refusals.py",
    "adapters/system.py",
    "timers.py",
    "service/run.py",
    "service/consume.py",
    "service/fire.py",
    "service/pauses.py",
    "service/deliver.py",
    "service/callbacks.py",
    "service/purge.py",
    "service/health.py",
    "right_of_way.py",
    "waiting.py",
    "bootstrap.py",
)
"""The workflows, the adapters that they use, and what runs them."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One `await` or `async with` in the source."""

    module: str
    line: int
    column: int


def all_places(package: Path = PACKAGE, watched: Iterable[str] = WATCHED) -> dict[Place, str]:
    """Return every place in the watched modules, with its source."""
    places: dict[Place, str] = {}
    for module in watched:
        text = (package / module).read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor) and not _sets_a_limit(node):
                place = Place(module, node.lineno, node.col_offset)
                places[place] = lines[node.lineno - 1].strip()
    return places


def _sets_a_limit(node: ast.AST) -> bool:
    """Return whether it is an `async with asyncio.timeout(…)`: entering and leaving it never waits."""
    return isinstance(node, ast.AsyncWith) and all(
        ast.unparse(item.context_expr).startswith(("asyncio.timeout(", "asyncio.timeout_at("))
        for item in node.items
    )


def places_of(tasks: Iterable["asyncio.Task[Any]"], package: Path = PACKAGE) -> set[Place]:
    """Return every place at which one of the tasks waits now."""
    return {place for task in tasks if not task.done() for place in places_in(task.get_coro(), package)}


def places_in(waiting: Any, package: Path = PACKAGE) -> Iterator[Place]:
    """Yield every place at which a coroutine waits now: its own, and those of what it waits for."""
    for frame in frames_of(waiting):
        place = _place(frame.f_code, frame.f_lasti, package)
        if place is not None:
            yield place


def frames_of(waiting: Any) -> Iterator[types.FrameType]:
    """Follow what a coroutine waits for, down to the future at the end."""
    while waiting is not None:
        if isinstance(waiting, types.CoroutineType):
            if waiting.cr_frame is not None:
                yield waiting.cr_frame
            waiting = waiting.cr_await
        elif isinstance(waiting, types.AsyncGeneratorType):
            if waiting.ag_frame is not None:
                yield waiting.ag_frame
            waiting = waiting.ag_await
        elif isinstance(waiting, types.GeneratorType) and waiting.gi_code is InTurns.__await__.__code__:
            # It may wait for its turn; and this is where the work is.
            yield from frames_of(waiting.gi_yieldfrom)
            waiting = waiting.gi_frame and waiting.gi_frame.f_locals["self"].work
        else:
            # What steps an asynchronous generator does not name it, but refers to it.
            waiting = next(
                (
                    found
                    for found in gc.get_referents(waiting)
                    if isinstance(found, types.AsyncGeneratorType | types.CoroutineType)
                ),
                None,
            )


@cache
def _place(code: types.CodeType, last_instruction: int, package: Path) -> Place | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(package):
        return None
    positions = list(code.co_positions())
    line, _, column, _ = positions[last_instruction // 2]
    if line is None or column is None:
        return None
    return Place(path.relative_to(package).as_posix(), line, column)
