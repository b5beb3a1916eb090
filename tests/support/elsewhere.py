"""Run code in a process of its own, whose sets have another order."""

import os
import subprocess
import sys
from pathlib import Path


def printed_elsewhere(code: str) -> list[str]:
    """Return the words that code prints in another process."""
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "1234", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    return there.stdout.split()
