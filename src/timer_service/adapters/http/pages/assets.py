"""Script and icon, under names that change with their content: browsers keep them forever."""

import gzip
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final

_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FILES: Final = ("page.js", "icon.svg")


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    name: str
    body: bytes
    compressed: bytes
    media_type: str


class Assets:
    """All files, read once."""

    def __init__(self) -> None:
        folder = files(__package__) / "static"
        self._by_file = {name: _asset(name, (folder / name).read_bytes()) for name in FILES}
        self._by_name = {asset.name: asset for asset in self._by_file.values()}

    def path(self, file: str) -> str:
        """Return the relative address of a file."""
        return f"static/{self._by_file[file].name}"

    def find(self, path: str) -> Asset | None:
        """Return what is at an address; None if there is nothing."""
        folder, _, name = path.partition("/")
        return self._by_name.get(name) if folder == "static" else None


def _asset(file: str, body: bytes) -> Asset:
    stem, _, kind = file.partition(".")
    name = f"{stem}.{sha256(body).hexdigest()[:12]}.{kind}"
    return Asset(name, body, gzip.compress(body, 9, mtime=0), _TYPES[kind])
