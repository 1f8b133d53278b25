"""GTID sets as they grow, as text and in MySQL's binary form."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.gtid import GtidInterval, GtidSetEntry, GtidTaggedLogEvent, PreviousGtidsLogEvent
from millrace.binlog.events.mariadb import GtidListEntry, MariadbGtidListEvent
from millrace.reader.gtids import GtidProgress, gtid_text

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
SID_A = uuid.UUID(A).bytes


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (f"{B}:1-2,\n{A}:7:1-5:6", f"{A}:1-7,{B}:1-2"),
        (f"{A}:tag:1", f"{A}:tag:1"),
        ("0-1-5,7-2-9", "0-1-5,7-2-9"),
        ("", ""),
    ],
)
def test_text(text: str, normal: str) -> None:
    gtids = GtidProgress()
    gtids.replace(text)
    assert gtids.text() == normal


@pytest.mark.parametrize("text", ["xx", f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:1-x", "0-1", "0-1-2-3"])
def test_wrong_text(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a GTID set"):
        GtidProgress(text)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_any_order_of_numbers(numbers: list[int]) -> None:
    gtids = GtidProgress(f"{B}:1")
    for number in numbers:
        gtids.add((SID_A, number))
    again = GtidProgress(gtids.text())
    assert again.text() == gtids.text()
    found = {
        number
        for interval in gtids.text().split(",")[0].split(":")[1:]
        for first, _, last in [interval.partition("-")]
        for number in range(int(first), int(last or first) + 1)
    }
    assert found == set(numbers)


def test_what_is_not_known_stays_unknown() -> None:
    gtids = GtidProgress()
    gtids.add((SID_A, 7))
    assert gtids.text() == ""
    said = gtids.previous(PreviousGtidsLogEvent(0, (GtidSetEntry(SID_A, "", (GtidInterval(1, 10),)),)))
    assert said == f"{A}:1-9"
    gtids.add((SID_A, 10))
    assert gtids.text() == f"{A}:1-10"


def test_mariadb_keeps_the_last_of_each_domain() -> None:
    gtids = GtidProgress("0-1-5,3-1-9")
    gtids.add((0, 2, 6))
    assert gtids.text() == "0-2-6,3-1-9"
    entries = tuple(GtidListEntry(*entry) for entry in ((0, 1, 4), (3, 1, 8), (3, 2, 12), (5, 1, 1)))
    assert gtids.previous(MariadbGtidListEvent(0, entries)) == "0-1-4,3-2-12,5-1-1"
    assert gtids.text() == "0-2-6,3-2-12,5-1-1", "a list from further back takes nothing away"


def test_mariadb_knows_all_servers_once_a_file_says_what_lies_before_it() -> None:
    gtids = GtidProgress("0-1-5")
    assert gtids.binlog_state is None
    entries = tuple(GtidListEntry(*entry) for entry in ((0, 2, 4), (0, 1, 4)))
    gtids.previous(MariadbGtidListEvent(0, entries), "0-1-5")
    assert gtids.binlog_state is None, "what stands between the head and the position is not known"
    gtids.previous(MariadbGtidListEvent(0, (*entries[:1], GtidListEntry(0, 1, 5))), "0-1-5")
    gtids.add((0, 2, 6))
    assert gtids.binlog_state == "0-1-5,0-2-6"
    assert gtids.text() == "0-2-6"
    again = GtidProgress(gtids.text(), gtids.binlog_state)
    assert (again.text(), again.binlog_state) == (gtids.text(), gtids.binlog_state)
    assert GtidProgress("", "").binlog_state == "", "empty, and known"
    assert GtidProgress(f"{A}:1").binlog_state is None


def test_one_gtid_as_text() -> None:
    assert gtid_text((SID_A, 5)) == f"{A}:5"
    assert gtid_text((0, 1, 5)) == "0-1-5"
    assert gtid_text("0-1-5") == "0-1-5"
    assert gtid_text(GtidTaggedLogEvent(0, SID_A, 5, "tag")) == f"{A}:tag:5"
    gtids = GtidProgress(f"{A}:1")
    gtids.add(GtidTaggedLogEvent(0, SID_A, 5, "tag"))
    gtids.add(f"{A}:2")
    assert gtids.text() == f"{A}:1-2:tag:5"
