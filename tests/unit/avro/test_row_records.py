"""Schemas of tables and the rows written by them, read back with fastavro."""

import io

import fastavro
import pytest

from millrace.avro.registry import split_wire_format
from millrace.avro.row_records import (
    EventMetadata,
    RowEncoder,
    RowsEventWriter,
    table_schemas,
)
from millrace.binlog.columns import ABSENT, AvroOptions, Column
from millrace.binlog.columns.column import (
    BlobMetadata,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    NoMetadata,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError, MissingStateError, UnrepresentableError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import AvroRows, RowImages
from millrace.binlog.table import ResolvedTable

PLACE = EventMetadata(
    ts_us=1_700_000_000_000_123,
    server_id=7,
    gtid="uuid:5",
    log_file="bin.000001",
    position=1234,
    epoch=2,
    sub_index=3,
    thread=None,
    query=None,
    schema_source="table_map",
    now_us=99_123,
    transaction="uuid:5",
    total_order=6,
    collection_order=3,
    key=b"7:2:bin.000001:1234:3",
)
ALL = b"\x0f"


LONG = ColumnType.LONGLONG, NoMetadata(), None
DATE = ColumnType.DATE, NoMetadata(), None
TEXT = ColumnType.VARCHAR, LengthMetadata(400), "utf8mb4"
BLOB = ColumnType.BLOB, BlobMetadata(4), "binary"


def table(columns, key=(), database="shop", name="orders"):
    made = tuple(
        Column(
            i,
            type_,
            metadata,
            name=column,
            charset=charset,
            key_position=key.index(column) if column in key else None,
        )
        for i, (column, (type_, metadata, charset)) in enumerate(columns.items())
    )
    keys = tuple(next(c for c in made if c.name == column) for column in key)
    return ResolvedTable(database, name, made, keys, "table_map", transactional=True)


COLUMNS = {"id": LONG, "day": DATE, "note": TEXT, "data": BLOB}
ORDERS = table(COLUMNS, key=("id", "day"))
OPTIONS = AvroOptions()


class Written:
    """Rows of one event, pairs of before and after, written and read back."""

    def __init__(
        self,
        operation,
        rows,
        *,
        resolved=ORDERS,
        limit=1 << 20,
        locate=None,
        lost=(),
        before=ALL,
        after=ALL,
        options=OPTIONS,
    ):
        schemas = table_schemas("my-source", resolved, options)
        encoder = RowEncoder(
            "my-source",
            "1.0",
            resolved,
            options,
            key_id=None if schemas.key is None else 11,
            value_id=12,
            record_limit=limit,
        )
        writer = RowsEventWriter(
            encoder,
            PLACE,
            b"" if operation is RowsOperation.WRITE else before,
            b"" if operation is RowsOperation.DELETE else after,
            locate,
        )
        images = rows if isinstance(rows, AvroRows) else AvroRows(rows, dict(lost))
        writer.write(operation, images)
        self.schemas = schemas
        self.records = writer.records
        self.keys = [key and read(schemas.key, key, 11) for key, _ in writer.records]
        self.values = [read(schemas.envelope, value, 12) for _, value in writer.records]


def read(schema, data, schema_id):
    assert split_wire_format(data)[0] == schema_id
    stream = io.BytesIO(data[5:])
    record = fastavro.schemaless_reader(stream, plain(schema), None)
    assert stream.read() == b""
    return record


def plain(schema):
    """Leave out logical types, so that values compare as they were given."""
    if isinstance(schema, dict):
        return {name: plain(part) for name, part in schema.items() if name != "logicalType"}
    return [plain(part) for part in schema] if isinstance(schema, list) else schema


def test_insert():
    rows = [(None, (1, 20_000, "né", b"\x00")), (None, (2, 20_001, None, None))]
    written = Written(RowsOperation.WRITE, rows)
    assert written.keys == [{"id": 1, "day": 20_000}, {"id": 2, "day": 20_001}]
    first, second = written.values
    assert first == {
        "before": None,
        "after": {"id": 1, "day": 20_000, "note": "né", "data": b"\x00"},
        "source": {
            "version": "1.0",
            "connector": "millrace",
            "name": "my-source",
            "ts_ms": 1_700_000_000_000,
            "ts_us": 1_700_000_000_000_123,
            "ts_ns": 1_700_000_000_000_123_000,
            "snapshot": "false",
            "sequence": None,
            "db": "shop",
            "table": "orders",
            "server_id": 7,
            "gtid": "uuid:5",
            "file": "bin.000001",
            "pos": 1234,
            "row": 0,
            "thread": None,
            "query": None,
            "epoch": 2,
            "sub_index": 3,
            "schema_source": "table_map",
        },
        "op": "c",
        "ts_ms": 99,
        "ts_us": 99_123,
        "ts_ns": 99_123_000,
        "transaction": {"id": "uuid:5", "total_order": 6, "data_collection_order": 3},
        "unrepresentable": None,
        "before_missing": None,
        "after_missing": None,
    }
    assert second["after"] == {"id": 2, "day": 20_001, "note": None, "data": None}
    assert second["source"]["row"] == 1
    assert second["transaction"] == {"id": "uuid:5", "total_order": 7, "data_collection_order": 4}


def test_update_and_delete():
    before, after = (1, 2, "a", b""), (1, 2, "b", b"")
    update = Written(RowsOperation.UPDATE, [(before, after)]).values[0]
    assert (update["op"], update["before"]["note"], update["after"]["note"]) == ("u", "a", "b")
    delete = Written(RowsOperation.DELETE, [(before, None)]).values[0]
    assert (delete["op"], delete["before"]["note"], delete["after"]) == ("d", "a", None)


def test_update_of_the_key_is_a_delete_and_an_insert():
    row, moved, other = ((n, 2, "", b"") for n in (1, 9, 3))
    written = Written(RowsOperation.UPDATE, [(row, moved), (other, other)])
    assert [value["op"] for value in written.values] == ["d", "c", "u"]
    assert [key["id"] for key in written.keys] == [1, 9, 3]
    assert [value["source"]["row"] for value in written.values] == [0, 1, 2]
    assert [value["transaction"]["total_order"] for value in written.values] == [6, 7, 8]
    assert written.values[0]["after"] is None
    assert written.values[1]["before"] is None


SHORT = ColumnType.LONG, NoMetadata(), None
DOUBLE = ColumnType.DOUBLE, NoMetadata(), None
DATETIME = ColumnType.DATETIME2, FractionMetadata(6), None
CENTS = ColumnType.NEWDECIMAL, DecimalMetadata(8, 2), None
DECIMAL = ColumnType.NEWDECIMAL, DecimalMetadata(12, 2), None
MILLS = ColumnType.NEWDECIMAL, DecimalMetadata(12, 3), None


@pytest.mark.parametrize(
    ("was", "now", "has_alias"),
    [
        (SHORT, LONG, True),
        (SHORT, DOUBLE, True),
        (LONG, SHORT, False),
        (LONG, TEXT, False),
        (TEXT, TEXT, True),
        (TEXT, BLOB, False),  # by Avro's rules it promotes, and would be bytes in a character set
        (SHORT, DATE, False),
        (DATE, SHORT, False),
        (DATE, LONG, False),
        (DATE, DATETIME, False),
        (CENTS, DECIMAL, True),
        (DECIMAL, CENTS, False),
        (CENTS, MILLS, False),
        (DECIMAL, BLOB, False),
    ],
)
def test_a_former_name_is_an_alias_where_its_type_promotes(was, now, has_alias):
    renamed = table({"id": LONG, "c": now}, key=("id", "c"))
    (before,) = table({"a-b": was}).columns
    schemas = table_schemas("s", renamed, OPTIONS, former={1: [before]})
    aliases = {"aliases": ["a_x002D_b"]} if has_alias else {}
    for fields in (schemas.key["fields"], schemas.envelope["fields"][0]["type"][1]["fields"]):
        assert [{name: field[name] for name in field if name == "aliases"} for field in fields] == [
            {},
            aliases,
        ]
    if not has_alias:
        assert schemas == table_schemas("s", renamed, OPTIONS)


def test_table_without_a_key():
    written = Written(RowsOperation.WRITE, [(None, (1, 2, "", b""))], resolved=table(COLUMNS))
    assert written.schemas.key is None
    assert written.keys == [None]


def test_absent_columns_are_listed():
    row = ((1, 2, ABSENT, ABSENT), (ABSENT, ABSENT, "x", ABSENT))
    value = Written(RowsOperation.UPDATE, [row], before=b"\x03", after=b"\x04").values[0]
    assert value["before"] == {"id": 1, "day": 2, "note": None, "data": None}
    assert value["before_missing"] == ["note", "data"]
    assert value["after_missing"] == ["id", "day", "data"]
    assert value["op"] == "u"


def test_key_that_changes_in_a_minimal_image():
    row = ((1, 2, ABSENT, ABSENT), (9, ABSENT, ABSENT, ABSENT))
    written = Written(RowsOperation.UPDATE, [row], before=b"\x03", after=b"\x01")
    assert written.keys == [{"id": 1, "day": 2}, {"id": 9, "day": 2}]


def test_absent_key_is_an_error():
    with pytest.raises(MissingStateError, match="lacks the key column day"):
        Written(RowsOperation.DELETE, [((1, ABSENT, "", b""), None)], before=b"\x0d")


def test_what_a_field_cannot_hold_is_noted():
    rows = [(None, (1, None, None, b"")), (None, (2, 7, "", b""))]
    written = Written(RowsOperation.WRITE, rows, lost={(0, 1): {1: "0000-00-00", 2: b"ab\xff"}})
    first, second = written.values
    assert first["after"] == {"id": 1, "day": None, "note": None, "data": b""}
    assert first["unrepresentable"] == [
        {"image": "after", "column": "day", "text": "0000-00-00", "bytes": None, "reference": None},
        {"image": "after", "column": "note", "text": None, "bytes": b"ab\xff", "reference": None},
    ]
    assert second["unrepresentable"] is None
    assert [key["day"] for key in written.keys] == ["0000-00-00", 7]


def test_update_with_a_key_that_its_field_cannot_hold():
    old, new = (1, None, "a", b""), (1, None, "b", b"")
    lost = {(0, 0): {1: "0000-00-00"}, (0, 1): {1: "0000-00-00"}}
    same = Written(RowsOperation.UPDATE, [(old, new)], lost=lost)
    assert [value["op"] for value in same.values] == ["u"]
    assert [note["image"] for note in same.values[0]["unrepresentable"]] == ["before", "after"]
    moved = Written(RowsOperation.UPDATE, [(old, (1, 5, "b", b""))], lost={(0, 0): {1: "0000-00-00"}})
    assert [value["op"] for value in moved.values] == ["d", "c"]
    assert [value["unrepresentable"] is None for value in moved.values] == [False, True]


def test_key_of_bytes_that_are_no_text():
    resolved = table({"name": TEXT}, key=("name",))
    rows = [(None, ("a",)), (None, (None,))]
    written = Written(
        RowsOperation.WRITE, rows, resolved=resolved, after=b"\x01", lost={(1, 1): {0: b"\xff"}}
    )
    assert written.keys == [{"name": "a"}, {"name": "0xff"}]


def test_value_too_large_for_the_topic_becomes_a_reference():
    small, row = (1, 2, "", b""), (1, 2, "short", b"x" * 50_000)
    written = Written(
        RowsOperation.UPDATE, [(small, small), (small, row)], limit=1000, locate=lambda *where: where[:2]
    )
    value = written.values[1]
    assert value["after"] == {"id": 1, "day": 2, "note": "short", "data": None}
    assert value["unrepresentable"] == [
        {
            "image": "after",
            "column": "data",
            "text": None,
            "bytes": None,
            "reference": {"key": PLACE.key.decode(), "start": 1, "end": 1},
        }
    ]
    assert all(len(record[1]) <= 1000 for record in written.records)


def test_only_as_many_columns_as_needed_become_references():
    row = (1, 2, "n" * 600, b"x" * 700)
    value = Written(RowsOperation.WRITE, [(None, row)], limit=1000, locate=lambda *_: (0, 1)).values[0]
    assert value["after"]["note"] == "n" * 600
    assert value["after"]["data"] is None


def test_bytes_that_are_too_large_to_be_noted_become_a_reference():
    row = (1, 2, None, b"")
    lost = {(0, 1): {2: b"\xff" * 5000}}
    value = Written(
        RowsOperation.WRITE, [(None, row)], limit=1000, locate=lambda *_: (0, 1), lost=lost
    ).values[0]
    assert [(note["column"], note["reference"]) for note in value["unrepresentable"]] == [
        ("note", {"key": PLACE.key.decode(), "start": 0, "end": 1})
    ]


def test_row_that_never_fits_is_an_error():
    with pytest.raises(UnrepresentableError, match="does not fit"):
        Written(RowsOperation.WRITE, [(None, (1, 2, "", b""))], limit=20, locate=lambda *_: (0, 1))


def test_in_the_form_of_debezium_no_field_of_a_key_is_a_union():
    """Sinks that make columns of the key take no unions; so a zero date has no key."""
    options = AvroOptions(temporal="debezium")
    written = Written(RowsOperation.WRITE, [(None, (1, 20_000, None, None))], options=options)
    assert [field["type"] for field in written.schemas.key["fields"]] == [
        "long",
        {"type": "int", "connect.name": "io.debezium.time.Date", "connect.version": 1},
    ]
    assert written.keys == [{"id": 1, "day": 20_000}]
    lost = {(0, 1): {1: "0000-00-00"}}
    with pytest.raises(
        UnrepresentableError,
        match=r"^0000-00-00 in column day DATE cannot be in a key, which has Avro's int for it$",
    ):
        Written(RowsOperation.WRITE, [(None, (1, None, None, None))], options=options, lost=lost)


def test_rows_as_the_codec_reads_them():
    images = RowImages(ORDERS.columns, None, ALL, options=OPTIONS)
    one = (
        (5).to_bytes(8, "little") + (2000 << 9 | 1 << 5 | 1).to_bytes(3, "little") + b"\x02\x00hi" + bytes(4)
    )
    zero = (6).to_bytes(8, "little") + bytes(3) + b"\x01\x00\xff" + bytes(4)
    written = Written(RowsOperation.WRITE, images.avro(b"\x00" + one + b"\x00" + zero))
    assert written.keys == [{"id": 5, "day": 10_957}, {"id": 6, "day": "0000-00-00"}]
    assert written.values[0]["after"] == {"id": 5, "day": 10_957, "note": "hi", "data": b""}
    assert [
        (note["column"], note["text"], note["bytes"]) for note in written.values[1]["unrepresentable"]
    ] == [
        ("day", "0000-00-00", None),
        ("note", None, b"\xff"),
    ]


def test_names_are_escaped_and_kept():
    resolved = table({"1st col": LONG, "größe": TEXT}, key=("1st col",), database="my.db", name="t-1")
    schemas = table_schemas("a-b", resolved, OPTIONS)
    value = schemas.envelope["fields"][0]["type"][1]
    assert schemas.envelope["namespace"] == value["namespace"] == "a_x002D_b.my_x002E_db.t_x002D_1"
    assert [field["name"] for field in value["fields"]] == ["_x0031_st_x0020_col", "gr_x00F6__x00DF_e"]
    assert [field["millrace.name"] for field in value["fields"]] == ["1st col", "größe"]
    fastavro.parse_schema(schemas.envelope)
    fastavro.parse_schema(schemas.key)
    assert schemas.key["fields"][0]["millrace.name"] == "1st col"
    assert value["fields"][0]["default"] is None


def test_records_that_all_tables_share_keep_their_names():
    parsed = fastavro.parse_schema(table_schemas("s", ORDERS, OPTIONS).envelope, {})
    names = {parsed["name"], *parsed["__named_schemas"]}
    assert names == {
        "s.shop.orders.Envelope",
        "s.shop.orders.Value",
        "millrace.Source",
        "millrace.RowTransaction",
        "millrace.Unrepresentable",
        "millrace.Reference",
    }


def test_a_bitmap_of_another_number_of_columns_is_refused():
    with pytest.raises(InvalidValueError):
        Written(RowsOperation.WRITE, [], after=b"\x0f\x00")
    nine = table({f"c{i}": LONG for i in range(9)})
    with pytest.raises(InvalidValueError):
        Written(RowsOperation.WRITE, [], resolved=nine, after=b"\xff")
