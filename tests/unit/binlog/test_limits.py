"""What a few bytes promise is not believed: sizes, counts and nesting have bounds that valid logs keep."""

import json
import time
import tracemalloc
import zlib
from io import BytesIO
from itertools import pairwise

import pytest

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import BlobMetadata, NoMetadata
from millrace.binlog.columns.json_binary import decode_json, json_text, text_of_json
from millrace.binlog.columns.metadata import decode_column_metadata, decode_optional_metadata
from millrace.binlog.columns.strings import CompressedValue, claimed_size, uncompressed
from millrace.binlog.errors import InvalidValueError, TooLargeError, TruncatedError
from millrace.binlog.events import TableMapEvent, TransactionPayloadEvent, WriteRowsEvent
from millrace.binlog.events.compressed import decompress_record, unpacked_size
from millrace.binlog.fields import pack_lenenc
from millrace.binlog.file import MAGIC, iter_events
from millrace.binlog.inflate import MAX_UNPACKED
from millrace.binlog.row_images import RowImages
from millrace.binlog.state import StreamState
from millrace.binlog.statement import StatementKind, classify

from .cases import make_event


def compressed(content: bytes, claimed: int | None = None) -> bytes:
    """A value of a COMPRESSED column."""
    return (
        b"\x84" + (len(content) if claimed is None else claimed).to_bytes(4, "big") + zlib.compress(content)
    )


def test_a_compressed_value_says_its_size() -> None:
    assert claimed_size(b"") == 0
    assert claimed_size(b"\0abc") == 3
    assert claimed_size(compressed(b"abc")) == 3
    assert uncompressed(compressed(b"abc")) == b"abc"


def test_no_compressed_value_unpacks_to_more_than_it_says() -> None:
    with pytest.raises(InvalidValueError, match="has 11 bytes, not 10"):
        uncompressed(compressed(bytes(1 << 20), claimed=10))
    with pytest.raises(TooLargeError, match="a compressed column of 1073741825 bytes"):
        uncompressed(compressed(b"abc", claimed=MAX_UNPACKED + 1))


def test_what_cannot_be_unpacked_is_given_as_it_is_stored() -> None:
    column = Column(0, ColumnType.BLOB_COMPRESSED, BlobMetadata(4), charset="utf8mb4")
    images = RowImages((column,), None, b"\1")
    stored = compressed(b"abc", claimed=MAX_UNPACKED + 1)
    rows = images.encode([(None, (CompressedValue(stored),)), (None, (CompressedValue(compressed(b"x")),))])
    found = images.avro(rows)
    assert found.rows == [(None, (None,)), (None, ("x",))]
    assert found.unrepresentable == {(0, 1): {0: stored}}


def test_the_compressed_values_of_an_event_share_a_bound() -> None:
    column = Column(0, ColumnType.BLOB_COMPRESSED, BlobMetadata(4), charset="utf8mb4")
    images = RowImages((column,), None, b"\1", max_unpacked=250)
    stored = compressed(b"x" * 100)
    found = images.avro(images.encode([(None, (CompressedValue(stored),))] * 3))
    assert found.rows == [(None, ("x" * 100,)), (None, ("x" * 100,)), (None, (None,))]
    assert found.unrepresentable == {(2, 1): {0: stored}}


def test_a_compressed_record_says_its_size() -> None:
    record = b"\x84" + (1 << 20).to_bytes(4, "big") + zlib.compress(bytes(1 << 20))
    assert unpacked_size(record) == 1 << 20
    assert decompress_record(record) == bytes(1 << 20)
    with pytest.raises(InvalidValueError, match="says 5 bytes and unpacks to more"):
        decompress_record(b"\x81\5" + zlib.compress(bytes(1 << 20)))


def test_a_payload_with_a_large_event() -> None:
    inner = make_event(29, bytes(1000), checksum=False)
    payload = TransactionPayloadEvent(255, len(inner), inner)
    assert list(payload.events()) == [inner]
    assert list(payload.events(len(inner))) == [inner]
    with pytest.raises(TooLargeError, match="an event of 1019 bytes in a payload; up to 1000 are read"):
        list(payload.events(1000))


def test_a_file_with_a_large_event() -> None:
    small, large = make_event(2, bytes(10)), make_event(2, bytes(1000))
    found = []
    with pytest.raises(TooLargeError, match="an event of 1023 bytes; up to 1000 are read"):
        found.extend(iter_events(BytesIO(MAGIC + small + large), max_size=1000))
    assert found == [(4, small)]


def table_map(number: int, name_bytes: int = 0) -> TableMapEvent:
    return TableMapEvent(number, 1, "d", "t", b"\3", b"", b"\0", bytes(name_bytes))


def observe_all(state: StreamState, numbers: range) -> None:
    for number in numbers:
        state.observe(table_map(number))


def test_table_maps_of_no_statement_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.binlog.state._MAX_MAP_BYTES", 100_000)
    state = StreamState()
    for number in range(150):
        state.observe(table_map(number))
    with pytest.raises(InvalidValueError, match="table maps without a rows event that ends their statement"):
        observe_all(state, range(1000))
    held = len(state.table_maps)
    assert 100 < held < 200
    with pytest.raises(InvalidValueError):
        state.for_payload().observe(table_map(1001))
    state.observe(WriteRowsEvent(1, 1, b"", 1, b"", b"\1", b""))  # ends the statement
    for number in range(held):
        state.for_payload().observe(table_map(number))
    with pytest.raises(InvalidValueError):
        state.for_payload().observe(table_map(1001))


def test_one_table_map_is_kept_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.binlog.state._MAX_MAP_BYTES", 1000)
    state = StreamState()
    for number in range(100):
        state.observe(table_map(number, 5000))
        state.observe(WriteRowsEvent(number, 1, b"", 1, b"", b"\1", b""))
    state.observe(table_map(1, 5000))
    state.observe(table_map(1, 6000))
    with pytest.raises(InvalidValueError):
        state.observe(table_map(2, 10))
    assert list(state.table_maps) == [1]


def test_tables_have_as_many_columns_as_a_server_allows() -> None:
    assert len(decode_column_metadata(b"\3" * 4096, b"")) == 4096
    with pytest.raises(InvalidValueError, match="a table of 4097 columns; the servers allow 4096"):
        decode_column_metadata(b"\3" * 4097, b"")


def test_members_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = (b"\xfc" + (1000).to_bytes(2, "little") + b"\1a" * 1000) * 3
    raw = b"\6" + pack_lenenc(len(lists)) + lists
    assert decode_optional_metadata(raw).enum_str_value == ((b"a",) * 1000,) * 3
    monkeypatch.setattr("millrace.binlog.columns.metadata._MAX_MEMBERS", 2999)
    with pytest.raises(InvalidValueError, match="3000 members of ENUM or SET columns or more"):
        decode_optional_metadata(raw)


SCALARS = [b"\4\1\0", b"\5\xff\xff", b"\6\1\0"]
"""A literal and two numbers, as an array has them."""


def array(*entries: bytes) -> bytes:
    size = 4 + 3 * len(entries)
    return b"\2" + len(entries).to_bytes(2, "little") + size.to_bytes(2, "little") + b"".join(entries)


def test_the_text_of_a_document_is_that_of_its_values() -> None:
    inner = array(*SCALARS)[1:]
    nested = b"\2\2\0" + (10 + len(inner)).to_bytes(2, "little") + b"\2\x0a\0" + SCALARS[0] + inner
    member = b"\0\1\0\x12\0" + b"\x0b\0\1\0" + b"\x0c\x0d\0" + b"k\0\2h" + b"i"
    member = b"\0\1\0\x0f\0" + b"\x0b\0\1\0" + b"\x0c\x0c\0" + b"k" + b"\2hi"
    for document in (b"", array(), array(*SCALARS), nested, member, b"\0\0\0\4\0", b"\x0b" + bytes(8)):
        assert json_text(document) == text_of_json(decode_json(document))
    assert json_text(nested) == "[[true, -1, 1], true]"
    assert json_text(member) == '{"k": "hi"}'
    assert json_text(array(*SCALARS * 5000)) == json.dumps([True, -1, 1] * 5000)


def test_a_document_of_which_the_values_overlap() -> None:
    """Each of 10 arrays holds the next one 50 times."""
    data = bytearray(b"\2")
    for level in range(10):
        size = 4 + 3 * 50
        offset = size if level < 9 else 0
        data += (50).to_bytes(2, "little") + (size * (10 - level)).to_bytes(2, "little")
        data += (b"\2" + offset.to_bytes(2, "little")) * 50
    for read in (decode_json, json_text):
        with pytest.raises(InvalidValueError, match="deeper or larger than its bytes allow"):
            read(bytes(data))


def test_the_text_of_a_document_takes_little_more_than_the_text() -> None:
    count = 60_000
    size = 8 + 5 * count
    document = b"\3" + count.to_bytes(4, "little") + size.to_bytes(4, "little") + b"\4\1\0\0\0" * count
    tracemalloc.start()
    try:
        text = json_text(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text == "[" + ", ".join(["true"] * count) + "]"
    assert peak < 6 * len(text)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE a " + "\\'" * 200_000,
        "CREATE TABLE a " + "'a" * 200_001,
        "ALTER TABLE a " + "`" * 200_001,
        "DROP TABLE " + "a," * 200_000,
        "XA START '" + "''" * 200_000,
        "RENAME TABLE " + "a TO b," * 100_000,
    ],
    ids=["escapes", "strings", "names", "tables", "xid", "renames"],
)
def test_a_long_statement_takes_little_time(text: str) -> None:
    began = time.process_time()
    assert classify(text).kind in {StatementKind.DDL, StatementKind.XA_START, StatementKind.OTHER}
    assert time.process_time() - began < 5


def test_columns_without_compression_have_no_bound() -> None:
    column = Column(0, ColumnType.LONG, NoMetadata())
    images = RowImages((column,), None, b"\1")
    rows = [(None, (number,)) for number in range(2000)]
    encoded = images.encode(rows)
    assert images.avro(encoded).rows == images.decode(encoded) == list(images.each(encoded)) == rows
    assert list(images.starts(encoded)) == list(range(0, 10_000, 5))
    assert images.count(encoded) == 2000


def test_rows_that_come_again_are_read_once() -> None:
    """An event may hold millions of empty rows: they are the same object, and the count and bytes hold."""
    columns = tuple(Column(ordinal, ColumnType.LONG, NoMetadata()) for ordinal in range(2))
    null, one, two = (None, None), (1, None), (1, 2)
    values = [null] * 3000 + [one] * 2 + [null] + [two] * 1500 + [one]
    for images, rows in (
        (RowImages(columns, None, b"\3"), [(None, value) for value in values]),
        (RowImages(columns, b"\3", None), [(value, None) for value in values]),
        (RowImages(columns, b"\3", b"\3"), [(null, value) for value in values]),
    ):
        encoded = images.encode(rows)
        found = list(images.each(encoded))
        assert found == rows
        assert len({id(row) for row in found}) == 5
        assert images.encode(found) == encoded
        starts = list(images.starts(encoded))
        assert [images.decode(encoded[a:b]) for a, b in pairwise(starts[2999:])] == [
            [row] for row in rows[2999:-1]
        ]
        assert len(starts) == images.count(encoded) == len(list(images.payloads(encoded))) == len(rows)
        with pytest.raises(TruncatedError):
            list(images.each(encoded[:-1]))
