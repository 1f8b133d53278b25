"""Whether a server's log continues from our position, by the GTIDs that it knows of.

Two questions, of a log that is not the one that was read so far. Does its history hold all that was read?
Else it is the log of something else, or of a server that lost the end of its own. And does it still hold all
that was not read? Else changes are missing.

Another server passes GTIDs on as it got them, so that what it has executed proves the first. A server that
was itself read assigns its numbers again after RESET or when it lost the end of its log, and the same
number is then another transaction: there only what lies before the oldest of its files, or before the file
that follows the lost end, is proof.
"""

from collections.abc import Iterable

from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events.gtid import PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import MariadbGtidListEvent
from millrace.binlog.gtid_set import GtidSet, MariadbBinlogState, MariadbGtid, MariadbGtidPosition
from millrace.binlog.state import StreamState
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.identity import LogHead


def executed(connection: MysqlConnection) -> str:
    """Return all GTIDs that a server knows to lie in its past, of MariaDB the last of each domain and server.

    Where a replica stands (``gtid_slave_pos``) is no proof: of each domain it names one server only.
    """
    mariadb = connection.flavour is Flavour.MARIADB
    return _value(connection, "gtid_binlog_state" if mariadb else "gtid_executed")


def purged(connection: MysqlConnection, oldest: LogHead) -> str:
    """Return the GTIDs of what no log of a server holds any more; ``oldest`` heads its oldest file."""
    before = gtids_before(oldest) or ""
    if connection.flavour is Flavour.MARIADB:
        return before
    return str(GtidSet.parse(before).union(GtidSet.parse(_value(connection, "gtid_purged"))))


def gtids_before(head: LogHead) -> str | None:
    """Return the GTIDs that a file says lie before it, of MariaDB all that it lists; None if it does not."""
    event = _second(head)
    if isinstance(event, PreviousGtidsLogEvent):
        return str(GtidSet.from_event(event))
    state = binlog_state_before(head)
    return None if state is None else str(state)


def binlog_state_before(head: LogHead) -> MariadbBinlogState | None:
    """Return what a file of MariaDB says lies before it; None where it does not say that."""
    event = _second(head)
    return MariadbBinlogState.from_event(event) if isinstance(event, MariadbGtidListEvent) else None


def _second(head: LogHead) -> Event | None:
    if head.second is None:
        return None
    state = StreamState()
    try:
        decode_event(head.format_description, state, verify=False)
        return decode_event(head.second, state, verify=False).event
    except BinlogError:
        # Whose head cannot be read proves nothing.
        return None


def lacking(read: str, history: str) -> str:
    """Return what of the GTIDs ``read`` is not in a history, as one of the functions above gives it."""
    if _is_mysql(read):
        return str(GtidSet.parse(read).subtract(GtidSet.parse(history if _is_mysql(history) else "")))
    log = MariadbBinlogState.parse("" if _is_mysql(history) else history)
    return ",".join(map(str, log.lacking(MariadbBinlogState.parse(read))))


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


class WhereReadEnds:
    """Where in the log of another MariaDB lies exactly what was read, domain by domain.

    A server that is asked to continue after the last transaction of a domain leaves out all that its own log
    has before that one. So before it there must be all that was read, and nothing else: what was not read
    would be lost, and what was read would come again. ``before`` is what a file says lies before it, all of
    it read; :meth:`take` is given the transactions from that file's head on.
    """

    def __init__(self, read: MariadbBinlogState, before: MariadbBinlogState) -> None:
        self._read = read
        self._reached = MariadbBinlogState(before)
        self._searched = {domain for domain in read.domains() if not read.equals(before, domain)}
        latest = before.position()
        self._after = MariadbGtidPosition(gtid for gtid in latest if gtid.domain_id not in self._searched)

    @property
    def found(self) -> bool:
        """Whether the place is known for all domains."""
        return not self._searched

    def take(self, gtid: MariadbGtid) -> bool:
        """Take the next transaction; return whether it was read, or stands after all that was."""
        if gtid.domain_id not in self._searched:
            return True
        if not self._read.contains(gtid):
            return False
        self._reached.add(gtid)
        if self._reached.equals(self._read, gtid.domain_id):
            self._searched.remove(gtid.domain_id)
            self._after.add(gtid)
        return True

    @property
    def after(self) -> str:
        """What to ask the server to continue after."""
        return str(self._after)

    @property
    def lacking(self) -> str:
        """What was read and did not come."""
        lost = self._reached.lacking(self._read)
        return ",".join(str(gtid) for gtid in lost if gtid.domain_id in self._searched)


def state_after(
    gtids: str, before: MariadbBinlogState, following: Iterable[MariadbGtid]
) -> MariadbBinlogState | None:
    """Return what the log of a MariaDB holds up to a position; None where it does not come to that.

    ``following`` are the transactions from a file's head on, ``before`` those that it says lie before it.
    """
    reached = MariadbBinlogState(before)
    open_ = {gtid.domain_id: gtid for gtid in MariadbGtidPosition.parse(gtids) if not reached.contains(gtid)}
    if open_:
        for gtid in following:
            last = open_.get(gtid.domain_id)
            if last is None:
                continue
            reached.add(gtid)
            if reached.contains(last):
                del open_[gtid.domain_id]
                if not open_:
                    break
    return None if open_ else reached


def _value(connection: MysqlConnection, name: str) -> str:
    # SHOW VARIABLES would cut a long one.
    row = connection.row(f"SELECT @@GLOBAL.{name} AS value", doing=f"ask for {name}")
    return "".join(row.text("value").split())


def _is_mysql(gtids: str) -> bool:
    return ":" in gtids


def _gtids(text: str) -> list[MariadbGtid]:
    return [MariadbGtid.parse(part) for part in text.split(",") if part]
