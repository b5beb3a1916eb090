"""Release 0.1.0, out of the history of this repository, as source that the present environment can run."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.documents import ROOT

RELEASE = "c6bf38e"


def unpack_release(folder: Path) -> Path:
    """Unpack the release into a folder, its migrations beside its source; return where the source is."""
    command = ["git", "archive", RELEASE, "src", "migrations"]
    archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def start_old(source: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program that imports the release; the test talks to it by its input and output."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
