"""How a command ends: exit codes that scripts can use, and one line for a person."""

import sys
from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_BROKER: Final = 3
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


class CommandFailed(Exception):
    """Ends the command with a code and a line that says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def complain(code: int, text: str) -> int:
    """Say what went wrong and return the exit code."""
    print(f"timer-service: {text}", file=sys.stderr)
    return code
