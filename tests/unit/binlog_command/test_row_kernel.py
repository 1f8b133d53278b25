"""The kernel for text gives what the reference gives, for damaged and odd rows too."""

import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.binlog.columns import Column, ColumnType, codec_of
from millrace.binlog.columns.column import BlobMetadata, LengthMetadata, RealMetadata
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import RowsEvent
from millrace.binlog.state import StreamState
from millrace.binlog_command import json_output, row_printer, verify
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.records import RawEvent
from millrace.binlog_command.row_kernel import (
    NO_ESCAPES,
    TextColumn,
    TextKind,
    Value,
    rows_by_kernel,
    value_of,
)
from tests.unit.binlog_command.both_kernels import OUTPUTS, both
from tests.unit.columns.test_vectors import VECTORS
from tests.unit.kernel.json_documents import DOCUMENTS

text_kernel = pytest.importorskip("millrace.kernel.text", reason="the kernel is not built (make kernel)")

LOGS = sorted(path for path in (Path(__file__).parent / "logs").iterdir() if path.suffix[1:].isdecimal())
GENERATIONS = (Generation.MYSQL_8_0, Generation.MYSQL_5_7, Generation.MARIADB_10_11)


def events_of(path: Path) -> list[RawEvent]:
    return [event for log in FileInput([str(path)]).logs() for batch in log for event in batch]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_logs_are_written_alike(log: Path, output: str) -> None:
    with_kernel, without = both(lambda: [events_of(log)], output)
    assert with_kernel == without


def damaged(path: Path, seed: int) -> list[RawEvent]:
    """Change bytes of the rows of a log, and cut some off."""
    pick = random.Random(seed)
    state = StreamState()
    changed = []
    for event in events_of(path):
        decoded = decode_event(event.data, state)
        data = bytearray(event.data)
        if isinstance(decoded.event, RowsEvent) and decoded.event.rows:
            end = len(data) - len(decoded.checksum or b"")
            start = end - len(decoded.event.rows)
            for _ in range(pick.choice((0, 1, 1, 4))):
                data[pick.randrange(start, end)] = pick.choice(
                    (0, 0x7F, 0x80, 0xC2, 0xFF, pick.randrange(256))
                )
            if pick.random() < 0.1:
                del data[pick.randrange(start, end) : end]
                data[9:13] = len(data).to_bytes(4, "little")
        changed.append(event._replace(data=bytes(data)))
    return changed


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("seed", range(20))
def test_damaged_rows_are_written_alike(output: str, seed: int) -> None:
    with_kernel, without = both(lambda: [damaged(LOGS[seed % len(LOGS)], seed)], output, verify=False)
    assert with_kernel == without


PLAIN = [vector.column for vector in VECTORS if not vector.column.type.name.endswith("COMPRESSED")]
REALS = [
    Column(0, ColumnType.FLOAT, RealMetadata(4)),
    Column(0, ColumnType.DOUBLE, RealMetadata(8)),
]
COLUMNS = list(dict.fromkeys([*PLAIN, *REALS]))


def payloads_of(column: Column) -> list[bytes]:
    """Return the bytes of a column's known values, and such changed at random."""
    pick = random.Random(0)
    known = [bytes.fromhex(vector.payload) for vector in VECTORS if vector.column == column]
    code = codec_of(column).struct_code
    size = struct.calcsize(f"<{code}")
    found = [*known, *(pick.randbytes(size) for _ in range(40) if code)]
    for payload in known * 20:
        changed = bytearray(payload)
        for _ in range(pick.choice((1, 1, 2, 8)) if changed else 0):
            changed[pick.randrange(len(changed))] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        found.append(bytes(changed))
    return found


def written(column: Column, text: TextColumn, payload: bytes, escapes: Sequence[bytes]) -> bytes | str:
    """Write one value; give the error where there is one."""
    codec = codec_of(column)
    prefix = len(payload).to_bytes(codec.length_bytes, "little") if codec.length_bytes else b""
    rows = rows_by_kernel([codec], [text], (None, b"\x01"), escapes=escapes)
    assert rows is not None
    pieces: list[bytes] = []
    try:
        assert rows.write(b"\0" + prefix + payload, pieces.append) == (1 + len(prefix + payload), 1)
    except (BinlogError, ValueError, OverflowError) as error:
        return type(error).__name__
    return b"".join(pieces)


def slowly(text: TextColumn) -> TextColumn:
    return replace(text, value=Value(TextKind.PYTHON))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.type.name}-{column.metadata}")
def test_values_are_written_as_the_functions_of_their_columns_do(column: Column) -> None:
    codec = codec_of(column)
    convert = json_output._conversion(codec)
    text = TextColumn(
        value_of(codec, json_output._VALUES),
        json_output._writer(codec, convert, json_output._is_plain(codec)),
    )
    for payload in payloads_of(column):
        fast = written(column, text, payload, json_output._ESCAPES)
        assert fast == written(column, slowly(text), payload, json_output._ESCAPES), payload.hex()
    for generation in GENERATIONS:
        line = row_printer._Line(column, 2, generation)
        text = TextColumn(row_printer._value(codec, line.write, generation), row_printer._safely(line.write))
        escapes = row_printer._escapes(generation)
        for payload in payloads_of(column):
            assert written(column, text, payload, escapes) == written(column, slowly(text), payload, escapes)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.type.name}-{column.metadata}")
def test_only_values_that_have_the_same_bytes_again_are_found_sound(column: Column) -> None:
    text = verify._checked(codec_of(column))
    for payload in payloads_of(column):
        if isinstance(written(column, text, payload, NO_ESCAPES), bytes):
            assert written(column, slowly(text), payload, NO_ESCAPES) == b"", payload.hex()


@settings(max_examples=200)
@given(document=DOCUMENTS, change=st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 255)))
def test_documents_are_written_as_the_reference_does(document: bytes, change: tuple[int, int] | None) -> None:
    if change is not None:
        changed = bytearray(document)
        changed[change[0] % len(changed)] = change[1]
        document = bytes(changed)
    column = Column(0, ColumnType.JSON, BlobMetadata(4))
    codec = codec_of(column)
    text = TextColumn(
        value_of(codec, json_output._VALUES), json_output._writer(codec, json_output._conversion(codec), True)
    )
    assert written(column, text, document, json_output._ESCAPES) == written(
        column, slowly(text), document, json_output._ESCAPES
    )
    line = row_printer._Line(column, 2, Generation.MYSQL_8_0)
    text = TextColumn(
        row_printer._value(codec, line.write, Generation.MYSQL_8_0), row_printer._safely(line.write)
    )
    escapes = row_printer._escapes(Generation.MYSQL_8_0)
    assert written(column, text, document, escapes) == written(column, slowly(text), document, escapes)


def test_what_acts_on_a_terminal_is_escaped_in_json_alone() -> None:
    column = Column(0, ColumnType.VARCHAR, LengthMetadata(100), charset="utf8mb4")
    for code in (*range(0x500), *range(0x2000, 0x2100), 0xFFFD, 0x1F600):
        payload = f"a{chr(code)}b".encode()
        codec = codec_of(column)
        text = TextColumn(
            value_of(codec, json_output._VALUES),
            json_output._writer(codec, json_output._conversion(codec), True),
        )
        assert (
            written(column, text, payload, json_output._ESCAPES)
            == json_output.dump(f"a{chr(code)}b").encode()
        )
