"""Events that give a statement what its text does not say: INTVAR (5), RAND (13), USER_VAR (14).

They stand before the QUERY to which they belong. Format: MySQL's
``libs/mysql/binlog/event/statement_events.h``.
"""

from millrace.binlog.declaration import Event, When, body, event
from millrace.binlog.fields import U8, U32, U64, Bytes32, Text32
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = [
    "IntvarEvent",
    "RandEvent",
    "UserVarEvent",
]


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


_NOT_NULL = When("is_null", 0xFF, unset=True)


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
    type: U8 | None = body(when=_NOT_NULL)
    charset: U32 | None = body(when=_NOT_NULL)
    value: Bytes32 | None = body(when=_NOT_NULL)
    flags: U8 | None = body(when=_NOT_NULL, remains=True)
