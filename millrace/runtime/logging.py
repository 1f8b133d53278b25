"""Structured logs: one JSON object per line on standard output.

Rules for what is logged: names, positions, counts and errors. Never row values, statements, or settings that
are secrets.
"""

import logging
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from millrace.text import printable

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["Logger", "configure_logging", "get_logger"]

Logger = structlog.stdlib.BoundLogger

_WITH_LINES: Final = ("exception", "stack")
"""Of a record, what has lines: tracebacks."""


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
                _without_control_characters,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelName(level), logging.WARNING))


def get_logger(name: str) -> Logger:
    """Give the logger of a module."""
    logger: Logger = structlog.get_logger(name)
    return logger


def _without_control_characters(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    """Let no name and no message of another side reach a terminal raw, by way of a tool that prints logs."""
    return {
        key: "\n".join(map(printable, value.split("\n"))) if key in _WITH_LINES else _shown(value)
        for key, value in event.items()
    }


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    return value
