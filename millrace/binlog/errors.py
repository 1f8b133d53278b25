"""What can go wrong while bytes become events, and events bytes.

::

    BinlogError
    ├── MalformedError          the bytes are not what their format promises
    │   ├── TruncatedError      a field reaches past the end of what holds it
    │   ├── TrailingBytesError  bytes are left over after the last field
    │   ├── ChecksumError       the CRC32 at the end does not match
    │   └── InvalidValueError   a field holds a value that the format rules out
    ├── UnsupportedError        a format that this library does not know, or does not read
    │   └── TooLargeError       content larger than what is to be held in memory
    ├── MissingStateError       the bytes need something seen earlier: a format description, a table map
    ├── SchemaMismatchError     a table map and the definition of its table contradict each other
    ├── UnrepresentableError    a value that the target type cannot hold
    └── EncodeError             a value given to be encoded that its format cannot hold

Each error says what was needed and what was there. Where it happened is added once, by the code that knows
the file and the position: see :meth:`BinlogError.at`.
"""

from typing import Self

__all__ = [
    "BinlogError",
    "ChecksumError",
    "EncodeError",
    "InvalidValueError",
    "MalformedError",
    "MissingStateError",
    "SchemaMismatchError",
    "TooLargeError",
    "TrailingBytesError",
    "TruncatedError",
    "UnrepresentableError",
    "UnsupportedError",
]


class BinlogError(Exception):
    """Root of all errors of the codec."""

    def __init__(self, message: str, *, log_file: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.log_file = log_file
        self.position = position

    def at(self, log_file: str | None, position: int | None) -> Self:
        """Note where the event starts, unless that is known already; return self, to be raised again."""
        if self.position is None:
            self.log_file, self.position = log_file, position
        return self

    def __str__(self) -> str:
        if self.position is None:
            return self.message
        return f"{self.log_file or 'stream'} at {self.position}: {self.message}"


class MalformedError(BinlogError):
    """The bytes are not what their format promises."""


class TruncatedError(MalformedError):
    """A field reaches past the end of what holds it."""


class TrailingBytesError(MalformedError):
    """Bytes are left over after the last field."""


class ChecksumError(MalformedError):
    """The CRC32 at the end of an event does not match its bytes."""


class InvalidValueError(MalformedError):
    """A field holds a value that its format rules out."""


class UnsupportedError(BinlogError):
    """A format that this library does not know, or knows and does not read."""


class TooLargeError(UnsupportedError):
    """Content larger than what the caller, or this library, holds in memory."""


class MissingStateError(BinlogError):
    """The bytes need something seen earlier: a format description, a table map, a key."""


class SchemaMismatchError(BinlogError):
    """A table map and the definition of its table cannot both be true."""


class EncodeError(BinlogError):
    """A value that was given to be encoded does not fit its format: the caller's, not the log's, mistake."""


class UnrepresentableError(BinlogError):
    """A value that the target type cannot hold, such as the date 0000-00-00 in a calendar."""
