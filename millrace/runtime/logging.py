"""Structured logs: one JSON object per line on standard output.

Rules for what is logged: names, positions, counts and errors. Never row values, statements, or settings that
are secrets.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from millrace.runtime.imports import without
from millrace.text import printable_json

with without("rich"):  # where it is there, structlog loads it for terminals alone: a tenth of a start
    import structlog
    from structlog.contextvars import bind_contextvars, clear_contextvars

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

__all__ = ["Logger", "bind_contextvars", "clear_contextvars", "configure_logging", "get_logger"]

Logger = structlog.stdlib.BoundLogger


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines while that is possible; ``when_unwritable`` is called once, when it no longer is."""

    def __init__(self, stream: TextIO, when_unwritable: Callable[[OSError], None] | None) -> None:
        super().__init__(stream)
        self._when_unwritable = when_unwritable

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Write to nowhere from here on if the stream refuses; else say what is wrong with a record."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif self._when_unwritable is None:
            raise  # noqa: PLE0704 - it is called where the error is handled
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            self._when_unwritable(error)


def configure_logging(
    level: str = "INFO",
    stream: TextIO | None = None,
    *,
    when_unwritable: Callable[[OSError], None] | None = None,
) -> None:
    """Send this process's logs, those of libraries included, to ``stream`` (standard output) as JSON.

    ``when_unwritable`` is called when the pipe that it leads to has no reader any more (with a
    BrokenPipeError), or its disk is full; without it who logs gets that error.
    """
    stamps: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *stamps,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Lines(stream or sys.stdout, when_unwritable)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=stamps,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
                _printable,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelName(level), logging.WARNING))


def _printable(_logger: object, _method: str, line: "EventDict") -> str:
    """Escape in a rendered line what would act on a terminal, or cannot be encoded."""
    return printable_json(str(line))


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    logger: Logger = structlog.get_logger(name)
    return logger
