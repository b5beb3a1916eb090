"""What was refused, made ready to be repaired: which rule was broken, where, and what may help."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from timer_client.subjects import Subjects
from timer_service.adapters.codec import decode_command
from timer_service.domain.errors import CommandRefused
from timer_service.domain.messages import Command
from timer_service.ports.letter_box import Letter
from timer_service.timers import NEWEST

MAX_SHOWN_CHARS: Final = 8_192
_FIELD: Final = re.compile(r"([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:: | ')")
_PLACE: Final = re.compile(r"at line (\d+) column (\d+)")
_ZONELESS: Final = re.compile(r'("dueAt"\s*:\s*")(\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(")')
AS_IT_IS: Final = ""
"""No correction: what was refused by an older version may be fine now."""
IN_UTC: Final = "utc"
IN_ZONE: Final = "zone"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a body."""

    text: str
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """A body as it might have been meant."""

    fix: str
    """How it is named in a form."""
    label: str
    body: str


@dataclass(frozen=True, slots=True)
class Group:
    """Letters of one tenant that broke the same rule."""

    tenant_id: str
    """Empty if it is not known."""
    reason: str
    field: str
    letters: tuple[Letter, ...]


def field_of(letter: Letter) -> str:
    """Return the field whose rule was broken, as its detail names it; empty if it names none."""
    found = _FIELD.match(letter.detail)
    return found[1] if found else ""


def grouped(letters: Sequence[Letter]) -> list[Group]:
    """Return letters by tenant, reason and field, the largest group first."""
    found: dict[tuple[str, str, str], list[Letter]] = {}
    for letter in letters:
        key = (letter.tenant_id or "", letter.reason, field_of(letter))
        found.setdefault(key, []).append(letter)
    groups = [Group(*key, tuple(members)) for key, members in found.items()]
    return sorted(groups, key=lambda group: (-len(group.letters), group.tenant_id, group.reason, group.field))


def chosen(letters: Sequence[Letter], reason: str | None, field: str | None) -> list[Letter]:
    """Return the letters with a reason and a field, as far as these are named."""
    return [
        letter
        for letter in letters
        if (not reason or letter.reason == reason) and (field is None or field_of(letter) == field)
    ]


def text_of(body: bytes) -> str:
    """Return a body as text that can be shown and sent back as it is."""
    return body.decode("utf-8", "backslashreplace")


def pieces(letter: Letter) -> list[Piece]:
    """Return a body in pieces; what broke the rule is marked, as far as it can be found."""
    text = text_of(letter.body)[:MAX_SHOWN_CHARS]
    start, end = _broken(letter, text)
    cut = [Piece(text[:start]), Piece(text[start:end], is_broken=True), Piece(text[end:])]
    return [piece for piece in cut if piece.text]


def _broken(letter: Letter, text: str) -> tuple[int, int]:
    place = _PLACE.search(letter.detail)
    if letter.reason == "not_json" and place is not None:
        lines = text.split("\n")
        line, column = int(place[1]) - 1, int(place[2]) - 1
        start = sum(len(each) + 1 for each in lines[:line]) + column
        return min(start, len(text)), min(start + 1, len(text))
    name = field_of(letter).rpartition(".")[2]
    if not name:
        return len(text), len(text)
    found = re.search(rf'"{re.escape(name)}"\s*:\s*("(?:[^"\\]|\\.)*"|[^,\}}\]\s]+)?', text)
    return found.span() if found else (len(text), len(text))


def corrections(letter: Letter, zone_name: str, zone: tzinfo | None) -> list[Correction]:
    """Return what the message may have meant to say; nothing is guessed, a person chooses."""
    text = text_of(letter.body)
    if letter.is_cut or field_of(letter) != "payload.dueAt" or _ZONELESS.search(text) is None:
        return []
    found = [Correction(IN_UTC, "dueAt in UTC", corrected(text, IN_UTC, None) or text)]
    if zone is not None and (local := corrected(text, IN_ZONE, zone)) is not None:
        found.append(Correction(IN_ZONE, f"dueAt in {zone_name}", local))
    return found


def corrected(text: str, fix: str, zone: tzinfo | None) -> str | None:
    """Return a body with a correction; None if it does not apply, or if a time of the zone is ambiguous."""
    if fix == AS_IT_IS:
        return text
    found = _ZONELESS.search(text)
    if found is None:
        return None
    offset = "Z" if fix == IN_UTC else _offset(found[2], zone)
    return None if offset is None else f"{text[: found.end(2)]}{offset}{text[found.end(2) :]}"


def _offset(local_time: str, zone: tzinfo | None) -> str | None:
    """Return the offset of a zone at a local time; None if that time comes twice or never."""
    try:
        moment = datetime.fromisoformat(local_time).replace(tzinfo=zone)
    except ValueError:
        return None
    first, second = moment.utcoffset(), moment.replace(fold=1).utcoffset()
    if zone is None or first is None or first != second:
        return None
    return moment.isoformat()[-6:]


def check(subjects: Subjects, subject: str, body: str, now: datetime) -> Command | CommandRefused:
    """Read a message as the service reads those of the stream; a delay counts from now."""
    try:
        return decode_command(
            subjects, subject, body.encode("utf-8", "surrogatepass"), NEWEST, delays_from=now
        )
    except CommandRefused as refusal:
        return refusal
