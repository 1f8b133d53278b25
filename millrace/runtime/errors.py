"""Errors that a user can act on: one line that says what happened and what to do, and an exit code."""

from collections.abc import Sequence
from contextvars import ContextVar
from threading import Event
from typing import Final

from millrace.runtime.exit_codes import ExitCode


class UserError(Exception):
    """Ends the process with ``error: {message}`` on stderr and ``exit_code``, without a traceback."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code

    @property
    def lines(self) -> Sequence[str]:
        """What to print, a line each."""
        return [self.message]


class SettingsError(UserError):
    """Settings that are missing or wrong: a line for each of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems), ExitCode.SETTINGS)
        self.problems = problems

    @property
    def lines(self) -> Sequence[str]:
        """What to print, a line per setting."""
        return self.problems


class StopRequestedError(Exception):
    """Long work is left, since the process was told to stop; it resumes where the last commit ended."""


stop_of_service: Final[ContextVar[Event | None]] = ContextVar("stop_of_service", default=None)
"""What tells the service that runs in this context to stop, for waits that are not told otherwise."""
