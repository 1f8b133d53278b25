"""What is said of events that cannot be read or written: the whole texts, each caused by what little does."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from millrace.binlog.cursor import Cursor
from millrace.binlog.declaration import Event, read_structures, write_structures
from millrace.binlog.encryption import _cipher
from millrace.binlog.errors import BinlogError, TruncatedError, UnsupportedError
from millrace.binlog.event_codec import decode_beginning, decode_event
from millrace.binlog.events import (
    CreateFileEvent,
    FormatDescriptionEvent,
    GtidFlags3,
    GtidLogEvent,
    GtidTaggedLogEvent,
    HeartbeatLogEvent,
    HeartbeatLogEventV2,
    LoadEvent,
    MariadbGtidEvent,
    MariadbGtidListEvent,
    PartialRowDataEvent,
    PreGaUpdateRowsEvent,
    PreviousGtidsLogEvent,
    QueryEvent,
    RotateEvent,
    StartEventV3,
    StatusVariables,
    TableMapEvent,
    TransactionPayloadEvent,
    UpdatedDbNames,
    UpdateRowsEvent,
    UserVarEvent,
    ViewChangeEvent,
    WriteRowsEvent,
    WriteRowsEventV1,
)
from millrace.binlog.events.compressed import decompress_record
from millrace.binlog.events.gtid import (
    GtidInterval,
    GtidSetEntry,
    _read_tagged_field,
    pack_varint,
    read_varint,
)
from millrace.binlog.events.transaction import unpack_payload
from millrace.binlog.fields import _fixed_bytes_type, _read_nul_text, _write_nul_text, read_lenenc
from millrace.binlog.header import EventHeader
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.types import EventType
from tests.unit.binlog.cases import CASES, MARIADB_118, MYSQL_97, make_event, state_of

E = TypeVar("E", bound=Event)


def real(kind: type[E], **fields: Any) -> E:
    """The last event of a kind among the cases, with some fields changed."""
    found = [case.event for case in CASES if type(case.event) is kind]
    return replace(found[-1], **fields)


def read(kind: type[Event], data: bytes, post_header_length: int = 0) -> Any:
    return kind.decode_fields(data, 0, len(data), post_header_length)


def tagged(*fields: bytes, last: int = 0, version: int = 1, size: int | None = None) -> bytes:
    """A GTID_TAGGED_LOG_EVENT of these fields, each with its number."""
    content = pack_varint(last) + b"".join(fields)
    whole = len(content) + 2 if size is None else size
    return pack_varint(version) + pack_varint(whole) + content


NUMBER = pack_varint(2) + b"\x02"
SID = pack_varint(1) + b"\x00" * 16
ENTRY = GtidSetEntry(b"\x11" * 16, "a", (GtidInterval(1, 2),))

CAUSES: list[tuple[Callable[[], object], str]] = [
    # compressed records of MariaDB
    (
        lambda: decompress_record(b"\x01"),
        "a compressed record starts with a byte that has its highest bit set",
    ),
    (
        lambda: decompress_record(b"\x91\x01x"),
        "compression algorithm 1; 0, zlib, is the only one that is known",
    ),
    (
        lambda: decompress_record(b"\x85\0\0\0\0\0x"),
        "the length of a compressed record takes 1 to 4 bytes, not 5",
    ),
    (
        lambda: decompress_record(b"\x81\x09" + zlib.compress(b"four")),
        "a compressed record ends after 4 of 9 bytes",
    ),
    (
        lambda: decompress_record(b"\x81\x03" + zlib.compress(b"four")),
        "a compressed record says 3 bytes and unpacks to more",
    ),
    # user variables
    (
        lambda: real(UserVarEvent, is_null=1, type=None, charset=None, value=b"x").encode_fields(0),
        "value is given, where is_null is 1",
    ),
    (
        lambda: real(UserVarEvent, is_null=0, type=0, charset=None, value=b"x").encode_fields(0),
        "charset is None, where is_null is 0",
    ),
    # the heads of logs
    (lambda: RotateEvent(5, "x").encode_fields(0), "a log of this version has no position"),
    (
        lambda: read(FormatDescriptionEvent, b"\x04\0" + b"8.0.1".ljust(50, b"\0") + b"\0\0\0\0\x13"),
        "a format description of this server version names a checksum algorithm",
    ),
    (
        lambda: real(FormatDescriptionEvent, server_version="5.5.1", checksum_algorithm=1).encode_fields(0),
        "server version '5.5.1' decides whether a checksum algorithm is named, and does not agree with 1",
    ),
    (
        lambda: real(FormatDescriptionEvent, server_version="8.0." + "1" * 60).encode_fields(0),
        "a server version has at most 50 bytes, not 64",
    ),
    (
        lambda: HeartbeatLogEvent(None, "1234567\0").encode_fields(0),
        "a zero byte, the eighth, tells a heartbeat's position from its name",
    ),
    (
        lambda: read(HeartbeatLogEventV2, b"\x01\x01x\x03\x01\x07\x00"),
        "a heartbeat's second field is its position, not 3 of 1 bytes",
    ),
    (
        lambda: LogFormat(real(FormatDescriptionEvent, header_length=13)),
        "common headers of 13 bytes in a v4 log",
    ),
    # group replication
    (
        lambda: real(ViewChangeEvent, view_id="1" * 41).encode_fields(52),
        "a view id has at most 40 bytes, not 41",
    ),
    # GTIDs
    (
        lambda: read(GtidLogEvent, bytes(25) + b"\x07" + bytes(16), 42),
        "a logical timestamp of type 7; 2 is the one that servers write",
    ),
    (lambda: real(GtidLogEvent, sid=b"short").encode_fields(42), "a sid has 16 bytes, not 5"),
    (
        lambda: real(GtidLogEvent, last_committed=None).encode_fields(42),
        "a log of this version has last committed",
    ),
    (
        lambda: real(GtidLogEvent, immediate_commit_timestamp=1 << 55).encode_fields(42),
        f"{1 << 55} does not leave the highest bit of 7 bytes free",
    ),
    (
        lambda: real(
            GtidLogEvent, immediate_commit_timestamp=None, original_commit_timestamp=1
        ).encode_fields(42),
        "original_commit_timestamp is given, where immediate_commit_timestamp is None",
    ),
    (
        lambda: real(GtidLogEvent, last_committed=None, sequence_number=None, lt_type=None).encode_fields(25),
        "a log of this version has no immediate commit timestamp",
    ),
    (
        lambda: replace(real(PreviousGtidsLogEvent), format=0, entries=(ENTRY,)).encode_fields(0),
        "tag 'a' in a set of the untagged format",
    ),
    (lambda: read_varint(b"\x01", 0, 1), "integer needs 2 bytes at offset 0, 1 are left"),
    (lambda: read_varint(b"\x01\x00", 0, 2), "0 at offset 0 is not in its shortest form"),
    (lambda: read(GtidTaggedLogEvent, tagged(version=2)), "a GTID of serialization version 2; 1 is known"),
    (
        lambda: read(GtidTaggedLogEvent, tagged(last=50)),
        "a GTID with field 50, which may not be ignored and is not known",
    ),
    (lambda: read(GtidTaggedLogEvent, tagged(NUMBER, SID)), "field 1 of a GTID comes after field 2"),
    (lambda: read(GtidTaggedLogEvent, tagged(NUMBER)), "a GTID has fields [2], and not all of [0, 1, 2, 3]"),
    (lambda: _read_tagged_field(1, pack_varint(256) + b"\0" * 16, 0, 18), "256 in place of a byte of a sid"),
    (
        lambda: _read_tagged_field(3, pack_varint(5) + b"abc", 0, 4),
        "tag needs 5 bytes at offset 1, 3 are left",
    ),
    (
        lambda: real(MariadbGtidEvent, flags2=2, commit_id=None).encode_fields(19),
        "commit_id is None, where flags2 is 2",
    ),
    (
        lambda: real(MariadbGtidListEvent, gl_flags=16, entries=()).encode_fields(4),
        "flags 16, 0 entries: more than 4 and 28 bits",
    ),
    (
        lambda: PartialRowDataEvent(2, 1, 0, 40, b"").encode_fields(9),
        "orig_event_size is given, where flags is 0",
    ),
    # LOAD DATA
    (
        lambda: replace(real(LoadEvent), escaped=b"ab").encode_fields(18),
        "the options of LOAD_EVENT are one byte each",
    ),
    (
        lambda: replace(real(CreateFileEvent), file_name="a\0b").encode_fields(18),
        "'a\\x00b' holds a zero byte, which would end it",
    ),
    # statements
    (lambda: UpdatedDbNames(2, ("one",)).write(), "updated_db_names counts 2 and has 1 names"),
    (
        lambda: read_structures(GtidFlags3, 1, b"\x04abc", 0, 4),
        "start_alter_seq_no needs 8 bytes at offset 1, 3 are left",
    ),
    (lambda: write_structures([GtidFlags3(4, None)]), "start_alter_seq_no is None, where flags is 4"),
    (
        lambda: StatusVariables(codes=b"\x00").write(),
        "status variable 0 (flags2) is announced in codes and is None",
    ),
    (lambda: real(QueryEvent).encode_fields(11), "a log of this version has no status variables"),
    # rows
    (
        lambda: read(WriteRowsEvent, b"\x01\0\0\0\0\0" + b"\0\0" + b"\x01\0", 10),
        "a length that counts itself, at offset 8, cannot be 1",
    ),
    (
        lambda: real(UpdateRowsEvent, columns_before_image=b"").encode_fields(10),
        "columns_before_image has 0 bytes, where column_count asks for 1",
    ),
    (
        lambda: real(WriteRowsEventV1, extra_row_info=b"x").encode_fields(8),
        "a log of this version has no extra row info",
    ),
    (
        lambda: real(PreGaUpdateRowsEvent, columns_after_image=b"\x01").encode_fields(8),
        "PRE_GA_UPDATE_ROWS_EVENT has one bitmap for both images",
    ),
    (
        lambda: real(WriteRowsEvent, columns_before_image=b"\x01").encode_fields(10),
        "an event of this type has no columns before image",
    ),
    (
        lambda: read(TableMapEvent, b"\x01\0\0\0\0\0" + b"\0\0" + b"\x01ax" + b"\x01t\0\x00\x00", 8),
        "text<uint8> NUL at offset 8 does not end with a zero byte",
    ),
    # transactions in one event
    (
        lambda: real(TransactionPayloadEvent, field_order=(2,), compression_type=None).encode_fields(0),
        "field 2 is announced in field_order and is None",
    ),
    (lambda: list(unpack_payload([b"ab"], 5, 255)), "a payload of 5 bytes ends 3 bytes before that"),
    (
        lambda: read(TransactionPayloadEvent, b"\x01\x01\x02\x01\x01\x02\x00"),
        "field 1 in the head of a payload: repeated or out of range",
    ),
    (
        lambda: read(TransactionPayloadEvent, b"\x01\x02\x02\x02\x00"),
        "field 1 in the head of a payload has 2 bytes",
    ),
    # fields and headers
    (lambda: _fixed_bytes_type(4).write(b"abc"), "bytes[4] holds 4 bytes, not 3"),
    (lambda: read_lenenc(b"\xfb", 0, 1), "length-encoded integer: 251 does not start one (offset 0)"),
    (lambda: read_lenenc(b"\xfc\x05\x00", 0, 3), "length-encoded integer: 5 at offset 0 could be shorter"),
    (
        lambda: real(StartEventV3, server_version="a" * 51).encode_fields(56),
        "text[50] holds 50 bytes, not 51",
    ),
    (lambda: _read_nul_text(b"abc", 0, 3), "text NUL at offset 0 has no zero byte before offset 3"),
    (lambda: _write_nul_text("a\0b"), "'a\\x00b' holds a zero byte, which would end it"),
    (
        lambda: EventHeader(0, 0, 0, 0, 0, 0, b"ab").encode(20),
        "2 bytes of extra headers do not make a header of 20",
    ),
    (lambda: Cursor(b"\xff", 0, 1).lenenc("a length"), "a length: 255 does not start one (offset 0)"),
]


@pytest.mark.parametrize(("cause", "text"), CAUSES, ids=[text[:40] for _, text in CAUSES])
def test_the_text(cause: Callable[[], object], text: str) -> None:
    with pytest.raises(BinlogError) as caught:
        cause()
    assert caught.value.message == text


def test_an_event_without_room_for_its_checksum() -> None:
    data = make_event(3, b"", checksum=False)[:9] + (21).to_bytes(4, "little") + bytes(8)
    with pytest.raises(TruncatedError) as caught:
        decode_event(data, state_of(MYSQL_97), verify=False)
    assert caught.value.message == "an event of 21 bytes has no room for its checksum"


def test_a_post_header_that_is_longer_than_its_event() -> None:
    origin = real(FormatDescriptionEvent)
    lengths = bytearray(origin.post_header_lengths)
    lengths[EventType.XID_EVENT - 1] = 30
    state = StreamState(LogFormat(replace(origin, post_header_lengths=bytes(lengths))))
    with pytest.raises(TruncatedError) as caught:
        decode_event(make_event(EventType.XID_EVENT, bytes(8)), state)
    assert caught.value.message == "a post-header of 30 bytes, 8 are there"


def test_an_encrypted_log_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(MARIADB_118)
    start = make_event(EventType.START_ENCRYPTION_EVENT, b"\x01" + bytes(16))
    decode_event(start, state)
    text = "the log is encrypted from the START_ENCRYPTION event on; its key is needed"
    event = make_event(EventType.ANNOTATE_ROWS_EVENT, b"x" * 100)
    with pytest.raises(UnsupportedError) as caught:
        decode_event(event, state)
    assert caught.value.message == text
    with pytest.raises(UnsupportedError) as caught:
        decode_beginning(event[:50], len(event), 0, event[-4:], state)
    assert caught.value.message == text
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(UnsupportedError) as caught:
        _cipher(bytes(16), "ECB")
    assert caught.value.message == (
        "reading an encrypted log needs the package cryptography, which the extra 'encryption' brings"
    )
