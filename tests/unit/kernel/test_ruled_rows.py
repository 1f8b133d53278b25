"""Columns with a rule: kernel and reference write the same, and never the value itself."""

import hmac
import io
from typing import Any

import fastavro
import pytest

from millrace import kernel
from millrace.avro.column_values import ColumnValues
from millrace.avro.row_records import table_schemas
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.column import BlobMetadata, DecimalMetadata, LengthMetadata, NoMetadata
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.table import ResolvedTable
from millrace.selection.columns import ColumnAction, ColumnRule

from .both_rows import NOT_BUILT, ways

pytestmark = pytest.mark.skipif(not kernel.built("rows"), reason=NOT_BUILT)

COLUMNS = (
    Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),
    Column(1, ColumnType.VARCHAR, LengthMetadata(400), name="text", charset="utf8mb4"),
    Column(2, ColumnType.NEWDECIMAL, DecimalMetadata(10, 2), name="amount"),
    Column(3, ColumnType.DATE, NoMetadata(), name="day"),
    Column(4, ColumnType.BLOB, BlobMetadata(4), name="data", charset="binary"),
    Column(5, ColumnType.LONGLONG, NoMetadata(), name="big", unsigned=True),
)
TABLE = ResolvedTable("d", "t", COLUMNS, COLUMNS[:1], "table_map")
OPTIONS = AvroOptions(bigint_unsigned="long")
RULES = {
    "drop": ColumnRule(ColumnAction.DROP),
    "mask": ColumnRule(ColumnAction.MASK, text="***"),
    "hash": ColumnRule(ColumnAction.HASH, salt=b"salt"),
    "truncate": ColumnRule(ColumnAction.TRUNCATE, length=2),
}
SECRET = "s\u00e9cret"
INVALID = b"\x04sec\xff"  # no UTF-8
NO_DAY = b"\x00\x00\x00"
HUGE = (2**64 - 3).to_bytes(8, "little")  # no long


def values_of(rule: ColumnRule) -> dict[int, ColumnValues]:
    ruled = {}
    for column in COLUMNS[1:]:
        try:
            ruled[column.ordinal] = ColumnValues.of(rule, codec_of(column).avro_type(OPTIONS))
        except UnsupportedError:
            assert rule.action is ColumnAction.TRUNCATE
    return ruled


def image(*payloads: bytes) -> bytes:
    """A row of these values, of which an empty one is NULL."""
    nulls = sum(1 << number for number, payload in enumerate(payloads) if not payload)
    return bytes((0xC0 | nulls,)) + b"".join(payloads)


ID = (7).to_bytes(4, "little")
AMOUNT = b"\x80\x00\x03\x09\x00"
ORDINARY = image(
    ID, b"\x07\x00" + SECRET.encode(), AMOUNT, b"\x22\xd0\x0f", b"\x06\x00\x00\x00secret", ID * 2
)
LOST = image(ID, b"\x04\x00sec\xff", AMOUNT, NO_DAY, b"\x06\x00\x00\x00secret", HUGE)
NULLS = image(ID, b"", b"", b"", b"", b"")


def read(value: bytes, ruled: dict[int, ColumnValues]) -> Any:
    schema = fastavro.parse_schema(table_schemas("s", TABLE, OPTIONS, ruled).envelope)
    stream = io.BytesIO(value[5:])
    found = fastavro.schemaless_reader(stream, schema)
    assert not stream.read()
    return found


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("operation", [RowsOperation.WRITE, RowsOperation.UPDATE, RowsOperation.DELETE])
def test_all_operations(name: str, operation: RowsOperation) -> None:
    ruled = values_of(RULES[name])
    compiled, reference = ways(TABLE, operation, OPTIONS, ruled=ruled)
    images = 2 if operation is RowsOperation.UPDATE else 1
    rows = ORDINARY * images + LOST * images + NULLS * images
    written = compiled(rows)
    assert written == reference(rows)
    assert isinstance(written, list)
    for _, value in written:
        envelope = read(value, ruled)
        whole = value + repr(envelope).encode()
        assert SECRET.encode() not in whole
        assert b"secret" not in whole
        assert b"sec\xff" not in whole
        for note in envelope["unrepresentable"] or ():
            assert note["column"] not in {COLUMNS[ordinal].name for ordinal in ruled}
        row = envelope["after"] or envelope["before"]
        if name == "mask":
            assert {row[each] for each in ("text", "amount", "day", "data", "big")} == {"***"}
        if name == "drop":
            assert list(row) == ["id"]


@pytest.mark.parametrize("name", RULES)
def test_images_that_lack_columns(name: str) -> None:
    """What is dropped is not listed as missing; what is masked is null where it is not there."""
    ruled = values_of(RULES[name])
    compiled, reference = ways(
        TABLE, RowsOperation.UPDATE, OPTIONS, before=b"\x01", after=b"\x02", ruled=ruled
    )
    rows = b"\xfe" + ID + b"\xfe\x07\x00" + SECRET.encode()
    written = compiled(rows)
    assert written == reference(rows)
    assert isinstance(written, list)
    envelope = read(written[0][1], ruled)
    hidden = {"text", "amount", "day", "data", "big"} if name == "drop" else set()
    assert set(envelope["after_missing"] or ()) == {"id", "amount", "day", "data", "big"} - hidden
    assert SECRET.encode() not in written[0][1]


def test_a_value_too_large_for_a_record() -> None:
    """Of a masked column no reference is given: there is nothing to look up."""
    ruled = {4: values_of(RULES["mask"])[4]}
    large = image(ID, b"", b"", b"", (5000).to_bytes(4, "little") + bytes(5000), b"")
    for way in ways(TABLE, RowsOperation.WRITE, OPTIONS, ruled=ruled, limit=1000):
        ((_, value),) = way(large)
        assert read(value, ruled)["unrepresentable"] is None


def test_digits_that_no_rounding_may_make_one() -> None:
    """DECIMAL(38,2): Python's own arithmetic keeps 28 digits."""
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    write = ColumnValues.of(RULES["hash"], avro).write
    hashes = {write(number.to_bytes(16, "big", signed=True)) for number in (10**37, 10**37 + 1, -(10**37))}
    assert len(hashes) == 3
    assert write((-5).to_bytes(16, "big", signed=True)) == ColumnValues.of(RULES["hash"], "string").write(
        "-0.05"
    )


def test_what_is_hashed() -> None:
    """Text by its UTF-8, bytes as they are, numbers by their digits: anybody with the salt can do it."""
    ruled = values_of(RULES["hash"])
    compiled, _ = ways(TABLE, RowsOperation.WRITE, OPTIONS, ruled=ruled)
    ((_, value),) = compiled(image(ID, b"\x01\x00a", AMOUNT, NO_DAY, b"\x01\x00\x00\x00a", HUGE))
    row = read(value, ruled)["after"]

    def of(text: bytes) -> str:
        return hmac.new(b"salt", text, "sha256").hexdigest()

    assert row["text"] == row["data"] == of(b"a")
    assert row["amount"] == of(b"777.00")
    assert row["day"] == of(b"0000-00-00")
    assert row["big"] == of(b"18446744073709551613")
