"""What was found out before and still holds, because nothing it depends on has changed since."""

import functools
import hashlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutation.bench import ROOT


class Kept:
    """Findings by name in one file, each with the contents of the files it depends on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self._known: dict[str, dict[str, Any]] = {name: of for name, of in known.items() if _holds(of)}
        self._lock = threading.Lock()

    def get(self, name: str) -> Any:
        """Return a finding that still holds; None if there is none."""
        return self._known.get(name, {}).get("found")

    def keep(self, name: str, found: Any, depends_on: Iterable[str]) -> None:
        """Keep a finding at once: what comes next may be interrupted."""
        with self._lock:
            self._known[name] = {"found": found, "made_of": {path: _hash(path) for path in depends_on}}
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(self._known))


def _holds(known: dict[str, Any]) -> bool:
    return all(_hash(path) == then for path, then in known["made_of"].items())


@functools.cache
def _hash(name: str) -> str:
    path = ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
