"""Record what SQLite does to its files, in order: every write, truncation, sync, new and deleted file."""

import _sqlite3
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OK = 0
_JOURNALS = ("-wal", "-journal")
P, INT, INT64, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p


@dataclass(frozen=True, slots=True)
class Created:
    """A file has come to be."""

    file: str


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes were handed to the operating system."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    """A file was made so long."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """A file is gone; `synced` if its folder was synced as well."""

    file: str
    synced: bool


@dataclass(frozen=True, slots=True)
class Synced:
    """What was written to the file is on the disk, and the names in its folder if `folder` says so."""

    file: str
    folder: bool


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The store has told a caller that its change number so-and-so is done."""

    change: int


Step = Created | Written | Truncated | Deleted | Synced | Acknowledged


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`."""

    _fields_ = (
        ("iVersion", INT),
        *((name, P) for name in ("xClose", "xRead", "xWrite", "xTruncate", "xSync")),
        *((f"other{number}", P) for number in range(13)),
    )


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, as far as its methods on files go."""

    _fields_ = (
        *(("iVersion", INT), ("szOsFile", INT), ("mxPathname", INT), ("pNext", P), ("zName", TEXT)),
        *((name, P) for name in ("pAppData", "xOpen", "xDelete")),
    )


# SQLite keeps the pointer to the name and reads on behind its end: it must get its own again, not a copy.
_OPEN = ctypes.CFUNCTYPE(INT, P, P, ctypes.POINTER(ctypes.POINTER(_Methods)), INT, P)
_DELETE = ctypes.CFUNCTYPE(INT, P, P, INT)
_WRITE = ctypes.CFUNCTYPE(INT, P, P, INT, INT64)
_TRUNCATE = ctypes.CFUNCTYPE(INT, P, INT64)
_SYNC = ctypes.CFUNCTYPE(INT, P, INT)


class Recorder:
    """Stands between SQLite and the operating system for the files of one folder, which is empty at first."""

    def __init__(self, folder: Path) -> None:
        self.steps: list[Step] = []
        self._folder = folder.resolve()
        self._names: dict[int, str] = {}
        self._tables: dict[int, _Methods] = {}
        self._living: set[str] = set()
        self._new: set[str] = set()
        self._kept: list[Any] = []  # ctypes keeps no reference to a callback that C may still call.
        self._one_by_one = threading.Lock()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every file that is opened in the block; all must be closed at its end."""
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        opened, deleted = vfs.xOpen, vfs.xDelete
        try:
            vfs.xOpen = self._address(_OPEN, self._open(_OPEN(opened)))
            vfs.xDelete = self._address(_DELETE, self._delete(_DELETE(deleted)))
            yield
        finally:
            vfs.xOpen, vfs.xDelete = opened, deleted

    def _address(self, kind: Any, function: Callable[..., int]) -> int | None:
        self._kept.append(kind(function))
        return ctypes.cast(self._kept[-1], P).value

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(vfs: int, name: int | None, file: Any, flags: int, out: int) -> int:
            path = None if name is None else _path(name)
            is_ours = path is not None and path.parent == self._folder
            code = real(vfs, name, file, flags, out)
            if code == _OK and path is not None and is_ours and file[0]:
                self._names[ctypes.addressof(file.contents)] = path.name
                if path.name not in self._living:
                    self._living.add(path.name)
                    self._new.add(path.name)
                    self._add(Created(path.name))
                file[0] = ctypes.pointer(self._watched(file[0].contents))
            return code

        return opened

    def _delete(self, real: Callable[..., int]) -> Callable[..., int]:
        def deleted(vfs: int, name: int, sync_folder: int) -> int:
            path = _path(name)
            existed = path.exists()
            code = real(vfs, name, sync_folder)
            if code == _OK and existed and path.parent == self._folder:
                self._living.discard(path.name)
                self._add(Deleted(path.name, bool(sync_folder)))
            return code

        return deleted

    def _watched(self, methods: _Methods) -> _Methods:
        address = ctypes.addressof(methods)
        if address not in self._tables:
            watched = _Methods.from_buffer_copy(methods)
            for name, kind, step in (
                ("xWrite", _WRITE, self._written),
                ("xTruncate", _TRUNCATE, Truncated),
                ("xSync", _SYNC, self._synced),
            ):
                setattr(watched, name, self._address(kind, self._method(kind(getattr(methods, name)), step)))
            self._tables[address] = watched
        return self._tables[address]

    def _method(self, real: Callable[..., int], step: Callable[..., Step]) -> Callable[..., int]:
        def method(file: int, *values: int) -> int:
            code = real(file, *values)
            if code == _OK:
                self._add(step(self._names[file], *values))
            return code

        return method

    @staticmethod
    def _written(file: str, data: int, size: int, offset: int) -> Written:
        return Written(file, offset, ctypes.string_at(data, size))

    def _synced(self, file: str, _flags: int) -> Synced:
        # SQLite syncs the folder of a new journal or log together with it, and of no other file.
        is_new_journal = file in self._new and file.endswith(_JOURNALS)
        self._new.discard(file)
        return Synced(file, folder=is_new_journal)

    def acknowledge(self, change: int) -> None:
        """Note that a caller knows of a change."""
        self._add(Acknowledged(change))

    def _add(self, step: Step) -> None:
        with self._one_by_one:
            self.steps.append(step)


def _path(name: int) -> Path:
    return Path(ctypes.string_at(name).decode())
