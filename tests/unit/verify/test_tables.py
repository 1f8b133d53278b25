import datetime as dt
import io
from collections import Counter
from decimal import Decimal
from typing import Any, cast

import fastavro
import pytest

from millrace.avro.registry import SchemaStore, wire_prefix
from millrace.binlog.columns.declaration import AvroOptions, codec_of
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.table import ColumnDefinition, column_of
from millrace.contract import escape_name
from millrace.runtime.errors import UserError
from millrace.verify.conversions import UnknownValue
from millrace.verify.tables import Column, Folder, Records, _compare, _from_note, from_server, from_topic

UTC = dt.UTC
ID, NAME = Column("id", "int", 0), Column("na-me", "varchar", 0)


def envelope(before: dict[str, Any] | None, after: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    op = "d" if after is None else "u" if before else "c"
    return {"before": before, "after": after, "op": op, "unrepresentable": None, **others}


@pytest.mark.parametrize("key", [None, {"id": 1}])
def test_a_truncate_removes_all_rows(key: dict[str, Any] | None) -> None:
    folder = Folder([Column("id", "int", 0)], lambda _: None)
    folder.add(key, envelope(None, {"id": 1}))
    folder.add(None, envelope(None, None) | {"op": "t"})
    assert not folder.rows
    folder.add(key, envelope(None, {"id": 2}))
    assert folder.rows == Counter({(2,): 1})


def row(number: int | None, name: str | None = None) -> dict[str, Any]:
    return {"id": number, "na_x002D_me": name}


def key(number: int) -> dict[str, Any]:
    return {"id": number}


def folder(*columns: Column, default: Any = None) -> Folder:
    return Folder(columns or (ID, NAME), lambda _column: default)


@pytest.mark.parametrize(
    ("data_type", "fraction", "in_topic", "printed"),
    [
        ("int", 0, 7, "7"),
        ("int", 0, None, None),
        ("bigint", 0, Decimal(18446744073709551615), "18446744073709551615"),
        ("year", 0, 0, "0000"),
        ("decimal", 0, Decimal("1.50"), "1.5"),
        ("decimal", 0, "1234567890123456789012345678901234567.50", "1234567890123456789012345678901234567.5"),
        ("bigint", 0, "18446744073709551615", "18446744073709551615"),
        ("float", 0, 0.10000000149011612, "0.10000000149011612"),
        ("double", 0, 1e300, "1e300"),
        ("date", 0, dt.date(999, 1, 2), "0999-01-02"),
        ("datetime", 0, dt.datetime(2026, 1, 31, 8, 0, 1), "2026-01-31 08:00:01"),  # noqa: DTZ001
        ("datetime", 6, dt.datetime(2026, 1, 31, 8, 0, 1, 20), "2026-01-31 08:00:01.000020"),  # noqa: DTZ001
        ("timestamp", 3, dt.datetime(2026, 1, 31, 8, 0, 1, 20_000, UTC), "2026-01-31 08:00:01.020"),
        ("time", 0, 3_020_399_000_000, "838:59:59"),
        ("time", 2, -(3_661 * 1_000_000 + 250_000), "-01:01:01.25"),
        ("enum", 0, "ä", "ä"),
        ("json", 0, '{"a": 1}', '{"a": 1}'),
        ("blob", 0, b"\xff", b"\xff"),
        ("point", 0, {"wkb": b"\1wkb", "srid": 4326}, b"\xe6\x10\0\0\1wkb"),
        ("point", 0, {"wkb": b"\1wkb", "srid": None}, b"\0\0\0\0\1wkb"),
        ("vector", 0, [1.0, -2.5], b"\0\0\x80\x3f\0\0\x20\xc0"),
    ],
)
def test_both_sides_have_one_form(data_type: str, fraction: int, in_topic: Any, printed: Any) -> None:
    column = Column("c", data_type, fraction)
    assert from_topic(column, in_topic) == from_server(column, printed)


DEBEZIUM = AvroOptions(temporal="debezium", bit="debezium")
CONNECT = AvroOptions(temporal="connect")


@pytest.mark.parametrize(
    ("column_type", "options", "written", "printed"),
    [
        ("date", DEBEZIUM, 1, "1970-01-02"),
        ("datetime", DEBEZIUM, 1_000, "1970-01-01 00:00:01"),
        ("datetime(3)", DEBEZIUM, -1, "1969-12-31 23:59:59.999"),
        ("datetime(6)", DEBEZIUM, 1_000_001, "1970-01-01 00:00:01.000001"),
        ("timestamp(3)", DEBEZIUM, "1970-01-01T00:00:01.500Z", "1970-01-01 00:00:01.500"),
        ("time(6)", DEBEZIUM, -1, "-00:00:00.000001"),
        ("bit(1)", DEBEZIUM, True, b"\1"),
        ("bit(9)", DEBEZIUM, b"\0\1", b"\1\0"),
        ("date", CONNECT, 1, "1970-01-02"),
        ("datetime(3)", CONNECT, 1_001, "1970-01-01 00:00:01.001"),
        ("timestamp", CONNECT, 1_000, "1970-01-01 00:00:01"),
        ("timestamp(6)", CONNECT, 1_000, "MILLRACE_ROWS_TEMPORAL"),
        ("datetime(4)", CONNECT, 1_000, "MILLRACE_ROWS_TEMPORAL"),
        ("time(3)", CONNECT, 1_001, "00:00:01.001"),
        ("time(6)", CONNECT, 1_001, "MILLRACE_ROWS_TEMPORAL"),
        ("timestamp(6)", AvroOptions(), 1_000_001, "1970-01-01 00:00:01.000001"),
        ("bit(9)", AvroOptions(), b"\1\0", b"\1\0"),
        ("decimal(30,2)", AvroOptions(decimal="double"), 0.1, "MILLRACE_ROWS_DECIMAL"),
        ("blob", AvroOptions(binary="base64"), "AP8=", "MILLRACE_ROWS_BINARY"),
        ("binary(2)", AvroOptions(binary="hex"), "00ff", "MILLRACE_ROWS_BINARY"),
        ("varbinary(2)", AvroOptions(), b"\0\xff", b"\0\xff"),
    ],
)
def test_the_schema_tells_the_form_of_a_value(
    column_type: str, options: AvroOptions, written: Any, printed: str | bytes
) -> None:
    """What a form has lost, or does not tell, is not told, and the setting is named."""
    sql = SqlType.parse(column_type)
    avro = codec_of(column_of(ColumnDefinition(0, "c", column_type), mariadb=False)).avro_type(options)
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": ["null", avro]}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"c": written})
    registry = cast("SchemaStore", Registry(schema))
    found = Records(registry).read(wire_prefix(1) + out.getvalue())["c"]
    fraction = sql.argument(0) if sql.name in ("time", "datetime", "timestamp") else 0
    value = from_topic(Column("c", sql.name, fraction), found)
    if isinstance(value, UnknownValue):
        assert isinstance(printed, str)
        assert value.reason.endswith(printed)
    else:
        assert value == printed


class Registry:
    """Has one schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def schema(self, _schema_id: int) -> dict[str, Any]:
        return self._schema


def test_a_type_without_a_common_form_is_refused() -> None:
    with pytest.raises(TypeError, match="column c: no common form for set"):
        from_topic(Column("c", "int", 0), set())


def test_the_last_record_of_a_key_wins() -> None:
    fold = folder()
    fold.add(key(1), envelope(None, row(1, "a")))
    fold.add(key(2), envelope(None, row(2, "b")))
    fold.add(key(1), envelope(row(1, "a"), row(1, "c")))
    fold.add(key(2), envelope(row(2, "b"), None))
    assert fold.rows == {(1, "c"): 1}
    assert fold.keyed
    assert fold.records == 4


def test_without_a_key_rows_are_counted() -> None:
    fold = folder()
    for _ in range(3):
        fold.add(None, envelope(None, row(1, "a")))
    fold.add(None, envelope(row(1, "a"), row(1, "b")))
    fold.add(None, envelope(row(1, "a"), None))
    assert fold.rows == {(1, "a"): 1, (1, "b"): 1}
    assert not fold.keyed


def test_without_a_key_the_image_before_has_what_the_one_after_lacks() -> None:
    fold = folder()
    fold.add(None, envelope(None, row(1), after_missing=["na-me"]))  # left to its default
    fold.add(None, envelope(None, row(2, "b")))
    fold.add(None, envelope(row(2, "b"), row(3), after_missing=["na-me"]))
    outcome = _compare("d", "t", fold, [(1, "default"), (3, "b")], (ID, NAME))
    assert outcome.equal
    assert [words.partition(";")[0] for words in outcome.untold] == [
        "column na-me of 1 rows: its image does not have the column"
    ]
    fold.add(None, envelope(row(1, "default"), None))
    assert _compare("d", "t", fold, [(3, "b")], (ID, NAME)).equal


def test_the_key_is_known_where_images_lack_it() -> None:
    """Rows of a minimal image are not taken for others with the same values."""
    fold = folder()
    fold.add(key(1), envelope(row(None), row(None, "a"), after_missing=["id"]))
    fold.add(key(2), envelope(None, row(2, "b")))
    fold.add(key(2), envelope(row(2), None))
    fold.add(key(2), envelope(None, row(2), after_missing=["na-me"]))
    assert _compare("d", "t", fold, [(1, "a"), (2, "default")], (ID, NAME)).equal
    assert not _compare("d", "t", fold, [(3, "a"), (2, "default")], (ID, NAME)).equal


def test_a_row_removed_but_never_added_is_seen() -> None:
    fold = folder()
    fold.add(None, envelope(row(1, "a"), None))
    outcome = _compare("d", "t", fold, [], (ID, NAME))
    assert not outcome.equal
    assert (outcome.missing, outcome.surplus) == (1, 0)


def test_a_column_added_later_has_its_default_in_earlier_records() -> None:
    fold = folder(ID, NAME, Column("points", "int", 0), default=100)
    fold.add(None, envelope(None, row(1, "a")))
    fold.add(None, envelope({**row(1, "a"), "points": 100}, {**row(1, "a"), "points": 7}))
    assert fold.rows == {(1, "a", 7): 1}


def test_what_an_image_lacks_is_as_it_was() -> None:
    fold = folder()
    fold.add(key(1), envelope(None, row(1, "a"), after_missing=None))
    fold.add(key(1), envelope(row(1), row(1, None), after_missing=["na-me"]))
    assert fold.rows == {(1, "a"): 1}


def test_what_a_field_cannot_hold_is_taken_from_the_envelope() -> None:
    fold = folder(ID, Column("d", "date", 0))
    note = {"image": "after", "column": "d", "text": "0000-00-00", "bytes": None, "reference": None}
    other = {**note, "image": "before", "text": "2026-00-00"}
    fold.add(key(1), envelope(None, {"id": 1, "d": None}, unrepresentable=[note, other]))
    assert fold.rows == {(1, "0000-00-00"): 1}


@pytest.mark.parametrize(
    ("rows", "missing", "surplus", "example"),
    [
        ([(1, "a"), (1, "a")], 0, 0, None),
        ([(1, "a")], 0, 1, "only in the topic: 1, 'a'"),
        ([(1, "a"), (1, "a"), (2, "b")], 1, 0, "only in the table: 2, 'b'"),
        ([(1, "a"), (1, "A")], 1, 1, "only in the topic: 1, 'a'"),
    ],
)
def test_differences_are_counted_with_examples(
    rows: list[tuple[Any, ...]], missing: int, surplus: int, example: str | None
) -> None:
    fold = folder()
    for _ in range(2):
        fold.add(None, envelope(None, row(1, "a")))
    outcome = _compare("d", "t", fold, rows, (ID, NAME))
    assert (outcome.missing, outcome.surplus, outcome.rows) == (missing, surplus, len(rows))
    assert outcome.equal == (example is None)
    assert outcome.examples[:1] == ([] if example is None else [example])


KEY, NOTE = Column("id", "int", 0, in_key=True), Column("note", "varchar", 0)


@pytest.mark.parametrize(
    ("columns", "in_topic", "in_table", "first"),
    [
        (
            (KEY, NOTE),
            [(1, "a"), (2, "b")],
            [(1, "a"), (2, "x")],
            "row id=2, column note: 'b' in the topic, 'x' in the table",
        ),
        ((KEY, NOTE), [(1, "a")], [(1, "a"), (2, "b")], "row id=2: only in the table"),
        ((KEY, NOTE), [(1, "a"), (2, "b")], [(2, "b")], "row id=1: only in the topic"),
        ((ID, NAME), [(1, "a")], [(1, "b")], "row id=1, na-me='b': only in the table"),
        (
            (KEY, NOTE),
            [(2, Decimal("1.50"))],
            [(2, b"\x00\xff")],
            "row id=2, column note: 1.50 in the topic, 0x00FF in the table",
        ),
        ((KEY, NOTE), [(2, "a")], [(2, None)], "row id=2, column note: 'a' in the topic, NULL in the table"),
        ((KEY, NOTE), [(1, "a")], [(1, "a")], None),
    ],
)
def test_where_the_first_difference_is(columns, in_topic, in_table, first):
    fold = Folder(columns, lambda _column: None)
    for number, note in in_topic:
        names = [escape_name(column.name) for column in columns]
        fold.add(key(number), envelope(None, dict(zip(names, (number, note), strict=True))))
    assert _compare("d", "t", fold, in_table, columns).first == first


def test_changes_of_a_document_do_not_tell_the_document() -> None:
    columns = [Column("id", "int", 0, in_key=True), Column("document", "json", 0)]
    fold = Folder(columns, lambda _: None)
    image = {"id": 1, "document": None}
    note = {"image": "after", "column": "document", "text": None, "bytes": b"\x02\x03$.a", "reference": None}
    fold.add({"id": 1}, {**envelope(None, image), "unrepresentable": [note]})
    compared = _compare("d", "t", fold, [(1, '{"b": 1}')], columns)
    assert compared.equal
    assert len(compared.untold) == 1
    assert "PARTIAL_JSON" in compared.untold[0]


def test_a_column_that_its_topic_does_not_have() -> None:
    note = {
        "image": "after",
        "column": "name",
        "text": None,
        "bytes": None,
        "reference": {"key": "1:0:bin.1:4:0"},
    }
    with pytest.raises(UserError) as caught:
        _from_note(Column("name", "longblob", 0), note)
    assert caught.value.message == (
        "a row is too large for a record of its topic: its column name lies in the events topic, and this "
        "comparison reads row topics only; raise max.message.bytes of the topic or leave it out"
    )
