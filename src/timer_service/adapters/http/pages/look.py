"""How somebody wants to see the page, kept in cookies that say nothing else."""

import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timer_service.adapters.http.pages.visit import Look, PageError, Redirect, Visit

THEMES: Final = ("auto", "light", "dark")
YEAR_S: Final = 365 * 86_400
MAX_RETURN_CHARS: Final = 4_096
_ZONE: Final = re.compile(r"[A-Za-z0-9_+/-]{1,64}")
_RETURN: Final = re.compile(r"(?:\./|[a-z-]{1,20})(?:\?[!-~]*)?")


def look_of(headers: Mapping[str, str]) -> Look:
    """Return what was chosen; whatever is not understood counts as not chosen."""
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return Look()
    theme = jar["theme"].value if "theme" in jar else "auto"
    zone = jar["zone"].value if "zone" in jar else "UTC"
    return Look(theme if theme in THEMES else "auto", *_zone(zone))


async def choose_look(visit: Visit) -> Redirect:
    """Keep what was chosen, and go back to where it was chosen."""
    theme, zone = visit.field("theme"), visit.field("zone").strip()
    cookies = []
    if theme in THEMES:
        cookies.append(_cookie("theme", theme))
    if zone:
        if zone != "UTC" and _zone(zone)[1] is None:
            raise PageError(400, "The zone must be a name such as UTC or Europe/Berlin.")
        cookies.append(_cookie("zone", zone))
    return Redirect(local_address(visit.field("next")), tuple(cookies))


def local_address(text: str) -> str:
    """Return an address of the page; anything else leads to the first screen."""
    return text if len(text) <= MAX_RETURN_CHARS and _RETURN.fullmatch(text) else "./"


def _cookie(name: str, value: str) -> str:
    return f"{name}={value}; Max-Age={YEAR_S}; HttpOnly; SameSite=Strict"


def _zone(name: str) -> tuple[str, ZoneInfo | None]:
    if name == "UTC" or not _ZONE.fullmatch(name):
        return "UTC", None
    try:
        return name, ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC", None
