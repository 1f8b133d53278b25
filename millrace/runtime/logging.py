"""Structured logs: one JSON object per line on standard output.

Rules for what is logged: names, positions, counts and errors. Never row values, statements, or settings that
are secrets.
"""

import logging
import sys
from typing import TYPE_CHECKING, TextIO

import structlog

from millrace.text import printable_json

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

__all__ = ["Logger", "configure_logging", "get_logger"]

Logger = structlog.stdlib.BoundLogger


def configure_logging(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send this process's logs, those of libraries included, to ``stream`` (standard output) as JSON."""
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
    handler = logging.StreamHandler(stream or sys.stdout)
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
    """Give the logger of a module."""
    logger: Logger = structlog.get_logger(name)
    return logger
