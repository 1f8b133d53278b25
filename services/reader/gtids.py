"""The GTIDs of all transactions that are whole in the raw topic, as they grow and as text in the state."""

import uuid

from millrace.binlog.declaration import Event
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.gtid import GtidTaggedLogEvent, PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import MariadbGtidListEvent
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition
from services.reader.progress import Gtid


class GtidProgress:
    """MySQL's set or MariaDB's position as it grows; ``known`` tells whether its beginning is."""

    def __init__(self, text: str = "") -> None:
        """Start with a set as :meth:`text` gave it; raises InvalidValueError on any other text."""
        self.known = False
        self._set = GtidSet()
        self._position = MariadbGtidPosition()
        if text:
            self.replace(text)

    def replace(self, text: str) -> None:
        """Forget everything and start with the set in ``text``, which may be empty."""
        self._set, self._position = _parse(text)
        self.known = True

    def add(self, gtid: Gtid) -> None:
        """Add the GTID of a transaction that is whole now."""
        if not self.known:
            return
        if isinstance(gtid, str):
            self._merge(*_parse(gtid))
        elif isinstance(gtid, GtidTaggedLogEvent):
            self._set.add_number(gtid.sid, gtid.gno, gtid.tag)
        elif len(gtid) == 2:
            self._set.add_number(*gtid)
        else:
            self._position.add(MariadbGtid(*gtid))

    def previous(self, event: Event) -> str:
        """Take up what a PREVIOUS_GTIDS or GTID_LIST says of the logs before; return that as text."""
        self.known = True
        if isinstance(event, PreviousGtidsLogEvent):
            before = GtidSet.from_event(event)
            self._set.update(before)
            return str(before)
        if isinstance(event, MariadbGtidListEvent):
            reached = MariadbGtidPosition.from_event(event)
            self._position = self._position.union(reached)
            return str(reached)
        return ""

    def text(self) -> str:
        """Return the set as text, "" while it is not known."""
        return ",".join(filter(None, (str(self._position), str(self._set)))) if self.known else ""

    def _merge(self, gtids: GtidSet, position: MariadbGtidPosition) -> None:
        self._set.update(gtids)
        self._position = self._position.union(position)


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
