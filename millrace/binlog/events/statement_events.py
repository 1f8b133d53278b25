"""Events that give a statement what its text does not say: INTVAR (5), RAND (13), USER_VAR (14).

They stand before the QUERY to which they belong. Format: MySQL's
``libs/mysql/binlog/event/statement_events.h``.
"""

from enum import IntEnum

from millrace.binlog.declaration import Event, When, body, event
from millrace.binlog.fields import U8, U32, U64, Bytes32, Text32
from millrace.binlog.grammar import Role

__all__ = [
    "IntvarEvent",
    "ItemResult",
    "RandEvent",
    "UserVarEvent",
]


@event(5, role=Role.SETTING)
class IntvarEvent(Event):
    """A number that the next statement uses: ``type`` 1 is LAST_INSERT_ID, 2 is INSERT_ID."""

    type: U8 = body()
    value: U64 = body()


@event(13, role=Role.SETTING)
class RandEvent(Event):
    """The two seeds of RAND() in the next statement."""

    seed1: U64 = body()
    seed2: U64 = body()


_NOT_NULL = When("is_null", 0xFF, unset=True)


class ItemResult(IntEnum):
    """``type`` of a user variable, ``Item_result``."""

    STRING_RESULT = 0
    REAL_RESULT = 1
    INT_RESULT = 2
    ROW_RESULT = 3
    DECIMAL_RESULT = 4


_UNSIGNED_F = 1


@event(14, role=Role.SETTING, post_header_lengths=(0,))
class UserVarEvent(Event):
    """A user variable that the next statement reads.

    ``type`` is an ItemResult: string, real (float64), integer (64 bits), decimal (precision and scale, one
    byte each, then the number in binary form); ``charset`` a collation id; ``value`` the bytes. ``flags``,
    since MySQL 5.6, is 1 for an unsigned integer.
    """

    name: Text32 = body()
    is_null: U8 = body()
    type: U8 | None = body(when=_NOT_NULL)
    charset: U32 | None = body(when=_NOT_NULL)
    value: Bytes32 | None = body(when=_NOT_NULL)
    flags: U8 | None = body(when=_NOT_NULL, remains=True)

    @property
    def is_unsigned(self) -> bool:
        """Whether an integer has no sign."""
        return bool((self.flags or 0) & _UNSIGNED_F)
