"""Move all timers from one store to another, and prove that none was lost or changed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

from timer_service.domain.callback import Sink
from timer_service.domain.errors import CriticalError
from timer_service.domain.messages import Position, TimerKey, epoch_ms
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.timer_archive import TimerArchive, WritableArchive

COPY_BATCH: Final = 2_000
COPY_CALLBACKS: Final = 100
"""Callbacks at once: each may have a body of 64 KiB, headers and twenty failed attempts."""

Progress = Callable[[str, int, int], None]
"""What is being done, how many timers are done, of how many."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a store holds: equal for two stores that hold the same timers."""

    timers: int
    pending: int
    checksum: str


async def copy_timers(
    *,
    source: TimerArchive,
    target: WritableArchive,
    restart: bool,
    progress: Progress,
    first: Callable[[], Awaitable[None]] | None = None,
    batch_size: int = COPY_BATCH,
    callbacks: int = COPY_CALLBACKS,
) -> CopyReport:
    """Copy in parts, each in one transaction, then read both stores again and compare them.

    An interrupted copy goes on where it ended. The target counts as a copy only after the comparison, and the
    source is closed to services from then on. What else is to be copied comes first, once it is certain that
    the target takes a copy.
    """
    await _begin(source, target, restart=restart)
    if first is not None:
        await first()
    await target.write_epochs(await source.epochs())
    total = await source.count()
    done, after = await target.count(), await target.last_key()
    progress("copying", done, total)
    sizes = (batch_size, callbacks)
    async for part, records in _read(source, after, sizes):
        await target.write(part, records)
        done += len(part)
        progress("copying", done, total)
    expected = await _examine(source, total, progress, sizes)
    found = await _examine(target, total, progress, sizes)
    if found != expected or await target.epochs() != await source.epochs():
        raise CriticalError(
            f"{target.name} is not the same as {source.name} ({found.timers} timers, {expected.timers} "
            "expected): the source has changed since the copy began; run it again with --restart"
        )
    # In this order: a crash in between leaves neither store usable, and the same command goes on. In the
    # other one both would fire everything.
    await source.copying.mark_moved(target.name)
    await target.copying.end()
    return found


async def _begin(source: TimerArchive, target: WritableArchive, *, restart: bool) -> None:
    if await source.copying.unfinished_copy_of() is not None:
        raise CriticalError(f"{source.name} is itself an unfinished copy: finish that one first")
    unfinished = await target.copying.unfinished_copy_of()
    if unfinished is None:
        if await target.count():
            raise CriticalError(f"{target.name} already holds timers: copy into an empty store")
        await target.copying.begin(source.name)
    elif restart:
        await target.clear()
        await target.copying.begin(source.name)
    elif unfinished != source.name:
        raise CriticalError(
            f"{target.name} holds an unfinished copy of {unfinished}: finish that one, or use --restart"
        )


async def _examine(
    archive: TimerArchive, total: int, progress: Progress, sizes: tuple[int, int]
) -> CopyReport:
    digest = sha256()
    timers = pending = 0
    async for part, records in _read(archive, None, sizes):
        for timer in part:
            digest.update(_line(timer))
            if timer.key in records:
                # Values of plain types only: equal where what is kept is equal.
                digest.update(repr(records[timer.key]).encode())
            pending += timer.state is TimerState.SCHEDULED
        timers += len(part)
        progress("verifying", timers, total)
    return CopyReport(timers, pending, digest.hexdigest())


async def _read(
    archive: TimerArchive, after: TimerKey | None, sizes: tuple[int, int]
) -> AsyncIterator[tuple[Sequence[Timer], Mapping[TimerKey, CallbackRecord]]]:
    """Yield all timers after one, a bounded number at a time, with what is kept of their callbacks."""
    batch_size, callbacks = sizes
    while batch := await archive.read(after, batch_size):
        for part in _parts(batch, callbacks):
            yield part, await _records(archive, part)
        after = batch[-1].key


def _parts(timers: Sequence[Timer], callbacks: int) -> Iterator[Sequence[Timer]]:
    """Yield a batch in parts with a bounded number of callbacks each."""
    begin = found = 0
    for end, timer in enumerate(timers, start=1):
        found += timer.sink is Sink.HTTP
        if found == callbacks or end == len(timers):
            yield timers[begin:end]
            begin, found = end, 0


async def _records(archive: TimerArchive, timers: Sequence[Timer]) -> Mapping[TimerKey, CallbackRecord]:
    """Return what is kept of callbacks; read only where there can be one."""
    keys = [timer.key for timer in timers if timer.sink is Sink.HTTP]
    return await archive.records(keys) if keys else {}


def _line(timer: Timer) -> bytes:
    """Return everything about a timer as one line; no value but the last can hold a tab."""
    values = (
        timer.tenant_id,
        timer.service_call_id,
        timer.state.value,
        _shown(timer.due_at),
        str(timer.generation),
        _shown(timer.registered_at),
        timer.correlation_id or "",
        _shown(timer.reached_at),
        _shown(timer.cancelled_at),
        _place(timer.position),
        _place(timer.due_position),
        _place(timer.correlation_position),
        _place(timer.trace_position),
        _place(timer.first_position),
        str(timer.first_if_absent),
        str(timer.expires_after_ms),
        _shown(timer.expired_at),
        timer.verdict or "",
        str(timer.sink.value),
        str(timer.callback_revision),
        timer.fingerprint or "",
        timer.trace.parent if timer.trace else "",
        timer.trace.state or "" if timer.trace else "",
    )
    return "\t".join(values).encode() + b"\n"


def _place(position: Position | None) -> str:
    return "" if position is None else f"{position.stream_created_us}/{position.sequence}"


def _shown(moment: datetime | None) -> str:
    return "" if moment is None else str(epoch_ms(moment))
