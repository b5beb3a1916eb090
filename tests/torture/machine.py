"""The machine under the real process: its disk and its wall clock, as the test wants them."""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.disk import FAILING_DISK, Disk

# Stands between the service and the wall clock: the milliseconds in the file `offset` are added to it.
STEPPED_CLOCK = """
import mmap, struct, time
with (FOLDER / "offset").open("r+b") as file:
    OFFSET = mmap.mmap(file.fileno(), 8)
real_time_ns = time.time_ns
time.time_ns = lambda: real_time_ns() + struct.unpack("<q", OFFSET[:8])[0] * 1_000_000
"""

# Stands between SQLite and its files: dies right before the write or sync whose number the file `kill-at`
# holds. The first life takes the file away, so that the next one lives. Without it, the steps are counted.
KILLED_AT_A_STEP = """
import atexit, signal
class Methods(ctypes.Structure):
    _fields_ = [("iVersion", I)] + [(f"x{n}", P) for n in range(18)]
WRITE, SYNC = "x2", "x4"
try:
    KILL_AT = int((FOLDER / "kill-at").read_text())
    (FOLDER / "kill-at").unlink()
except FileNotFoundError:
    KILL_AT = -1
STEPS = 0
atexit.register(lambda: (FOLDER / "steps").write_text(str(STEPS)))
def watched(real):
    def step(*values):
        global STEPS
        if STEPS == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        STEPS += 1
        return real(*values)
    return step
def watch(methods, name, *arguments):
    kind = ctypes.CFUNCTYPE(I, *arguments)
    KEPT.append(kind(watched(kind(getattr(methods, name)))))
    setattr(methods, name, ctypes.cast(KEPT[-1], P))
OPEN = ctypes.CFUNCTYPE(I, P, P, ctypes.POINTER(ctypes.POINTER(Methods)), I, P)
real_open = OPEN(vfs.contents.other1)
TABLES = {}
def open_file(vfs_address, name, file, flags, out_flags):
    code = real_open(vfs_address, name, file, flags, out_flags)
    if code == 0 and file[0]:
        address = ctypes.addressof(file[0].contents)
        if address not in TABLES:
            methods = TABLES[address] = Methods.from_buffer_copy(file[0].contents)
            watch(methods, WRITE, P, P, I, ctypes.c_int64)
            watch(methods, SYNC, P, I)
        file[0] = ctypes.pointer(TABLES[address])
    return code
KEPT.append(OPEN(open_file))
vfs.contents.other1 = ctypes.cast(KEPT[-1], P)
"""


class Machine(Disk):
    """What every service started with its environment runs on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "offset").write_bytes(bytes(8))
        (folder / "sitecustomize.py").write_text(FAILING_DISK + STEPPED_CLOCK + KILLED_AT_A_STEP)
        with (folder / "offset").open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    def step_clock(self, milliseconds: int) -> None:
        """Set the wall clock so far off the true time."""
        self._offset[:8] = struct.pack("<q", milliseconds)

    def kill_at(self, step: int) -> None:
        """Let the next service die right before this write or sync of its store, counted from 0."""
        (self._folder / "kill-at").write_text(str(step))

    @property
    def steps(self) -> int:
        """How many writes and syncs the last service that ended in order has made."""
        return int((self._folder / "steps").read_text())

    @contextmanager
    def around(self) -> Iterator[None]:
        """Let processes that are started in the block run on this machine."""
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self._folder), before or ""])
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
