"""Our events, and the libraries' warnings, as lines on stderr: JSON for programs, colours for people."""

import logging
import sys
from typing import Final

import structlog

from timer_service.printable import printable, printable_lines

_SEVERAL_LINES: Final = frozenset({"exception", "stack"})


def configure_logging(level: str, log_format: str) -> None:
    """Send our events, and the libraries' warnings, to stderr in one form."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # JSON escapes by itself what would steer a terminal.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()] if as_json else [_escape, structlog.dev.ConsoleRenderer()]
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)


def _escape(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape what others could put into a line; a traceback keeps its lines. repr shows what is not text."""
    return {
        name: (printable_lines if name in _SEVERAL_LINES else printable)(value)
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }
