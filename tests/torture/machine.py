"""The machine under the real process: its disk and its wall clock, as the test wants them."""

import mmap
import os
import struct
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


class Machine(Disk):
    """What every service started with its environment runs on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "offset").write_bytes(bytes(8))
        (folder / "sitecustomize.py").write_text(FAILING_DISK + STEPPED_CLOCK)
        with (folder / "offset").open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    def step_clock(self, milliseconds: int) -> None:
        """Set the wall clock so far off the true time."""
        self._offset[:8] = struct.pack("<q", milliseconds)

    def python_path(self) -> str:
        return os.pathsep.join([str(self._folder), os.environ.get("PYTHONPATH", "")])
