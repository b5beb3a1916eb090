"""A disk that fails when the test says so, under the store of the real process."""

from pathlib import Path

# Stands between the store and the kernel: while the file `errno` exists, every write of SQLite fails with the
# number in it, and is counted; likewise `lock-errno` for what the service writes beside the database. This is
# the kernel's own answer on a full disk, and needs no privileges.
FAILING_DISK = """
import _sqlite3, ctypes, os, pathlib
FOLDER = pathlib.Path(__file__).parent
P, I = ctypes.c_void_p, ctypes.c_int
class Vfs(ctypes.Structure):
    _fields_ = [("iVersion", I), ("szOsFile", I), ("mxPathname", I), ("pNext", P), ("zName", ctypes.c_char_p)]
    _fields_ += [(f"other{n}", P) for n in range(14)]
    _fields_ += [("xSetSystemCall", ctypes.CFUNCTYPE(I, P, ctypes.c_char_p, P))]
    _fields_ += [("xGetSystemCall", ctypes.CFUNCTYPE(P, P, ctypes.c_char_p))]
library = ctypes.CDLL(_sqlite3.__file__)
library.sqlite3_initialize()
library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
vfs = library.sqlite3_vfs_find(None)
KEPT = []
def refusal(name):
    try:
        number = int((FOLDER / name).read_text())
    except FileNotFoundError:
        return None
    with (FOLDER / "refused").open("a") as refused:
        refused.write("x")
    return number
def intercept(name, *arguments):
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *arguments, use_errno=True)
    address = vfs.contents.xGetSystemCall(vfs, name)
    if not address:
        return
    real = kind(address)
    def write(*values):
        number = refusal("errno")
        if number is None:
            return real(*values)
        ctypes.set_errno(number)
        return -1
    KEPT.append(kind(write))
    vfs.contents.xSetSystemCall(vfs, name, ctypes.cast(KEPT[-1], P))
intercept(b"write", I, P, ctypes.c_size_t)
intercept(b"pwrite", I, P, ctypes.c_size_t, ctypes.c_int64)
intercept(b"pwrite64", I, P, ctypes.c_size_t, ctypes.c_int64)
real_pwrite = os.pwrite
def pwrite(*values):
    number = refusal("lock-errno")
    if number is not None:
        raise OSError(number, os.strerror(number))
    return real_pwrite(*values)
os.pwrite = pwrite
"""


class Disk:
    """The disk under the store of every service the test starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(FAILING_DISK)

    def fail(self, number: int, *, switch: str = "errno") -> None:
        whole = self._folder / "whole"
        whole.write_text(str(number))
        whole.rename(self._folder / switch)

    def recover(self) -> None:
        (self._folder / "errno").unlink()

    @property
    def refused_writes(self) -> int:
        refused = self._folder / "refused"
        return refused.stat().st_size if refused.exists() else 0
