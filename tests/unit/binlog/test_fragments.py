"""Rows events in fragments: joined, decoded, and refused where one is missing."""

import pytest

from millrace.binlog.checksum import compute_checksum
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event
from millrace.binlog.events import PartialRowDataEvent, TableMapEvent, WriteRowsEventV1
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import resolve_columns
from tests.unit.binlog.cases import MARIADB_118, make_event, state_of

ROWS = WriteRowsEventV1(34, 1, b"", 1, b"", b"\1", b"".join(b"\0" + bytes([n, 0, 0, 0]) for n in range(100)))
TABLE_MAP = TableMapEvent(34, 1, "d", "t", b"\3", b"", b"\0")
WHOLE = encode_event(BinlogEvent(EventHeader(1, 23, 1, 0), ROWS), state_of(MARIADB_118))


def fragments(whole: bytes, size: int, *, told: int | None = None) -> list[PartialRowDataEvent]:
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    told = len(whole) if told is None else told
    return [
        PartialRowDataEvent(len(pieces), n, n == 1, told if n == 1 else None, piece)
        for n, piece in enumerate(pieces, 1)
    ]


@pytest.mark.parametrize("size", [1, 100, 511, 1000])
def test_fragments_join_to_the_event(size: int) -> None:
    """As a reader sees it: TABLE_MAP, the fragments as events of the log, then rows with their values."""
    state, assembler = state_of(MARIADB_118), PartialRowsAssembler()
    state.observe(TABLE_MAP)
    parts = fragments(WHOLE, size)
    for part in parts:
        decoded = decode_event(make_event(172, part.encode_fields(9)), state)
        assert decoded.event == part
        whole = assembler.feed(part)
        assert (whole is not None) == (part is parts[-1]) != assembler.is_open
    assert whole == WHOLE
    rows = decode_event(whole, state.for_payload())
    assert rows.event == ROWS
    assert rows.table_map == TABLE_MAP
    assert rows_event_of(whole) == ROWS
    images = RowImages(resolve_columns(TABLE_MAP).columns, None, ROWS.columns_after_image)
    assert images.decode(ROWS.rows) == [(None, (n,)) for n in range(100)]


def test_size_in_the_header_is_put_right() -> None:
    parts = fragments(WHOLE[:9] + b"\xff\xff\xff\xff" + WHOLE[13:], 300)
    assembler = PartialRowsAssembler()
    assert [assembler.feed(part) for part in parts] == [None, WHOLE]


def test_checksum_of_the_whole_is_left_out() -> None:
    whole = WHOLE[:9] + (len(WHOLE) + 4).to_bytes(4, "little") + WHOLE[13:]
    parts = fragments(whole + compute_checksum(whole), 300)
    assembler = PartialRowsAssembler()
    assert [assembler.feed(part) for part in parts] == [None, WHOLE]


def test_a_new_event_begins_where_another_was_interrupted() -> None:
    assembler = PartialRowsAssembler()
    parts = fragments(WHOLE, 300)
    assembler.feed(parts[0])
    assert [assembler.feed(part) for part in parts] == [None, WHOLE]
    assembler.feed(parts[0])
    assembler.clear()
    with pytest.raises(InvalidValueError, match="fragment 2 of 2 of a rows event, where 1 of any number"):
        assembler.feed(parts[1])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            PartialRowDataEvent(6, 3, 0, None, b""),
            "fragment 3 of 6 of a rows event, where 2 of 6 was to come",
        ),
        (
            PartialRowDataEvent(7, 2, 0, None, b""),
            "fragment 2 of 7 of a rows event, where 2 of 6 was to come",
        ),
        (PartialRowDataEvent(6, 2, 0, None, bytes(500)), f"more than its {len(WHOLE)} bytes"),
    ],
)
def test_fragments_that_do_not_follow(second: PartialRowDataEvent, words: str) -> None:
    assembler = PartialRowsAssembler()
    assert assembler.feed(fragments(WHOLE, 100)[0]) is None
    with pytest.raises(InvalidValueError, match=words):
        assembler.feed(second)
    assert not assembler.is_open


def test_sizes_that_do_not_agree() -> None:
    assembler = PartialRowsAssembler()
    first, second = fragments(WHOLE, 300, told=len(WHOLE) + 1)
    assembler.feed(first)
    with pytest.raises(InvalidValueError, match=rf"have {len(WHOLE)} of {len(WHOLE) + 1} bytes"):
        assembler.feed(second)
    with pytest.raises(InvalidValueError, match="have 3 bytes, no whole header"):
        assembler.feed(PartialRowDataEvent(1, 1, 0, None, b"abc"))
    with pytest.raises(InvalidValueError, match="fragment 1 of 0"):
        assembler.feed(PartialRowDataEvent(0, 1, 0, None, b"abc"))


def test_fragments_of_another_event() -> None:
    for type_code in (2, 250):
        with pytest.raises(InvalidValueError, match=f"make an event of type {type_code}"):
            rows_event_of(make_event(type_code, bytes(20)))
