"""Every event type, in both directions, whole, cut short and with bytes to spare."""

import zlib

import pytest

from millrace.binlog.checksum import compute_checksum
from millrace.binlog.errors import (
    BinlogError,
    ChecksumError,
    EncodeError,
    InvalidValueError,
    MissingStateError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event, seal
from millrace.binlog.events import (
    EVENTS,
    AutoIncrement,
    CollationOfCharset,
    CollationsOfCharsets,
    FormatDescriptionEvent,
    GtidFlags3,
    GtidLogEvent,
    Invoker,
    MariadbGtidEvent,
    QueryEvent,
    RotateEvent,
    RowsEvent,
    SessionCharset,
    StartEventV3,
    StatusVariables,
    TableMapEvent,
    UnknownEvent,
    UpdatedDbNames,
    WriteRowsCompressedEvent,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.events.query import VARIABLES
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag
from tests.unit.binlog.cases import CASES, MYSQL_97, Case, make_event, state_of
from tests.unit.binlog.vectors import FORMATS

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def is_first(case: Case) -> bool:
    return isinstance(case.event, FormatDescriptionEvent | StartEventV3)


@every_case
def test_decodes_to_its_values(case: Case) -> None:
    decoded = decode_event(case.data, state_of(case.server))
    assert decoded.event == case.event
    assert decoded.header.event_size == len(case.data)
    assert decoded.header.type_code == case.data[4]


@every_case
def test_is_built_from_its_values(case: Case) -> None:
    state = state_of(case.server)
    decoded = decode_event(case.data, state)
    header = decoded.header
    rebuilt = BinlogEvent(
        EventHeader(
            header.timestamp,
            header.type_code,
            header.server_id,
            0,
            header.next_position,
            header.flags,
            header.extra_headers,
        ),
        case.event,
        decoded.checksum,
        decoded.post_header_extra,
    )
    assert encode_event(rebuilt, state) == case.data
    assert seal(rebuilt, state) == case.data


@every_case
def test_cut_anywhere_is_an_error_or_another_event(case: Case) -> None:
    """What is accepted of a shorter event, with a length that says so, is written back as it was."""
    with_checksum = decode_event(case.data, state_of(case.server)).checksum is not None
    content = case.data[:-4] if with_checksum else case.data
    for size in range(19, len(content)):
        state = state_of(case.server)
        data = content[:9] + (size + 4 * with_checksum).to_bytes(4, "little") + content[13:size]
        if with_checksum:
            data += compute_checksum(data)
        try:
            decoded = decode_event(data, state)
        except BinlogError:
            continue
        assert encode_event(decoded, state) == data


@every_case
def test_cut_without_its_length_is_truncated(case: Case) -> None:
    for size in range(len(case.data)):
        with pytest.raises((TruncatedError, UnsupportedError)):
            decode_event(case.data[:size], state_of(case.server))


@every_case
def test_bytes_to_spare(case: Case) -> None:
    """A byte more is an error, or belongs to the last field; never is it dropped."""
    state = state_of(case.server)
    with_checksum = decode_event(case.data, state).checksum is not None
    content = (case.data[:-4] if with_checksum else case.data) + b"\x2a"
    data = content[:9] + (len(content) + 4 * with_checksum).to_bytes(4, "little") + content[13:]
    if with_checksum:
        data += compute_checksum(data)
    try:
        decoded = decode_event(data, state)
    except BinlogError:
        return
    assert encode_event(decoded, state) == data
    assert decoded.event != case.event or decoded.post_header_extra


@every_case
def test_one_flipped_bit_fails_the_checksum(case: Case) -> None:
    if decode_event(case.data, state_of(case.server)).checksum is None:
        return
    data = case.data[:-1] + bytes([case.data[-1] ^ 0x10])
    with pytest.raises(ChecksumError, match="checksum 0x"):
        decode_event(data, state_of(case.server))
    state = state_of(case.server)
    assert encode_event(decode_event(data, state, verify=False), state) == data


def test_every_declared_type_has_a_case() -> None:
    covered = {type(case.event) for case in CASES}
    assert {declaration.event_class for declaration in EVENTS.values()} - covered == set()


def test_every_type_code_is_declared_or_named_here() -> None:
    undeclared = {event_type for event_type in EventType if event_type not in EVENTS}
    assert undeclared == {EventType.UNKNOWN_EVENT}


def test_values_do_not_change() -> None:
    event = XidEvent(5)
    with pytest.raises(AttributeError, match="XidEvent cannot be changed"):
        event.xid = 6  # type: ignore[misc]
    with pytest.raises(AttributeError):
        event.other = 6  # type: ignore[attr-defined]
    assert event == XidEvent(5) != XidEvent(6)
    assert len({event, XidEvent(5)}) == 1


def test_nothing_but_a_start_comes_without_format() -> None:
    with pytest.raises(MissingStateError, match="event type 16 comes before any format description"):
        decode_event(make_event(16, b"\0" * 8), StreamState())


@pytest.mark.parametrize("checksum", [True, False])
def test_rotate_at_the_head_of_a_stream(checksum: bool) -> None:
    """It comes before the format description, with a checksum or without one."""
    state = StreamState()
    data = make_event(4, (4).to_bytes(8, "little") + b"mysql-bin.000009", checksum=checksum)
    decoded = decode_event(data, state)
    assert decoded.event == RotateEvent(4, "mysql-bin.000009")
    assert (decoded.checksum is not None) == checksum
    assert encode_event(decoded, state) == data


def test_artificial_rotate_without_checksum_in_a_log_with_checksums() -> None:
    state = state_of(MYSQL_97)
    data = bytearray(make_event(4, (4).to_bytes(8, "little") + b"mysql-bin.000009", checksum=False))
    data[17] = 0x20
    assert decode_event(bytes(data), state).event == RotateEvent(4, "mysql-bin.000009")


@pytest.mark.parametrize(("version", "size"), [(1, 75), (3, 69), (4, 75)])
def test_start_event_whose_header_is_not_of_its_version(version: int, size: int) -> None:
    """A v1 log has headers of 13 bytes, v2 and v3 logs of 19."""
    start = version.to_bytes(2, "little") + b"4.0.0".ljust(50, b"\0") + bytes(4)
    header = bytes(4) + b"\1" + bytes(4) + size.to_bytes(4, "little") + bytes(6)
    with pytest.raises((InvalidValueError, UnsupportedError), match=f"version {version}"):
        decode_event(header[: size - 56] + start, StreamState())


def test_in_use_flag_is_outside_the_checksum() -> None:
    data = bytearray.fromhex(FORMATS[MYSQL_97])
    for flag in (0, 1):
        data[17] = data[17] & ~1 | flag
        assert isinstance(decode_event(bytes(data), StreamState()).event, FormatDescriptionEvent)


def test_header_whose_length_is_wrong() -> None:
    data = make_event(16, b"\0" * 8)
    longer = data[:9] + (len(data) + 1).to_bytes(4, "little") + data[13:]
    with pytest.raises(TruncatedError, match="says 32 bytes, 31 are there"):
        decode_event(longer, state_of(MYSQL_97))
    shorter = data[:9] + (12).to_bytes(4, "little") + data[13:]
    with pytest.raises(InvalidValueError, match="says 12 bytes, 31 are there"):
        decode_event(shorter, state_of(MYSQL_97))


def format_with(**lengths: int) -> StreamState:
    """A format description of MySQL 9.7 with other post-header lengths."""
    origin = decode_event(bytes.fromhex(FORMATS[MYSQL_97]), StreamState()).event
    assert isinstance(origin, FormatDescriptionEvent)
    post_header_lengths = bytearray(origin.post_header_lengths)
    for name, length in lengths.items():
        post_header_lengths[EventType[name] - 1] = length
    state = StreamState()
    state.observe(FormatDescriptionEvent(4, origin.server_version, 0, 19, bytes(post_header_lengths), 1))
    return state


def test_longer_post_header_is_kept() -> None:
    state = format_with(XID_EVENT=3, TABLE_MAP_EVENT=12)
    data = make_event(16, b"new" + (7).to_bytes(8, "little"))
    decoded = decode_event(data, state)
    assert (decoded.event, decoded.post_header_extra) == (XidEvent(7), b"new")
    assert encode_event(decoded, state) == data


def test_shorter_post_header_is_an_older_layout_or_refused() -> None:
    state = format_with(TABLE_MAP_EVENT=6, ROTATE_EVENT=6)
    table_map = TableMapEvent(70000, 1, "db", "t", b"\3", b"", b"\0")
    data = seal(BinlogEvent(EventHeader(1, 19, 1, 0), table_map), state)
    assert data[19:25] == bytes.fromhex("701101000100")
    assert decode_event(data, state).event == table_map
    state = format_with(MARIADB_GTID_EVENT=8) if False else format_with(EXECUTE_LOAD_QUERY_EVENT=20)
    with pytest.raises(UnsupportedError, match="EXECUTE_LOAD_QUERY_EVENT with a post-header of 20 bytes"):
        decode_event(make_event(18, b"\0" * 40), state)


def test_extra_headers() -> None:
    origin = FormatDescriptionEvent(4, "5.1.63-google-debug-log", 0, 31, bytes(26), None)
    state = StreamState()
    state.observe(origin)
    header = EventHeader(1, 16, 2, 39, 100, 0, b"group-id-012")
    data = encode_event(BinlogEvent(header, XidEvent(1)), state)
    assert data == header.encode(31) + (1).to_bytes(8, "little")
    assert decode_event(data, state) == BinlogEvent(header, XidEvent(1))


def test_unknown_type_keeps_its_bytes() -> None:
    state = state_of(MYSQL_97)
    data = make_event(200, b"whatever")
    decoded = decode_event(data, state)
    assert decoded.event == UnknownEvent(b"whatever")
    assert encode_event(decoded, state) == data


def test_values_that_do_not_fit() -> None:
    state = state_of(MYSQL_97)
    header = EventHeader(1, 16, 1, 0)
    with pytest.raises(EncodeError, match="XidEvent cannot be written"):
        encode_event(BinlogEvent(header, XidEvent(1 << 64)), state)
    table_map = TableMapEvent(1, 1, "d" * 300, "t", b"", b"", b"")
    with pytest.raises(EncodeError, match="TableMapEvent cannot be written"):
        encode_event(BinlogEvent(EventHeader(1, 19, 1, 0), table_map), state)
    unmatched = TableMapEvent(1, 1, "d", "t", b"\3\3", b"", b"\0\0")
    with pytest.raises(EncodeError, match="null_bits has 2 bytes, where column_types asks for 1"):
        encode_event(BinlogEvent(EventHeader(1, 19, 1, 0), unmatched), state)


@pytest.mark.parametrize(
    ("after_the_name", "is_whole"),
    [("020303", True), ("02030300", False), ("0203030001", True), ("00", False), ("0000", True)],
)
def test_a_table_map_ends_after_the_types_or_is_whole(after_the_name: str, is_whole: bool) -> None:
    body = bytes.fromhex("0100000000000100016400017400" + after_the_name)
    if not is_whole:
        with pytest.raises(TruncatedError):
            TableMapEvent.decode_fields(body, 0, len(body), 8)
        return
    event = TableMapEvent.decode_fields(body, 0, len(body), 8)
    assert event.encode_fields(8) == body


def test_status_variables_stop_at_an_unknown_code() -> None:
    block = bytes.fromhex("0000000000fa010203")
    variables, _ = StatusVariables.read(block, 0, len(block))
    assert variables == StatusVariables(codes=b"\0", unknown=b"\xfa\1\2\3", flags2=0)
    assert variables.write() == block


# Bytes and what they say, for each code, by MySQL's statement_events.h and MariaDB's log_event.cc.
VARIABLE_VECTORS = {
    0: ("00400000", 0x4000),
    1: ("0000204500000000", 0x45200000),
    2: ("0373746400", "std"),
    3: ("02000100", AutoIncrement(2, 1)),
    4: ("2d002d000800", SessionCharset(45, 45, 8)),
    5: ("062b30323a3030", "+02:00"),
    6: ("03737464", "std"),
    7: ("0a00", 10),
    8: ("0800", 8),
    9: ("0300000000000000", 3),
    10: ("78000000", 120),
    11: ("01750168", Invoker("u", "h")),
    12: ("0261006200", UpdatedDbNames(2, ("a", "b"))),
    13: ("40e201", 123456),
    14: ("0100000000000000", 1),
    15: ("0200000000000000", 2),
    16: ("01", 1),
    17: ("0700000000000000", 7),
    18: ("ff00", 255),
    19: ("01", 1),
    20: ("01", 1),
    21: ("00", 0),
    128: ("40e201", 123456),
    129: ("0900000000000000", 9),
    130: ("00", GtidFlags3(0, None)),
    131: ("012d000201", CollationsOfCharsets((CollationOfCharset(45, 258),))),
}


def test_every_status_variable_has_a_vector() -> None:
    assert set(VARIABLE_VECTORS) == set(VARIABLES)


@pytest.mark.parametrize("code", VARIABLE_VECTORS)
def test_status_variable(code: int) -> None:
    """In both directions, with another after it, and cut short."""
    raw, value = VARIABLE_VECTORS[code]
    block = bytes([code]) + bytes.fromhex(raw)
    name = VARIABLES[code][0]
    following = b"\x13\1" if code != 19 else b""
    variables, _ = StatusVariables.read(block + following, 0, len(block + following))
    assert getattr(variables, name) == value
    assert variables.codes == block[:1] + following[:1]
    assert StatusVariables(codes=block[:1], **{name: value}).write() == block
    for size in range(1, len(block)):
        with pytest.raises(BinlogError, match=rf"status variable {code} \({name}\)"):
            StatusVariables.read(block[:size], 0, size)


def test_names_that_are_not_utf8() -> None:
    state = state_of(MYSQL_97)
    query = QueryEvent(1, 0, 0, StatusVariables(), "caf\udce9", b"SELECT '\xe9'")
    data = seal(BinlogEvent(EventHeader(1, 2, 1, 0), query), state)
    assert b"caf\xe9\0SELECT '\xe9'" in data
    assert decode_event(data, state).event == query


def test_table_maps_end_with_their_statement() -> None:
    state = state_of(MYSQL_97)
    table_map = TableMapEvent(70, 1, "db", "t", b"\3", b"", b"\0")
    decode_event(seal(BinlogEvent(EventHeader(1, 19, 1, 0), table_map), state_of(MYSQL_97)), state)
    for flags, left in ((0, 1), (1, 0)):
        rows = WriteRowsEvent(70, flags, b"", 1, b"", b"\1", b"\0\1\0\0\0")
        data = seal(BinlogEvent(EventHeader(1, 30, 1, 0), rows), state_of(MYSQL_97))
        decoded = decode_event(data, state)
        assert decoded.table_map == table_map
        assert len(state.table_maps) == left
    assert decode_event(data, state).table_map is None
    state.observe(table_map)
    decode_event(bytes.fromhex(FORMATS[MYSQL_97]), state)
    assert state.table_maps == {}


def test_state_is_saved_and_restored() -> None:
    state = state_of(MYSQL_97)
    state.observe(TableMapEvent(1 << 40, 1, "db", "t", b"\3", b"", b"\0"))
    restored = StreamState.restore(state.save())
    assert restored.save() == state.save()
    assert restored.table_maps == state.table_maps
    assert restored.format is not None
    assert restored.format.checksum == 1
    assert StreamState.restore(StreamState().save()).format is None


def test_compressed_rows_unpack() -> None:
    case = next(case for case in CASES if isinstance(case.event, WriteRowsCompressedEvent))
    assert isinstance(case.event, RowsEvent)
    assert case.event.rows == b"\0\1\2\3"


def test_gtids_as_text() -> None:
    sid = bytes.fromhex("cc0e7efde58511f1886502fc00000001")
    assert GtidLogEvent(0, sid, 5).gtid == "cc0e7efd-e585-11f1-8865-02fc00000001:5"
    assert MariadbGtidEvent(9, 1, 0).gtid(4000000000) == "1-4000000000-9"


def test_dummy_rows_event_ends_its_statement() -> None:
    """A rows event with the largest table id has neither rows nor a table map; it ends those of others."""
    state = state_of(MYSQL_97)
    state.observe(TableMapEvent(70, 1, "db", "t", b"\3", b"", b"\0"))
    dummy = WriteRowsEvent((1 << 48) - 1, 1, b"", 0, b"", b"", b"")
    data = seal(BinlogEvent(EventHeader(1, 30, 1, 0), dummy), state_of(MYSQL_97))
    decoded = decode_event(data, state)
    assert decoded.event == dummy
    assert decoded.table_map is None
    assert state.table_maps == {}


def test_table_id_of_another_table() -> None:
    """The latest table map of an id counts, also in the middle of a statement."""
    state = state_of(MYSQL_97)
    rows = seal(
        BinlogEvent(EventHeader(1, 30, 1, 0), WriteRowsEvent(70, 0, b"", 1, b"", b"\1", b"\1")),
        state_of(MYSQL_97),
    )
    for name in ("first", "second"):
        state.observe(TableMapEvent(70, 1, "db", name, b"\3", b"", b"\0"))
        table_map = decode_event(rows, state).table_map
        assert table_map is not None
        assert table_map.table == name


def test_unknown_type_that_may_be_ignored() -> None:
    """IGNORABLE_F in its header changes nothing: its bytes are kept. Server ids are unsigned."""
    state = state_of(MYSQL_97)
    header = EventHeader(1, 99, 4_000_000_000, 0, 0, HeaderFlag.IGNORABLE_F)
    data = seal(BinlogEvent(header, UnknownEvent(b"news")), state)
    decoded = decode_event(data, state)
    assert decoded.event == UnknownEvent(b"news")
    assert decoded.header.flags & HeaderFlag.IGNORABLE_F
    assert decoded.header.server_id == 4_000_000_000


def test_checksum_of_a_few_bytes() -> None:
    """What is too short for flags has none to leave out."""
    for data in (b"", bytes(4) + b"\x0f", make_event(15, b"")[:17]):
        assert compute_checksum(data) == zlib.crc32(data).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("field", "version", "has_checksum"),
    [
        ("10.1.23-MariaDB\0log", "10.1.23-MariaDB", True),
        ("5.6.0\0-MariaDB", "5.6.0", False),
        ("8.0.30-log", "8.0.30-log", True),
        ("\0005.5", "", False),
    ],
)
def test_the_servers_version_ends_at_a_zero_byte(field: str, version: str, has_checksum: bool) -> None:
    """As the servers read it; the field keeps what it takes to give the same bytes again."""
    event = FormatDescriptionEvent(4, field, 0, 19, bytes(27), 1 if has_checksum else None)
    data = seal(BinlogEvent(EventHeader(0, event.event_type, 1, 0, 4, 0), event), StreamState())
    state = StreamState()
    decoded = decode_event(data, state)
    assert decoded.event == event
    assert decoded.event.version == version
    assert (state.format.checksum is ChecksumAlgorithm.CRC32) is has_checksum
    assert encode_event(decoded, StreamState()) == data
    assert StartEventV3(3, field, 0).version == version
