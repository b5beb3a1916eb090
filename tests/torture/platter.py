"""The disk under a recorded load: what is sure to be on it, and what a power cut may leave of the rest."""

from collections.abc import Iterator
from random import Random

from tests.torture.recorder import Created, Deleted, Step, Synced, Truncated, Written

SECTOR_BYTES = 512
LOST, KEPT, IN_ORDER, SCATTERED, GARBLED = "lost", "kept", "in order", "scattered", "garbled"
WAYS = (LOST, KEPT, IN_ORDER, SCATTERED, GARBLED)
"""What becomes of what was not synced: nothing is left, all is, a first part of it, any sectors of it, or any
sectors while others hold anything at all. Bytes beside those that were written stay as they were, as SQLite
assumes of its file system (SQLITE_IOCAP_POWERSAFE_OVERWRITE)."""

Image = dict[str, bytes]
"""Files by name, as the machine finds them when power is back."""


class Platter:
    """Follows the steps of a recording. A name and the file behind it are apart, as on a real disk."""

    def __init__(self) -> None:
        self._files: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._current: dict[str, int] = {}
        self._unsynced: list[tuple[int, Written | Truncated]] = []
        self._unsynced_names: list[tuple[str, int | None]] = []

    @property
    def is_clean(self) -> bool:
        """Whether a power cut changes nothing."""
        return not self._unsynced and not self._unsynced_names

    def follow(self, step: Step) -> None:
        """Take a step of the recording."""
        match step:
            case Created(file):
                self._current[file] = number = len(self._files)
                self._files[number] = b""
                self._unsynced_names.append((file, number))
            case Deleted(file, synced):
                del self._current[file]
                self._unsynced_names.append((file, None))
                if synced:
                    self._sync_names()
            case Written(file) | Truncated(file):
                self._unsynced.append((self._current[file], step))
            case Synced(file, folder):
                self._sync(self._current[file])
                if folder:
                    self._sync_names()

    def _sync(self, number: int) -> None:
        content = bytearray(self._files[number])
        for _, change in (each for each in self._unsynced if each[0] == number):
            _apply(content, change)
        self._files[number] = bytes(content)
        self._unsynced = [each for each in self._unsynced if each[0] != number]

    def _sync_names(self) -> None:
        self._names = _renamed(self._names, self._unsynced_names)
        self._unsynced_names = []

    def cut(self, way: str, random: Random) -> Image:
        """Return the files after a power cut at this moment."""
        names = self._unsynced_names[: _first_part(len(self._unsynced_names), way, random)]
        contents = {number: bytearray(content) for number, content in self._files.items()}
        changes = self._unsynced[: _first_part(len(self._unsynced), way, random)]
        share = random.choice((0.1, 0.5, 0.9))
        for turn, (number, change) in enumerate(changes, 1):
            is_torn = way in (SCATTERED, GARBLED) or (way == IN_ORDER and turn == len(changes))
            for part in _torn(change, way, share, random) if is_torn else (change,):
                _apply(contents[number], part)
        found = _renamed(self._names, names)
        return {name: bytes(contents[number]) for name, number in found.items()}


def _first_part(length: int, way: str, random: Random) -> int:
    """Return how many of the changes have got anywhere near the disk."""
    if way == LOST:
        return 0
    return random.randint(0, length) if way == IN_ORDER else length


def _renamed(names: dict[str, int], changes: list[tuple[str, int | None]]) -> dict[str, int]:
    after: dict[str, int | None] = {**names, **dict(changes)}
    return {name: number for name, number in after.items() if number is not None}


def _torn(
    change: Written | Truncated, way: str, share: float, random: Random
) -> Iterator[Written | Truncated]:
    """Yield what is left of one change, in sectors of the disk."""
    if isinstance(change, Truncated):
        if random.random() < share:
            yield change
        return
    sectors = list(_sectors(change))
    if way == IN_ORDER:
        yield from sectors[: random.randint(0, len(sectors))]
        return
    for sector in sectors:
        if random.random() < share:
            yield sector
        elif way == GARBLED and random.random() < 0.5:
            yield Written(sector.file, sector.offset, random.randbytes(len(sector.data)))


def _sectors(write: Written) -> Iterator[Written]:
    at, end = write.offset, write.offset + len(write.data)
    while at < end:
        until = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield Written(write.file, at, write.data[at - write.offset : until - write.offset])
        at = until


def _apply(content: bytearray, change: Written | Truncated) -> None:
    if isinstance(change, Truncated):
        del content[change.size :]
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data
