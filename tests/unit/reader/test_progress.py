"""Where transactions end, for the groups of events that servers write."""

import struct
import uuid

import pytest

from millrace.reader.gtids import gtid_text
from millrace.reader.progress import WATCHED, TransactionProgress

SID = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562").bytes
XID, XA_PREPARE, PAYLOAD, INCIDENT = 16, 38, 40, 26

Event = tuple[int, bytes]


def query(text: bytes, database: bytes = b"db", status: bytes = b"\0\0\0\0\0") -> Event:
    post_header = struct.pack("<IIBHH", 1, 0, len(database), 0, len(status))
    return 2, bytes(19) + post_header + status + database + b"\0" + text


def gtid(number: int) -> Event:
    return 33, bytes(19) + b"\0" + SID + struct.pack("<Q", number)


def anonymous() -> Event:
    return 34, bytes(19) + b"\0" + bytes(24)


def mariadb(number: int, *, standalone: bool = False) -> Event:
    return 162, bytes(19) + struct.pack("<QIB", number, 0, int(standalone))


def simple(type_code: int) -> Event:
    return type_code, bytes(40)


def ends(events: list[Event]) -> list[bool]:
    progress = TransactionProgress()
    return [progress.note(code, 1, data, len(data)) for code, data in events]


@pytest.mark.parametrize(
    "group",
    [
        [gtid(1), query(b"BEGIN"), simple(XID)],
        [gtid(1), query(b"BEGIN"), query(b"COMMIT")],
        [gtid(1), query(b"BEGIN"), query(b"INSERT INTO t VALUES (1)"), query(b"ROLLBACK")],
        [gtid(1), query(b"BEGIN"), query(b"SAVEPOINT `a`"), query(b"ROLLBACK TO `a`"), simple(XID)],
        [gtid(1), query(b"BEGIN"), query(b"CREATE TABLE t (a INT) START TRANSACTION"), simple(XID)],
        [gtid(1), query(b"CREATE TABLE t (a INT)")],
        [gtid(1), query(b"XA START X'61',X'',1"), query(b"XA END X'61',X'',1"), simple(XA_PREPARE)],
        [gtid(1), query(b"XA COMMIT X'61',X'',1")],
        [gtid(1), simple(PAYLOAD)],
        [gtid(1), simple(INCIDENT)],
        [anonymous(), query(b"BEGIN"), simple(XID)],
        [anonymous(), query(b"DROP TABLE t")],
        [mariadb(1), simple(XID)],
        [mariadb(1), query(b"INSERT INTO t VALUES (1)"), query(b"COMMIT")],
        [mariadb(1), query(b"CREATE TABLE t (a INT)"), simple(165), simple(XID)],
        [mariadb(1, standalone=True), query(b"CREATE TABLE t (a INT)")],
        [mariadb(1, standalone=True), simple(165)],
        [mariadb(1), query(b"XA END X'61',X'',1"), simple(XA_PREPARE)],
        [query(b"BEGIN"), query(b"UPDATE t SET a = 1"), simple(XID)],
        [query(b"CREATE TABLE t (a INT)")],
        [gtid(1), query(b"BEGIN"), query(b"rollback")],
        [
            gtid(1),
            query(b"BEGIN"),
            query(b"ROLLBACK TO SAVEPOINT a"),
            query(b"RELEASE SAVEPOINT a"),
            simple(XID),
        ],
        [gtid(1), query(b"BEGIN"), query(b"REPLACE t VALUES (1)"), query(b"COMMIT")],
        [query(b"BEGIN"), simple(INCIDENT)],
    ],
)
def test_a_group_ends_with_its_last_event(group: list[Event]) -> None:
    assert all(code in WATCHED for code, _ in group)
    expected = [False] * (len(group) - 1) + [True]
    assert ends(group) == expected
    assert ends(group * 2) == expected * 2


def test_gtids_of_open_and_finished_groups() -> None:
    progress = TransactionProgress()
    progress.note(*_with_server(gtid(5)))
    assert progress.inside
    assert progress.open_gtid == (SID, 5)
    progress.note(*_with_server(query(b"BEGIN")))
    assert progress.open_gtid == (SID, 5)
    assert progress.note(*_with_server(simple(XID)))
    assert (progress.inside, progress.open_gtid, progress.finished) == (False, None, (SID, 5))
    progress.note(*_with_server(mariadb(9)))
    assert progress.open_gtid == (0, 3, 9)


def _with_server(event: Event) -> tuple[int, int, bytes, int]:
    code, data = event
    return code, 3, data, len(data)


def test_going_on_inside_a_transaction() -> None:
    progress = TransactionProgress("0-1-5")
    assert progress.inside
    assert not progress.note(*_with_server(query(b"SAVEPOINT a")))
    assert progress.note(*_with_server(simple(XID)))
    assert progress.finished == "0-1-5"


def test_going_on_between_a_gtid_and_its_statement() -> None:
    """Whether BEGIN came is not known then; the next group tells that this one is whole."""
    progress = TransactionProgress(gtid_text((SID, 5)))
    progress.note(*_with_server(query(b"CREATE TABLE t (a INT)")))
    progress.note(*_with_server(gtid(6)))
    assert progress.finished == gtid_text((SID, 5))
    assert progress.open_gtid == (SID, 6)


def format_description(created: int) -> Event:
    return 15, bytes(19) + struct.pack("<H50sIB", 4, b"8.0.46", created, 19)


def test_a_crash_in_mid_group() -> None:
    progress = TransactionProgress()
    for event in (gtid(5), query(b"BEGIN"), format_description(1_700_000_000)):
        assert not progress.note(*_with_server(event))
    assert (progress.inside, progress.open_gtid, progress.finished) == (False, None, None)


def test_a_relay_log_changes_files_in_mid_group() -> None:
    progress = TransactionProgress()
    for event in (gtid(5), query(b"BEGIN"), format_description(0)):
        assert not progress.note(*_with_server(event))
    assert progress.note(*_with_server(simple(XID)))
    assert progress.finished == (SID, 5)


def test_a_checksum_is_no_part_of_a_statement() -> None:
    progress = TransactionProgress()
    code, data = query(b"BEGIN")
    progress.note(code, 1, data + b"abcd", len(data))
    assert progress.inside
