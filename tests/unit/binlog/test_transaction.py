"""The grammar of the log, group by group, and what is left open."""

import pytest

from millrace.binlog.declaration import EVENTS, Event, event
from millrace.binlog.events import (
    AnonymousGtidLogEvent,
    AppendBlockEvent,
    CreateFileEvent,
    ExecLoadEvent,
    FormatDescriptionEvent,
    GtidLogEvent,
    GtidTaggedLogEvent,
    IncidentEvent,
    IntvarEvent,
    MariadbGtidEvent,
    MariadbXid,
    QueryEvent,
    RotateEvent,
    StartEncryptionEvent,
    StatusVariables,
    StopEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    WriteRowsEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.grammar import GTIDS, TRANSITIONS, Mode, Role
from millrace.binlog.header import EventHeader
from millrace.binlog.statement import StatementKind
from millrace.binlog.transaction import (
    ROLES,
    TransactionEnd,
    TransactionStep,
    TransactionTracker,
    role_of_statement,
)
from millrace.binlog.types import EventType

SID = bytes(range(16))
GTID = GtidLogEvent(0, SID, 7)
ID = "00010203-0405-0607-0809-0a0b0c0d0e0f:7"
MAP = TableMapEvent(1, 1, "d", "t", b"\3", b"", b"\0")
ROWS = WriteRowsEvent(1, 0, b"", 1, b"", b"\1", b"")
LAST_ROWS = WriteRowsEvent(1, 1, b"", 1, b"", b"\1", b"")
XID = XidEvent(9)


def query(text: str) -> QueryEvent:
    return QueryEvent(1, 0, 0, StatusVariables(), "d", text.encode())


def feed(
    *events: Event, tracker: TransactionTracker | None = None, start: int = 100
) -> list[TransactionStep]:
    tracker = tracker or TransactionTracker()
    return [
        tracker.feed(EventHeader(1, int(event.event_type), 3, 0), event, "log.1", start + 10 * index)
        for index, event in enumerate(events)
    ]


def summary(steps: list[TransactionStep]) -> list[tuple[str | None, int, bool, TransactionEnd | None]]:
    return [(step.transaction, step.ordinal, step.begins, step.ends) for step in steps]


def whole(transaction: str, size: int, end: TransactionEnd) -> list[object]:
    """What a transaction of ``size`` events gives."""
    return [(transaction, index, index == 0, end if index == size - 1 else None) for index in range(size)]


CREATE_FILE = CreateFileEvent(1, 0, 0, b"", b"", b"", b"", b"", 0, (), "t", "d", "f", b"block", 1)
"""Of MySQL 4.0 to 5.0.2: the event with the first block belongs to the statement."""


@pytest.mark.parametrize(
    ("transaction", "end", "events"),
    [
        (ID, "COMMIT", [GTID, "BEGIN", MAP, ROWS, LAST_ROWS, XID]),
        ("log.1:100", "COMMIT", ["BEGIN", MAP, LAST_ROWS, "COMMIT"]),
        ("log.1:100", "ROLLBACK", [AnonymousGtidLogEvent(0, bytes(16), 0), "BEGIN", "ROLLBACK"]),
        (f"{ID[:-1]}tag:7", "COMMIT", [GtidTaggedLogEvent(0, SID, 7, "tag"), "CREATE TABLE t (a INT)"]),
        (ID, "COMMIT", [GTID, "DROP TABLE t"]),
        ("log.1:100", "COMMIT", ["DROP TABLE t"]),
        ("log.1:100", "COMMIT", [IntvarEvent(2, 1), "INSERT INTO t VALUES (NULL)"]),
        # CREATE TABLE … SELECT is one transaction since MySQL 8.0.21.
        (ID, "COMMIT", [GTID, "BEGIN", "CREATE TABLE t (a INT) START TRANSACTION", MAP, LAST_ROWS, XID]),
        ("1-3-5", "COMMIT", [MariadbGtidEvent(5, 1, 4), MAP, LAST_ROWS, XID]),
        ("1-3-6", "COMMIT", [MariadbGtidEvent(6, 1, 1), "CREATE TABLE t (a INT)"]),
        ("1-3-7", "COMMIT", [MariadbGtidEvent(7, 1, 4), "BEGIN", "UPDATE t SET a = 1", "COMMIT"]),
        (ID, "COMMIT", [GTID, "XA START 'x'", "XA END 'x'", XaPrepareLogEvent(1, 1, b"x", b"")]),
        (ID, "COMMIT", [GTID, TransactionPayloadEvent(0, 1, b""), "BEGIN", MAP, LAST_ROWS, XID]),
        (ID, "COMMIT", [GTID, IncidentEvent(1, b"lost")]),
        ("log.1:100", "COMMIT", [CREATE_FILE, AppendBlockEvent(1, b"more"), ExecLoadEvent(1)]),
    ],
)
def test_transactions(transaction: str, end: str, events: list[Event | str]) -> None:
    steps = feed(*(query(each) if isinstance(each, str) else each for each in events))
    assert summary(steps) == whole(transaction, len(events), TransactionEnd[end])


def test_rows_without_begin() -> None:
    steps = feed(MAP, ROWS, LAST_ROWS, query("BEGIN"))
    assert summary(steps[:3]) == whole("log.1:100", 3, TransactionEnd.COMMIT)
    assert summary(steps[3:]) == [("log.1:130", 0, True, None)]


def test_savepoints_stay_inside() -> None:
    steps = feed(GTID, query("BEGIN"), query("SAVEPOINT `a`"), query("ROLLBACK TO `a`"), XID)
    assert summary(steps) == whole(ID, 5, TransactionEnd.COMMIT)
    statement = steps[3].statement
    assert statement is not None
    assert (statement.kind, statement.name) == (StatementKind.ROLLBACK_TO, "a")


def test_xa_of_mysql() -> None:
    xid = "X'78',X'79',1"
    steps = feed(GTID, query(f"XA START {xid}"), MAP, LAST_ROWS, query(f"XA END {xid}"))
    assert [step.ends for step in steps] == [None] * 5
    tracker = TransactionTracker()
    prepare = XaPrepareLogEvent(0, 1, b"x", b"y")
    steps = feed(GTID, query(f"XA START {xid}"), query(f"XA END {xid}"), prepare, tracker=tracker)
    assert (steps[-1].ends, steps[-1].xid) == (TransactionEnd.XA_PREPARE, xid)
    steps = feed(GtidLogEvent(0, SID, 8), query(f"XA COMMIT {xid}"), tracker=tracker)
    assert (steps[-1].ends, steps[-1].xid) == (TransactionEnd.XA_COMMIT, xid)
    steps = feed(query(f"XA ROLLBACK {xid}"), tracker=tracker)
    assert (steps[-1].begins, steps[-1].ends, steps[-1].xid) == (True, TransactionEnd.XA_ROLLBACK, xid)


def test_xa_of_mariadb() -> None:
    xid = MariadbXid(1, b"x", b"")
    prepare = MariadbGtidEvent(5, 0, 64, None, xid)
    steps = feed(prepare, MAP, LAST_ROWS, query("XA END X'78',X'',1"), XaPrepareLogEvent(0, 1, b"x", b""))
    assert summary(steps) == whole("0-3-5", 5, TransactionEnd.XA_PREPARE)
    assert steps[-1].xid == "X'78',X'',1"
    steps = feed(MariadbGtidEvent(6, 0, 1 | 128, None, xid), query("XA COMMIT X'78',X'',1"))
    assert summary(steps) == whole("0-3-6", 2, TransactionEnd.XA_COMMIT)
    assert steps[-1].xid == "X'78',X'',1"


def test_between_transactions() -> None:
    steps = feed(RotateEvent(4, "log.2"), XID, query("COMMIT"))
    assert summary(steps) == [(None, 0, False, None)] * 3


def test_relay_logs_rotate_in_mid_transaction() -> None:
    created = FormatDescriptionEvent(4, "8.0.0", 0, 19, b"", None)
    steps = feed(GTID, query("BEGIN"), RotateEvent(4, "relay.2"), created, XID)
    assert summary(steps)[2:4] == [(None, 0, False, None)] * 2
    assert summary(steps)[4] == (ID, 2, False, TransactionEnd.COMMIT)


def test_what_was_cut_off() -> None:
    restarted = FormatDescriptionEvent(4, "8.0.0", 1700000000, 19, b"", None)
    steps = feed(GTID, query("BEGIN"), MAP, restarted, XID)
    assert steps[3].interrupts == ID
    assert steps[4].transaction is None
    steps = feed(GTID, query("BEGIN"), GtidLogEvent(0, SID, 8))
    assert (steps[2].interrupts, steps[2].begins) == (ID, True)
    steps = feed(query("BEGIN"), MAP, query("BEGIN"))
    assert (steps[2].interrupts, steps[2].transaction) == ("log.1:100", "log.1:120")


def test_saved_and_restored_between_any_two_events() -> None:
    events = [
        GTID,
        query("XA START 'x'"),
        MAP,
        LAST_ROWS,
        query("XA END 'x'"),
        XaPrepareLogEvent(0, 1, b"x", b""),
    ]
    events += [query("XA COMMIT 'x'"), query("BEGIN"), MAP, LAST_ROWS, query("COMMIT"), query("DROP TABLE t")]
    for cut in range(len(events) + 1):
        tracker = TransactionTracker()
        steps = feed(*events[:cut], tracker=tracker)
        restored = TransactionTracker.restore(tracker.save())
        assert restored.transaction == tracker.transaction
        assert steps + feed(*events[cut:], tracker=restored, start=100 + 10 * cut) == feed(*events)


def test_an_incident_ends_its_group() -> None:
    """With a GTID of its own, or without: so do the servers."""
    incident = IncidentEvent(1, b"lost")
    assert summary(feed(incident)) == [(None, 0, False, None)]
    assert summary(feed(GTID, incident, query("BEGIN")))[2] == ("log.1:120", 0, True, None)


def test_an_encrypted_relay_log_changes_files_in_mid_transaction() -> None:
    created = FormatDescriptionEvent(4, "11.4.2-MariaDB", 0, 19, b"", None)
    steps = feed(MariadbGtidEvent(5, 1, 4), StopEvent(), created, StartEncryptionEvent(1, 1, bytes(12)), XID)
    assert summary(steps)[1:4] == [(None, 0, False, None)] * 3
    assert summary(steps)[4] == ("1-3-5", 1, False, TransactionEnd.COMMIT)


def test_an_event_type_has_a_role() -> None:
    with pytest.raises(TypeError, match="role"):
        event(EventType.SLAVE_EVENT)  # type: ignore[call-arg]  # what is tested
    assert {code for code, role in ROLES.items() if role in GTIDS} == {33, 42, 162}
    acted = {Role.RESTART, Role.BEGIN, Role.ROLLBACK, Role.DECISION}
    assert {declaration.event_class.role for declaration in EVENTS.values()} == set(Role) - acted


def test_the_table_is_whole() -> None:
    assert len(TRANSITIONS) == len(Role) * len(Mode)
    assert list(Role) == list(range(len(Role)))


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("BEGIN", Role.BEGIN),
        ("start transaction", Role.BEGIN),
        ("XA START 'a'", Role.BEGIN),
        ("Commit", Role.COMMIT),
        ("ROLLBACK", Role.ROLLBACK),
        ("rollback work", Role.ROLLBACK),
        ("ROLLBACK TO a", Role.SINGLE),
        ("/* a */ COMMIT", Role.COMMIT),
        ("SET STATEMENT a = 1 FOR COMMIT", Role.COMMIT),
        ("XA COMMIT 'a'", Role.DECISION),
        ("XA ROLLBACK 'a'", Role.DECISION),
        ("XA END 'a'", Role.SINGLE),
        ("SAVEPOINT a", Role.SINGLE),
        ("INSERT INTO t VALUES (1)", Role.SINGLE),
        ("CREATE TABLE t (a INT)", Role.SINGLE),
        ("", Role.SINGLE),
    ],
)
def test_the_role_of_a_statement(text: str, role: Role) -> None:
    """Whoever reads bytes comes to what the tracker comes to."""
    assert role_of_statement(text.encode()) is role
    opened = feed(GTID, query("BEGIN"), XID, query(text))[-1]
    assert (opened.begins, opened.ends is not None) == {
        Role.BEGIN: (True, False),
        Role.SINGLE: (True, True),
        Role.DECISION: (True, True),
    }.get(role, (False, False))
