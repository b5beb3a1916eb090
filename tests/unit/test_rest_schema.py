"""Both dialects answer as their document says; what is asked is in tests/support/rest_schema.py."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_dialects_answer_as_their_document_says() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/support/rest_schema.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert asked.returncode == 0, asked.stdout[-5_000:]
    assert " passed" in asked.stdout
