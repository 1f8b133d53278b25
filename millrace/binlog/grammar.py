"""The grammar of the binary log: what each event is to its transaction, of all servers and versions.

::

    log      = (group | between)*
    group    = gtid? (bounded | prepared | single | INCIDENT)
    gtid     = GTID_LOG | GTID_TAGGED_LOG | ANONYMOUS_GTID_LOG | MariaDB's GTID
    bounded  = begin, change*, (XID | QUERY "COMMIT" | QUERY "ROLLBACK")
    begin    = QUERY "BEGIN" | nothing, after MariaDB's GTID without STANDALONE
    prepared = QUERY "XA START …" (or nothing, as above), change*, QUERY "XA END …", XA_PREPARE_LOG
    single   = setting*, one event: any other QUERY, EXECUTE_LOAD_QUERY, EXEC_LOAD or DELETE_FILE,
               or TABLE_MAP*, rows event* and one with STMT_END_F (MySQL 5.1 without BEGIN)
    change   = setting | TABLE_MAP | rows event | any QUERY, "SAVEPOINT …" and "ROLLBACK TO …" among them
    setting  = INTVAR | RAND | USER_VAR | ROWS_QUERY | ANNOTATE_ROWS | BEGIN_LOAD_QUERY | APPEND_BLOCK | …
    between  = FORMAT_DESCRIPTION | ROTATE | STOP | PREVIOUS_GTIDS | GTID_LIST | BINLOG_CHECKPOINT | …

``XA COMMIT`` and ``XA ROLLBACK`` are a single of their own, any time after the prepared group. A
TRANSACTION_PAYLOAD stands in place of a bounded group, and the events inside are fed after it; to whoever
does not look inside, it is the end. A log ends in mid-group only when its server died; the FORMAT_DESCRIPTION
of the next start, whose ``created`` is not 0, undoes what was open. Relay logs change files in mid-group.
MySQL 5.0 writes an XID after a single as well, which counts as standing between groups here. An INCIDENT has
a GTID of its own or, in older versions, none, and ends a group in any case, as in the server's own
``Transaction_boundary_parser``.

The role of an event type is said at its declaration. Some roles depend on what the event contains:
:class:`Role` says on what. :data:`TRANSITIONS` is the state machine, which all follow: the tracker of typed
events, the reader's of bytes, and the kernel, which is given the table.
"""

from enum import IntEnum
from typing import Final

__all__ = ["GTIDS", "HEADING", "SILENT", "TRANSITIONS", "Effect", "Mode", "Role"]


class Role(IntEnum):
    """What an event is to the group that it stands in, begins or ends.

    The last five are never declared: an event of another role turns out to have them.
    """

    PART = 0
    """Belongs to what is open, and opens nothing."""
    BETWEEN = 1
    """Stands between groups, or where a relay log changes files."""
    START = 2
    """Describes the format: BETWEEN, or RESTART if the server started with it."""
    GTID = 3
    """Names the group that follows: a statement, or what a BEGIN begins."""
    GROUP_GTID = 4
    """MariaDB's: names a group that lasts to its end; with the flag STANDALONE it is a GTID."""
    ANONYMOUS_GTID = 5
    """Begins a group without naming it."""
    QUERY = 6
    """A statement, whose text says whether it is BEGIN, COMMIT, ROLLBACK, DECISION or SINGLE."""
    ROWS = 7
    """SETTING, or SINGLE with STMT_END_F."""
    SETTING = 8
    """Belongs to what follows it."""
    SINGLE = 9
    """A change that is a group of its own outside a bounded one."""
    COMMIT = 10
    """Ends a group."""
    PREPARE = 11
    """Ends a group as COMMIT does, but may leave open whether it is committed."""
    PAYLOAD = 12
    """A whole group, packed: SETTING to whoever takes the events inside as well, else COMMIT."""
    INCIDENT = 13
    """Ends a group; stands between groups where none is open."""

    RESTART = 14
    BEGIN = 15
    ROLLBACK = 16
    DECISION = 17
    """Decides about a prepared transaction: a group of its own, which ends at once."""


GTIDS: Final = frozenset({Role.GTID, Role.GROUP_GTID})
"""Roles of events that name a transaction."""

HEADING: Final = GTIDS | {Role.ANONYMOUS_GTID}
"""Roles of events that stand at the head of a transaction."""

SILENT: Final = HEADING | {Role.COMMIT, Role.PAYLOAD}
"""Roles of events that change nothing by themselves: no output is made of them."""


class Mode(IntEnum):
    """What the log waits for after an event."""

    NONE = 0
    """No group is open."""
    HEAD = 1
    """One is, and has neither begun with BEGIN nor had its statement."""
    OPENED = 2
    """One lasts to its end, and a BEGIN that follows at once belongs to it."""
    BODY = 3
    """One lasts to its end."""


class Effect(IntEnum):
    """What an event does, a bit each; beside the mode that follows, in the lowest two bits.

    Plain numbers, since the operators of an IntFlag take longer than all else that a tracker does.
    """

    COUNTS = 4
    """It belongs to a group."""
    OPENS = 8
    """It begins a group; if another was open, that one is over without its end."""
    ENDS = 16
    """It ends the group that is open, if one is."""
    CUTS = 32
    """It shows that what was open is undone."""


_COUNTS, _ENDS = int(Effect.COUNTS), int(Effect.ENDS | Effect.COUNTS)
_OPENS, _ALONE = int(Effect.OPENS | Effect.COUNTS), int(Effect.OPENS | _ENDS)
_NONE, _HEAD, _OPENED, _BODY = map(int, Mode)

_APART: Final = (_NONE, _HEAD, _OPENED, _BODY)
_PART: Final = (_NONE, _COUNTS | _HEAD, _COUNTS | _BODY, _COUNTS | _BODY)
_SETTING: Final = (_OPENS | _HEAD, *_PART[1:])
_SINGLE: Final = (_ALONE, _ENDS, *_PART[2:])
_END: Final = (Effect.ENDS, _ENDS, _ENDS, _ENDS)
_HEADED: Final = (_OPENS | _HEAD,) * 4

_ROWS_OF_TABLE: Final = {
    # in the mode:       NONE, HEAD, OPENED, BODY
    Role.PART: _PART,
    Role.BETWEEN: _APART,
    Role.START: _APART,
    Role.GTID: _HEADED,
    Role.GROUP_GTID: (_OPENS | _OPENED,) * 4,
    Role.ANONYMOUS_GTID: _HEADED,
    Role.QUERY: _SINGLE,
    Role.ROWS: _SETTING,
    Role.SETTING: _SETTING,
    Role.SINGLE: _SINGLE,
    Role.COMMIT: _END,
    Role.PREPARE: _END,
    Role.PAYLOAD: _SETTING,
    Role.INCIDENT: _END,
    Role.RESTART: (_NONE, Effect.CUTS, Effect.CUTS, Effect.CUTS),
    Role.BEGIN: (_OPENS | _OPENED, _COUNTS | _BODY, _COUNTS | _BODY, _OPENS | _OPENED),
    Role.ROLLBACK: _END,
    Role.DECISION: (_ALONE, _ENDS, _ENDS, _ENDS),
}

TRANSITIONS: Final = bytes(entry for role in Role for entry in _ROWS_OF_TABLE[role])
"""The effect of a role in a mode, and the mode that follows, at ``role * len(Mode) + mode``."""
