"""How a command ends: exit codes that scripts can use, and one line for a person."""

import sys
from typing import Final

from timer_service.printable import printable

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
    # On one line, and without what others may have put into it to steer the terminal.
    print(f"timer-service: {printable(text)}", file=sys.stderr)
    return code
