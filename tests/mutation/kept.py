"""What was found out before and still holds, because nothing it depends on has changed since."""

import hashlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutation.bench import ROOT


class Kept:
    """Findings by name in one file, each with the contents of the files it depends on."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        self._path = path
        self._contents = _contents(root)
        """As the run begins: what is edited later is not what it tries."""
        known = json.loads(path.read_text()) if path.exists() else {}
        self._known: dict[str, dict[str, Any]] = {name: of for name, of in known.items() if self._holds(of)}
        self._lock = threading.Lock()

    def get(self, name: str) -> Any:
        """Return a finding that still holds; None if there is none."""
        return self._known.get(name, {}).get("found")

    def keep(self, name: str, found: Any, depends_on: Iterable[str]) -> None:
        """Keep a finding at once: what comes next may be interrupted."""
        with self._lock:
            made_of = {path: self._contents.get(path, "") for path in depends_on}
            self._known[name] = {"found": found, "made_of": made_of}
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(self._known))

    def _holds(self, known: dict[str, Any]) -> bool:
        return all(self._contents.get(path) == then for path, then in known["made_of"].items())


def _contents(root: Path) -> dict[str, str]:
    """Return a hash of each module and each file of tests."""
    found = (path for part in ("src", "client/src", "tests") for path in (root / part).rglob("*.py"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
