"""Models into HTML or JSON: everything that came from others is text, and looks like it."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from timer_client.wire import format_time, parse_time
from timer_service.adapters.http.pages.assets import Assets
from timer_service.adapters.http.pages.visit import Look, address
from timer_service.domain.spoken import whole_span_text
from timer_service.printable import printable

MAX_SHOWN_CHARS: Final = 8_192
SLICE_S: Final = 0.0004
"""How long a page is written in one go; then whatever is due goes first."""
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_WORD: Final = re.compile(r"_([a-z])")
_NOTED: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""A moment in the words of the notes."""


class Renderer:
    """Knows the templates and how values are written."""

    def __init__(self, assets: Assets) -> None:
        self._environment = Environment(
            loader=PackageLoader("timer_service.adapters.http.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {"asset": assets.path, "address": address}
        self._environment.filters |= {
            "time": _time,
            "noted": _noted,
            "span": span,
            "number": number,
            "visible": visible,
            "late": late,
        }

    def load(self) -> None:
        """Read every template, which takes a fifth of a second: no visit stops the loops for it."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    @property
    def style(self) -> str:
        """The style, as it stands in every page."""
        return self._environment.get_template("page.css").render()

    async def html(self, template: str, model: Mapping[str, Any], chrome: Mapping[str, Any]) -> bytes:
        """Return a page; `chrome` is what every page has."""
        assert not chrome.keys() & model.keys(), "a screen must not change what every page has"
        pieces: list[str] = []
        # What there is to show has just been put together.
        await asyncio.sleep(0)
        began = time.perf_counter()
        for piece in self._environment.get_template(template).generate({**chrome, **model}):
            pieces.append(piece)
            # By the clock, because pieces differ: one is a word, another a whole chart.
            if time.perf_counter() - began > SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return "".join(pieces).encode()


def as_json(model: Mapping[str, Any]) -> bytes:
    """Return the same model for a program: moments in UTC, names in camel case."""
    return json.dumps(_plain(model), ensure_ascii=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, timedelta):
        return value / timedelta(seconds=1)
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value.value, int) else value.value
    if is_dataclass(value) and not isinstance(value, type):
        members = [(name, getattr(value, name)) for name in _names(type(value))]
        return {_camel(name): _plain(each) for name, each in members if each is not None}
    if isinstance(value, Mapping):
        return {_camel(str(name)): _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple | set | frozenset | Iterator):
        return [_plain(each) for each in value]
    return value


@lru_cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


@lru_cache
def _camel(name: str) -> str:
    return _WORD.sub(lambda match: match[1].upper(), name)


def visible(text: object) -> str:
    """Return other people's text with everything escaped that would steer or deceive the eye."""
    shown = printable(str(text))
    return shown if len(shown) <= MAX_SHOWN_CHARS else shown[:MAX_SHOWN_CHARS] + "…"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with separators; a dash if there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def late(seconds: float | None) -> str:
    """Return a lateness, to the millisecond where that means something."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else span(seconds)


def span(seconds: float | timedelta) -> str:
    """Return a span as the page's script counts it on, in whole seconds."""
    return whole_span_text(seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds))


@pass_context
def _time(context: Context, moment: datetime | None) -> str:
    """Return a moment in the zone that the visitor chose, with the zone written out."""
    return "–" if moment is None else written(moment, context["look"])


@pass_context
def _noted(context: Context, text: str) -> str:
    """Return words of the notes, with their moments as the page writes all others."""
    return _NOTED.sub(lambda found: written(parse_time(found[0]), context["look"]), visible(text))


def written(moment: datetime, look: Look) -> str:
    """Return a moment in a zone, to the millisecond, with the zone's name."""
    # Not by strftime: it takes three times as long, and a list has a hundred moments; nor does it pad years.
    try:
        local, zone = moment.astimezone(look.zone or UTC), look.zone
    except OverflowError:  # In a zone ahead of UTC, the last hours of the year 9999 are of the next one.
        local, zone = moment.astimezone(UTC), None
    name = "UTC" if zone is None else f"{local:%Z} ({look.zone_name})"
    return f"{local.replace(tzinfo=None).isoformat(' ', 'milliseconds')} {name}"
