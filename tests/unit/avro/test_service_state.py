"""States and the single-object encoding."""

from dataclasses import replace

import fastavro
import pytest
from fastavro.schema import fingerprint
from hypothesis import given
from hypothesis import strategies as st

from millrace.avro import single_object
from millrace.avro.schemas import load_schema, schema_names
from millrace.avro.service_state import (
    Continuity,
    DecoderState,
    InputRecord,
    LastWritten,
    LogIdentity,
    LogScope,
    OffsetRange,
    PendingXa,
    Progress,
    QuarantinedTable,
    ReaderState,
    RowMapperState,
    TableTopic,
    WrittenRecord,
    stored_state,
)
from millrace.avro.single_object import SingleObjectError
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

CONTINUITY = Continuity(
    {"s.raw": "abc"},
    InputRecord(7, b"k", 3),
    (InputRecord(5, None), InputRecord(7, b"k")),
    WrittenRecord(None, 9),
    {"s.ddl": LastWritten(5), "s.deadletter": LastWritten(0, WrittenRecord(b"k", 2**32 - 1))},
)
READER_STATE = ReaderState(
    epoch=2,
    log_file="mysql-bin.000017",
    position=(1 << 32) + 120,
    chunk=3,
    boundary=4_000_000_000,
    identity=LogIdentity(7, "8.0.15", 1_700_000_000, server_uuid="8a94f357-aab4-11df-86ab-c80aa9429562"),
    gtid_set="8a94f357-aab4-11df-86ab-c80aa9429562:1-5",
    left_out="8a94f357-aab4-11df-86ab-c80aa9429562:1-2",
    open_gtid="8a94f357-aab4-11df-86ab-c80aa9429562:6",
    last_timestamp=1_700_000_000_000,
    continuity=CONTINUITY,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def test_reader_state_survives():
    assert ReaderState.from_bytes(READER_STATE.to_bytes()) == READER_STATE
    fresh = ReaderState(epoch=0, log_file="", position=4)
    assert ReaderState.from_bytes(fresh.to_bytes()) == fresh
    of_mariadb = ReaderState(0, "bin.000001", 4, gtid_set="0-2-6", binlog_state="0-1-5,0-2-6")
    assert ReaderState.from_bytes(of_mariadb.to_bytes()) == of_mariadb


@given(
    stream=st.dictionaries(st.text(), plain, max_size=4),
    tracker=st.dictionaries(st.text(), plain, max_size=4),
)
def test_decoder_state_survives(stream, tracker):
    logs = (LogScope(2, "log.000007", stream, tracker), LogScope(1, "log.000006", {}, {}))
    state = DecoderState(12, 9, 4, 3, True, 77, logs, continuity=CONTINUITY)
    back = DecoderState.from_bytes(state.to_bytes())
    assert back == state
    found = back.logs[0].stream
    assert [type(value) for value in found.values()] == [type(value) for value in stream.values()]


def test_row_mapper_state_survives():
    progress = Progress(17, 3, 4, 0, 0, True, {("a.b", "c"): 3, ("a", "b.c"): 1}, 2)
    waiting = QuarantinedTable("a", "b", "1:0:f:4:0", 5, 6, "why", dead_letter=9, progress=progress)
    state = RowMapperState(
        12,
        progress,
        "8.0.15",
        (PendingXa("x", 3, 9, (OffsetRange(4, 5),)),),
        (waiting, replace(waiting, table="c", progress=None)),
        {"rows": 7},
        continuity=CONTINUITY,
    )
    assert RowMapperState.from_bytes(state.to_bytes()) == state
    assert RowMapperState.from_bytes(RowMapperState(0).to_bytes()) == RowMapperState(0)


def test_the_note_of_a_tables_topic_survives():
    note = TableTopic("s.a.b", "id", "a", "b", None, "", 7, "f" * 64)
    assert TableTopic.from_bytes(note.to_bytes()) == note
    assert note.key == b"rowmapper:s.a.b"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ReaderState(0, "bin.000009", 900), ReaderState(0, "bin.000010", 4)),
        (ReaderState(0, "bin.000009", 900), ReaderState(1, "bin.000001", 4)),
        (ReaderState(0, "bin.000009", 900, chunk=1), ReaderState(0, "bin.000009", 901)),
        (DecoderState(7, 3, 0), DecoderState(7, None, 0)),
        (DecoderState(7, None, 3), DecoderState(7, None, 4)),
        (RowMapperState(7), RowMapperState(7, Progress(3))),
        (RowMapperState(7, Progress(3, 2)), RowMapperState(7, Progress(3, 3))),
        (RowMapperState(7, Progress(9, 2)), RowMapperState(8)),
    ],
)
def test_the_order_of_states(before, after):
    assert before.precedes(after)
    assert not after.precedes(before)
    assert not before.precedes(before)


def test_files_of_other_names_have_no_order():
    first, second = ReaderState(0, "bin.000009", 900), ReaderState(0, "log.000001", 4)
    assert not first.precedes(second)
    assert not second.precedes(first)


@pytest.mark.parametrize("bad", [{1: 2}, {"a": {1, 2}}, {"a": [object()]}])
def test_state_that_is_not_plain_is_refused(bad):
    with pytest.raises(TypeError, match="plain"):
        DecoderState(0, logs=(LogScope(0, "f", bad, {}),)).to_bytes()


def test_fingerprint_is_that_of_the_specification():
    # "int" is a vector of the Avro project's own tests: fingerprint 0x7275d51a3f395c8f.
    assert bytes.fromhex(fingerprint('"int"', "CRC-64-AVRO")) == (0x7275D51A3F395C8F).to_bytes(8, "little")
    data = READER_STATE.to_bytes()
    assert data[:2] == b"\xc3\x01"
    assert data[2:10] == single_object.schema_fingerprint("ReaderState")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not c3 01"),
        (b"\x00\x00\x00\x00\x01", "not c3 01"),
        (b"\xc3\x01" + bytes(8), "fingerprint 0000000000000000"),
        (READER_STATE.to_bytes()[:-3], "cut or damaged"),
        (READER_STATE.to_bytes() + b"\x00", "1 bytes are left over"),
    ],
)
def test_foreign_bytes_are_refused_in_words(data, message):
    with pytest.raises(SingleObjectError, match=message):
        ReaderState.from_bytes(data)


@pytest.mark.parametrize("kind", [ReaderState, DecoderState, RowMapperState])
def test_a_state_of_another_version(kind):
    service = kind.__name__.removesuffix("State").lower()
    with pytest.raises(UserError, match=f"'millrace state rebuild {service}'") as caught:
        stored_state(kind, b"\xc3\x01" + bytes(8), "shop.state")
    assert caught.value.exit_code is ExitCode.DATA
    assert stored_state(kind, None, "shop.state") is None


@pytest.mark.parametrize("name", schema_names())
def test_every_schema_stands_alone(name):
    fastavro.parse_schema(load_schema(name))
