"""Whether a server's log continues from our position, by the GTIDs that it knows of.

Two questions, of a log that is not the one that was read so far. Does its history hold all that was read?
Else it is the log of something else, or of a server that lost the end of its own. And does it still hold all
that was not read? Else changes are missing.

Another server passes GTIDs on as it got them, so that what it has executed proves the first. A server that
was itself read assigns its numbers again after RESET or when it lost the end of its log, and the same
number is then another transaction: there only what lies before the oldest of its files, or before the file
that follows the lost end, is proof.
"""

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events.gtid import PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import MariadbGtidListEvent
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition
from millrace.binlog.state import StreamState
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.identity import LogHead


def executed(connection: MysqlConnection) -> str:
    """Return all GTIDs that a server knows to lie in its past.

    Of MariaDB these are the last of each domain and server, and those at which it stands as a replica.
    """
    if connection.flavour is Flavour.MARIADB:
        found = (_value(connection, "gtid_binlog_state"), _value(connection, "gtid_slave_pos"))
        return ",".join(filter(None, found))
    return _value(connection, "gtid_executed")


def purged(connection: MysqlConnection, oldest: LogHead) -> str:
    """Return the GTIDs of what no log of a server holds any more; ``oldest`` heads its oldest file."""
    before = gtids_before(oldest)
    if connection.flavour is Flavour.MARIADB:
        return before
    return str(GtidSet.parse(before).union(GtidSet.parse(_value(connection, "gtid_purged"))))


def gtids_before(head: LogHead) -> str:
    """Return the GTIDs that a file says lie before it, of MariaDB all that it lists; "" if none."""
    if head.second is None:
        return ""
    state = StreamState()
    try:
        decode_event(head.format_description, state, verify=False)
        event = decode_event(head.second, state, verify=False).event
    except BinlogError:
        # Whose head cannot be read proves nothing.
        return ""
    if isinstance(event, PreviousGtidsLogEvent):
        return str(GtidSet.from_event(event))
    if isinstance(event, MariadbGtidListEvent):
        return ",".join(f"{entry.domain_id}-{entry.server_id}-{entry.seq_no}" for entry in event.entries)
    return ""


def lacking(read: str, history: str) -> str:
    """Return what of the GTIDs ``read`` is not in a history, as one of the functions above gives it."""
    if _is_mysql(read):
        return str(GtidSet.parse(read).subtract(GtidSet.parse(history if _is_mysql(history) else "")))
    known = [] if _is_mysql(history) else _gtids(history)
    return ",".join(
        str(gtid)
        for gtid in MariadbGtidPosition.parse(read)
        if not any(
            (one.domain_id, one.server_id) == (gtid.domain_id, gtid.server_id) and one.seq_no >= gtid.seq_no
            for one in known
        )
    )


def missing(read: str, gone: str) -> str:
    """Return in words what of ``gone``, as :func:`purged` gives it, was not read; "" if nothing."""
    if not gone:
        return ""
    if _is_mysql(gone):
        return str(GtidSet.parse(gone).subtract(GtidSet.parse(read)))
    position = MariadbGtidPosition(_gtids(read))
    reached = {gtid.domain_id: gtid for gtid in position}
    return ", ".join(
        f"after {reached[last.domain_id]} up to {last}" if last.domain_id in reached else f"up to {last}"
        for last in MariadbGtidPosition(_gtids(gone))
        if not position.contains(last)
    )


def after_both(read: str, gone: str) -> str:
    """Return what is to be left out so as to continue after both: what was read, and what is gone."""
    if _is_mysql(gone):
        return str(GtidSet.parse(gone).union(GtidSet.parse(read)))
    return str(MariadbGtidPosition.parse(read).union(MariadbGtidPosition(_gtids(gone))))


def _value(connection: MysqlConnection, name: str) -> str:
    # SHOW VARIABLES would cut a long one.
    row = connection.row(f"SELECT @@GLOBAL.{name} AS value", doing=f"ask for {name}")
    return "".join(row.text("value").split())


def _is_mysql(gtids: str) -> bool:
    return ":" in gtids


def _gtids(text: str) -> list[MariadbGtid]:
    return [MariadbGtid.parse(part) for part in text.split(",") if part]
