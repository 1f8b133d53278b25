"""Events that give a statement what its text does not say: INTVAR (5), RAND (13), USER_VAR (14).

They stand before the QUERY to which they belong. Format: MySQL's
``libs/mysql/binlog/event/statement_events.h``.
"""

from typing import Self

from millrace.binlog.declaration import Event, body, event
from millrace.binlog.errors import EncodeError, TrailingBytesError
from millrace.binlog.fields import U8, U32, U64, Bytes32, Text32, decode_text, encode_text, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = ["IntvarEvent", "RandEvent", "UserVarEvent"]


@event(EventType.INTVAR_EVENT, role=Role.SETTING)
class IntvarEvent(Event):
    """A number that the next statement uses: ``type`` 1 is LAST_INSERT_ID, 2 is INSERT_ID."""

    type: U8 = body()
    value: U64 = body()


@event(EventType.RAND_EVENT, role=Role.SETTING)
class RandEvent(Event):
    """The two seeds of RAND() in the next statement."""

    seed1: U64 = body()
    seed2: U64 = body()


@event(EventType.USER_VAR_EVENT, role=Role.SETTING, post_header_lengths=(0,))
class UserVarEvent(Event):
    """A user variable that the next statement reads.

    ``type`` is the result type: 0 string, 1 real (float64), 2 integer (64 bits), 3 row, 4 decimal (precision
    and scale, one byte each, then the number in binary form); ``charset`` a collation id; ``value`` the
    bytes. All three are None where the variable is NULL. ``flags``, since MySQL 5.6, is 1 for an unsigned
    integer.
    """

    name: Text32 = body()
    is_null: U8 = body()
    type: U8 | None = body()
    charset: U32 | None = body()
    value: Bytes32 | None = body()
    flags: U8 | None = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 4
        name_end = at + int.from_bytes(data[offset:at], "little")
        if at > end or name_end >= end:
            raise truncated("name, is_null", name_end + 1 - offset, offset, end)
        name, is_null = decode_text(data[at:name_end]), data[name_end]
        at = name_end + 1
        if is_null:
            if at != end:
                raise TrailingBytesError(f"{end - at} bytes are left over after a NULL user variable")
            return cls(name, is_null, None, None, None, None)
        value_at = at + 9
        value_end = value_at + int.from_bytes(data[at + 5 : value_at], "little")
        if value_at > end or value_end > end:
            raise truncated("type, charset, value", value_end - at, at, end)
        if end - value_end > 1:
            raise TrailingBytesError(f"{end - value_end - 1} bytes are left over after the flags")
        return cls(
            name,
            is_null,
            data[at],
            int.from_bytes(data[at + 1 : at + 5], "little"),
            data[value_at:value_end],
            data[value_end] if value_end < end else None,
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        name = encode_text(self.name)
        parts = [len(name).to_bytes(4, "little"), name, self.is_null.to_bytes(1, "little")]
        if self.is_null:
            if any(field is not None for field in (self.type, self.charset, self.value, self.flags)):
                raise EncodeError("a user variable that is NULL has neither type nor value")
            return b"".join(parts)
        if self.type is None or self.charset is None or self.value is None:
            raise EncodeError("a user variable that is not NULL has type, charset and value")
        parts += (
            self.type.to_bytes(1, "little"),
            self.charset.to_bytes(4, "little"),
            len(self.value).to_bytes(4, "little"),
            self.value,
            b"" if self.flags is None else self.flags.to_bytes(1, "little"),
        )
        return b"".join(parts)
