import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.errors import BinlogError, InvalidValueError
from millrace.binlog.events import GtidListEntry, MariadbGtidListEvent
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition

A = "24bc7850-2c16-11e6-a073-0242ac110002"
B = "7145bf69-d1ca-11e5-a588-0242ac110004"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A}:1-3:4:6-6", f"{A}:1-4:6"),
        (f"{A}:5:1-2:3", f"{A}:1-3:5"),
        (f"{A}:9-5:7", f"{A}:7"),
        (f" {A}:1-3,\n{B}:7 ", f"{A}:1-3,{B}:7"),
        (f"{B}:1,{A}:1", f"{A}:1,{B}:1"),
        (f"{A}:1-2,{A}:2-9", f"{A}:1-9"),
        (A.upper().replace("-", "") + ":1", f"{A}:1"),
        (f"{A}:1-469:mytag:1-3:t2:1", f"{A}:1-469:mytag:1-3:t2:1"),
        (f"{A}:T_9:5", f"{A}:t_9:5"),
    ],
)
def test_parse_and_format(text: str, canonical: str) -> None:
    parsed = GtidSet.parse(text)
    assert str(parsed) == canonical
    assert GtidSet.decode(parsed.encode()) == parsed
    assert bool(parsed) == bool(canonical)


@pytest.mark.parametrize(
    "text",
    ["x", "x:1", A, f"{A}:", f"{A}:0", f"{A}:1-x", f"{A}:tag", f"{A}:1:9tag:1", f"{A}:9223372036854775807"],
)
def test_what_is_no_set(text: str) -> None:
    with pytest.raises(InvalidValueError, match="GTID set"):
        GtidSet.parse(text)


def test_binary_form_of_a_server() -> None:
    """From a PREVIOUS_GTIDS event of MySQL 9.7, whose gtid_executed was read at the same moment."""
    data = bytes.fromhex(
        "0102000000000001"
        "cc0e7efde58511f1886502fc000000010001000000000000000100000000000000d101000000000000"
        "cc0e7efde58511f1886502fc000000010a6d7974616701000000000000000100000000000000"
        "0400000000000000"
    )  # fmt: skip
    parsed = GtidSet.decode(data)
    assert str(parsed) == "cc0e7efd-e585-11f1-8865-02fc00000001:1-464:mytag:1-3"
    assert parsed.encode() == data


@pytest.mark.parametrize("data", [b"", bytes(7), b"\1" + bytes(7), bytes(7) + b"\2", bytes(7) + b"\1"])
def test_damaged_binary_form(data: bytes) -> None:
    with pytest.raises(BinlogError):
        GtidSet.decode(data)


def test_sides_that_lack_an_origin() -> None:
    both, one = GtidSet.parse(f"{A}:1-10,{B}:1-5"), GtidSet.parse(f"{A}:3-4")
    assert str(both.subtract(one)) == f"{A}:1-2:5-10,{B}:1-5"
    assert str(one.subtract(both)) == ""
    assert str(both.intersect(one)) == f"{A}:3-4"
    assert str(both.union(one)) == str(both)
    assert both.contains_set(one)
    assert not one.contains_set(both)


def test_contains() -> None:
    gtids = GtidSet.parse(f"{A}:1-5:7:tag:1")
    assert gtids.contains(f"{A}:3")
    assert gtids.contains(f"{A}:2-5:7:tag:1")
    assert not gtids.contains(f"{A}:6")
    assert not gtids.contains(f"{A}:tag:2")
    assert not gtids.contains(f"{B}:1")
    assert gtids.contains("")


def test_copies_are_independent() -> None:
    gtids = GtidSet.parse(f"{A}:1")
    copy = gtids.copy()
    copy.add(f"{A}:2")
    assert (str(gtids), str(copy)) == (f"{A}:1", f"{A}:1-2")


NUMBERS = st.sets(st.integers(1, 40), max_size=20)


def make(numbers: set[int]) -> GtidSet:
    gtids = GtidSet()
    for number in numbers:
        gtids.add(f"{A}:{number}")
    return gtids


@given(NUMBERS, NUMBERS)
def test_sets_are_sets(left: set[int], right: set[int]) -> None:
    assert make(left).union(make(right)) == make(left | right)
    assert make(left).subtract(make(right)) == make(left - right)
    assert make(left).intersect(make(right)) == make(left & right)
    assert make(left).contains_set(make(right)) == (right <= left)
    assert GtidSet.parse(str(make(left))) == make(left)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=12))
def test_intervals_stay_apart(intervals: list[tuple[int, int]]) -> None:
    text = ",".join(f"{A}:{start}-{start + length}" for start, length in intervals)
    numbers = {number for start, length in intervals for number in range(start, start + length + 1)}
    assert GtidSet.parse(text) == make(numbers)
    assert str(GtidSet.parse(text)) == str(make(numbers))


def test_mariadb_positions() -> None:
    position = MariadbGtidPosition.parse("1-2-7,0-1-5")
    assert str(position) == "0-1-5,1-2-7"
    position.add(MariadbGtid(0, 9, 3))
    assert str(position) == "0-9-3,1-2-7"
    assert position.contains(MariadbGtid.parse("0-1-3"))
    assert not position.contains(MariadbGtid.parse("0-1-4"))
    assert not position.contains(MariadbGtid.parse("7-1-1"))
    assert str(position.union(MariadbGtidPosition.parse("0-1-8,3-1-1"))) == "0-1-8,1-2-7,3-1-1"
    assert str(MariadbGtidPosition.parse("")) == ""
    assert not MariadbGtidPosition.parse("")


@pytest.mark.parametrize("text", ["0-1", "a-1-2", "0-1-2,0-1-3", "4294967296-1-1", "0-1-2-3"])
def test_what_is_no_mariadb_position(text: str) -> None:
    with pytest.raises(InvalidValueError):
        MariadbGtidPosition.parse(text)


def test_gtid_list_event() -> None:
    """A domain's last entry is its latest, though another server's number may be higher."""
    entries = (GtidListEntry(0, 1, 90), GtidListEntry(0, 2, 15), GtidListEntry(4, 2, 1))
    assert str(MariadbGtidPosition.from_event(MariadbGtidListEvent(0, entries))) == "0-2-15,4-2-1"
