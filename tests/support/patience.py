"""How long a test waits for what must happen."""

from typing import Final

PATIENCE_S: Final = 120.0
"""Only what hangs takes longer, however busy the machine is. `make bench` measures what must be fast."""
