"""Other people's text, made safe for a terminal: whatever would steer or deceive it is shown escaped."""

import json
import re
from typing import Any, Final

# Control characters (ESC among them), bidi controls, characters that nobody sees, line separators, lone
# surrogates. The two joiners stay: words and emoji are made with them.
_STEERING: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
_UNSAFE: Final = re.compile(f"[{_STEERING}]")
_UNSAFE_IN_LINES: Final = re.compile(f"(?!\n)[{_STEERING}]")


def printable(text: str) -> str:
    """Return the text on one line, with what would steer a terminal escaped as Python writes it."""
    return _UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, each of them printable."""
    return _UNSAFE_IN_LINES.sub(_escaped, text)


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON that a program reads as `value`, and that no terminal obeys."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # What is left outside of strings are the line feeds of an indented text; JSON escapes those inside.
    return _UNSAFE_IN_LINES.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escaped(match: "re.Match[str]") -> str:
    return match[0].encode("unicode_escape").decode("ascii")
