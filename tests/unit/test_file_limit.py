"""A process may open as many files as it needs, where the system allows it."""

import subprocess
import sys

import pytest

_LIMITED = """
import resource
from timer_service.adapters.system import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(allow_files({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "said"),
    [(200, 900, 500, "500 500 900"), (200, 400, 500, "400 400 400"), (300, 900, 250, "250 300 900")],
)
def test_the_limit_is_raised_as_far_as_it_goes_and_never_lowered(
    soft: int, hard: int, wanted: int, said: str
) -> None:
    code = _LIMITED.format(soft=soft, hard=hard, wanted=wanted)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == said
