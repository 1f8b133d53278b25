"""The GTIDs of all transactions that are whole in the raw topic, as they grow and as text in the state."""

import uuid

from millrace.binlog.declaration import Event
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.gtid import GtidTaggedLogEvent, PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import MariadbGtidListEvent
from millrace.binlog.gtid_set import GtidSet, MariadbBinlogState, MariadbGtid, MariadbGtidPosition
from millrace.reader.progress import Gtid


class GtidProgress:
    """MySQL's set or MariaDB's binlog state as it grows.

    ``known`` tells whether its beginning is. Of MariaDB a position may be all that is known of that: then
    :attr:`binlog_state` is None.
    """

    def __init__(self, text: str = "", binlog_state: str | None = None) -> None:
        """Start with what :meth:`text` and :attr:`binlog_state` gave; raises InvalidValueError otherwise."""
        self.known = False
        self._set = GtidSet()
        self._log = MariadbBinlogState()
        self._all_servers = False
        if text or binlog_state is not None:
            self.replace(text, binlog_state)

    def replace(self, text: str, binlog_state: str | None = None) -> None:
        """Forget everything and start with the set in ``text``, which may be empty, or a binlog state."""
        self._set, position = _parse(text)
        self._all_servers = binlog_state is not None
        self._log = MariadbBinlogState() if binlog_state is None else _parse_state(binlog_state)
        for gtid in position:
            self._log.add(gtid)
        self.known = True

    def add(self, gtid: Gtid) -> None:
        """Add the GTID of a transaction that is whole now."""
        if not self.known:
            return
        if isinstance(gtid, str):
            gtids, position = _parse(gtid)
            self._set.update(gtids)
            for each in position:
                self._log.add(each)
        elif isinstance(gtid, GtidTaggedLogEvent):
            self._set.add_number(gtid.sid, gtid.gno, gtid.tag)
        elif len(gtid) == 2:
            self._set.add_number(*gtid)
        else:
            self._log.add(MariadbGtid(*gtid))

    def previous(self, event: Event, left_out: str = "") -> str:
        """Take up what a PREVIOUS_GTIDS or GTID_LIST says of the logs before; return that as text.

        Of ``left_out``, what the epoch began after, some may stand after the file's head, and other
        transactions before it that are not in the list.
        """
        self.known = True
        if isinstance(event, PreviousGtidsLogEvent):
            before = GtidSet.from_event(event)
            self._set.update(before)
            return str(before)
        if isinstance(event, MariadbGtidListEvent):
            reached = MariadbBinlogState.from_event(event)
            self._log.update(reached)
            self._all_servers = self._all_servers or not reached.lacking(_parse_state(left_out))
            return str(reached.position())
        return ""

    def text(self) -> str:
        """Return the set, or the position, as text; "" while it is not known."""
        return ",".join(filter(None, (str(self._log.position()), str(self._set)))) if self.known else ""

    @property
    def binlog_state(self) -> str | None:
        """The last of each domain and server as text; None while not all are known."""
        return str(self._log) if self.known and self._all_servers else None


def _parse_state(text: str) -> MariadbBinlogState:
    try:
        return MariadbBinlogState.parse(text)
    except InvalidValueError as error:
        raise _no_set(text) from error


def _parse(text: str) -> tuple[GtidSet, MariadbGtidPosition]:
    """Read a set of MySQL or a position of MariaDB: only the former has colons."""
    try:
        if ":" not in text:
            return GtidSet(), MariadbGtidPosition.parse(text)
        gtids = GtidSet.parse(text)
    except InvalidValueError as error:
        raise _no_set(text) from error
    if not gtids:
        raise _no_set(text)
    return gtids, MariadbGtidPosition()


def _no_set(text: str) -> InvalidValueError:
    return InvalidValueError(
        f"{text!r} is not a GTID set: expected uuid:first-last,… (MySQL) or domain-server-number,… (MariaDB)"
    )


def gtid_text(gtid: Gtid) -> str:
    """Spell one GTID."""
    if isinstance(gtid, str):
        return gtid
    if isinstance(gtid, GtidTaggedLogEvent):
        return gtid.gtid
    if len(gtid) == 2:
        return f"{uuid.UUID(bytes=gtid[0])}:{gtid[1]}"
    return str(MariadbGtid(*gtid))
