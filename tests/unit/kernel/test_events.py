"""The kernel for events gives what the reference gives: bytes, state, errors; also for damaged events."""

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import kernel
from millrace.avro.events import EventSerializer
from millrace.avro.plans import Condition, Layout, Wire
from millrace.binlog.checksum import compute_checksum
from millrace.binlog.declaration import EVENTS
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event, seal
from millrace.binlog.events import (
    FormatDescriptionEvent,
    GtidLogEvent,
    IncidentEvent,
    MariadbGtidEvent,
    QueryEvent,
    RowsQueryLogEvent,
    StatusVariables,
    StopEvent,
    TableMapEvent,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.events.query import VARIABLES
from millrace.binlog.fields import pack_lenenc
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from millrace.binlog_command.records import LogDecoder, LogRecord, RawEvent
from millrace.stage import Record
from tests.unit.binlog.cases import CASES, Case, make_event
from tests.unit.binlog.vectors import FORMATS
from tests.unit.kernel.both import NOT_BUILT, compare, decode, deserializer, raw_records

pytestmark = pytest.mark.skipif(not kernel.built("events"), reason=NOT_BUILT)

SID = bytes(range(16))


def test_the_kernel_has_the_same_numbers() -> None:
    source = Path(kernel.__file__).with_name("events.pyx").read_text("utf-8")
    for prefix, numbers in (("LAYOUT", Layout), ("WIRE", Wire), ("CONDITION", Condition)):
        found = dict(re.findall(rf"^    {prefix}_(\w+) = (\d+)", source, re.MULTILINE))
        assert found == {str(each.name): str(int(each)) for each in numbers}


def placed(events: list[bytes]) -> list[tuple[int, bytes]]:
    position, found = 4, []
    for data in events:
        found.append((position, data))
        position += len(data)
    return found


def cases_by_server() -> list[Any]:
    by_server: dict[str, list[Case]] = {}
    for case in CASES:
        by_server.setdefault(case.server, []).append(case)
    return [pytest.param(server, cases, id=server) for server, cases in by_server.items()]


@pytest.mark.parametrize(("server", "cases"), cases_by_server())
@pytest.mark.parametrize("batch", [1, 1000])
def test_every_event_of_the_codecs_cases(server: str, cases: list[Case], batch: int) -> None:
    log = [bytes.fromhex(FORMATS[server]), *(case.data for case in cases)]
    written = compare(raw_records(placed(log)), batch)
    assert len(written) >= len(log)


def log_of(events: list[Any], version: str = "8.0.30", checksum: int = 1) -> list[bytes]:
    lengths = bytes(EVENTS[code].post_header_lengths[-1] if code in EVENTS else 0 for code in range(1, 165))
    state = StreamState()
    events = [FormatDescriptionEvent(4, version, 0, 19, lengths, checksum), *events]
    return [
        seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
        for event in events
    ]


BEGIN = QueryEvent(1, 0, 0, None, "shop", b"BEGIN")
COMMIT = QueryEvent(1, 0, 0, None, "shop", b"COMMIT")
ROLLBACK = QueryEvent(1, 0, 0, None, "shop", b"ROLLBACK")
DDL = QueryEvent(1, 0, 0, None, "shop", b"CREATE TABLE t (a INT)")
XA_START = QueryEvent(1, 0, 0, None, "", b"XA START X'61',X'',1")
XA_END = QueryEvent(1, 0, 0, None, "", b"XA END X'61',X'',1")
XA_COMMIT = QueryEvent(1, 0, 0, None, "", b"XA COMMIT X'61',X'',1")
STATEMENTS = [
    QueryEvent(1, 0, 0, None, "", text)
    for text in (
        b"rollback",
        b"ROLLBACK TO a",
        b"REPLACE t VALUES (1)",
        b"/* a */ COMMIT",
        b"SET @a = 1",
        b"",
        b"c",
    )
]
NOTE = RowsQueryLogEvent(5, b"hello")
GTID = GtidLogEvent(0, SID, 5, 2, 0, 1, 1, None, 100, 80030)
MAP = TableMapEvent(9, 1, "shop", "t", b"\x03", b"", b"\x01", b"")
OTHER_MAP = TableMapEvent(10, 1, "größe", "caf\udce9", b"\x03", b"", b"\x01", b"")
ROWS = WriteRowsEvent(9, 0, b"", 1, b"", b"\xff", b"\x00abcd")
LAST_ROWS = WriteRowsEvent(9, 1, b"", 1, b"", b"\xff", b"\x00abcd")
OTHER_ROWS = WriteRowsEvent(10, 0, b"", 1, b"", b"\xff", b"\x00abcd")
MARIA = MariadbGtidEvent(7, 0, 0, padding=b"\0" * 6)
MARIA_SINGLE = MariadbGtidEvent(8, 0, 1, padding=b"\0" * 6)
INCIDENT = IncidentEvent(1, b"lost")
STOP = StopEvent()
PIECES = [
    *(BEGIN, COMMIT, ROLLBACK, DDL, XA_START, XA_END, NOTE, GTID, MAP, OTHER_MAP, ROWS, LAST_ROWS),
    *(OTHER_ROWS, MARIA, MARIA_SINGLE, XidEvent(3), XA_COMMIT, INCIDENT, STOP, *STATEMENTS),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([1, 2, 5]), st.booleans())
def test_any_order_of_events(events: list[Any], batch: int, restart: bool) -> None:
    """The tracker's native twin follows the reference, and either continues where the other stopped."""
    compare(raw_records(placed(log_of(events))), batch, restart=restart)


def test_the_kernel_takes_what_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the comparisons could compare the reference with itself."""
    left: list[int] = []

    def count(data: bytes, state: StreamState) -> BinlogEvent:
        left.append(data[4])
        return decode_event(data, state)

    monkeypatch.setattr("millrace.decoder.stage.decode_event", count)
    log = log_of(
        [*[GTID, BEGIN, NOTE, MAP, OTHER_MAP, ROWS, OTHER_ROWS, LAST_ROWS, XidEvent(3)] * 3, DDL, XA_COMMIT]
    )
    decode([raw_records(placed(log))], compiled=True)
    assert left == [FormatDescriptionEvent.event_type, XA_COMMIT.event_type]
    left.clear()
    ring = raw_records(placed(log))
    ring = [
        Record(n, 0, b"%d%b" % (n % 3 + 1, (record.key or b"")[1:]), record.value)
        for n, record in enumerate(ring)
    ]
    decode([ring], compiled=True)
    assert left == [FormatDescriptionEvent.event_type, XA_COMMIT.event_type]
    compare(ring)
    for value in values():
        assert type(deserializers[True](value)).__name__ == (
            "EventRecord" if deserializers[False](value).header.extra_headers else "EventHead"
        )


def status_block(draw: st.DrawFn) -> bytes:
    """Status variables as a server could write them, mostly."""
    parts = []
    for code in draw(st.lists(st.sampled_from([*VARIABLES, 77]), max_size=6)):
        parts.append(bytes([code]))
        size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 9]))
        parts.append(draw(st.binary(min_size=size, max_size=size)))
    return b"".join(parts)


@st.composite
def query(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        block = status_block(draw)
    else:
        block = StatusVariables(
            codes=bytes([0, 1, 6, 3, 4, 5, 13, 17]),
            flags2=draw(st.integers(0, 2**32 - 1)),
            sql_mode=draw(st.integers(0, 2**64 - 1)),
            catalog_nz=draw(st.sampled_from(["std", "é", "x" * 200, "\udcff"])),
            auto_increment=VARIABLES[3][1].record(1, 2),  # type: ignore[misc]
            charset=VARIABLES[4][1].record(45, 46, 255),  # type: ignore[misc]
            time_zone="SYSTEM",
            microseconds=draw(st.integers(0, 2**24 - 1)),
            ddl_logged_with_xid=draw(st.integers(0, 2**64 - 1)),
        ).write()
    database = draw(st.sampled_from([b"", b"shop", b"\xff\xfe", "größe".encode(), b"x" * 255]))
    text = draw(st.sampled_from([b"BEGIN", b"COMMIT", b"ROLLBACK", b"begin", b"INSERT", b""]))
    head = struct.pack("<IIBHH", draw(st.integers(0, 2**32 - 1)), 5, len(database), 1, len(block))
    return make_event(2, head + block + database + b"\0" + text)


@given(st.lists(query(), min_size=1, max_size=4))
def test_statements(queries: list[bytes]) -> None:
    compare(raw_records(placed([*log_of([]), *queries])))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([33, 34]),
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from([b"", b"\1" * 7, b"\xff" * 14, b"\x01\0\0\0\0\0\0" + pack_lenenc(70000)]),
            st.sampled_from([b"", b"\x1e\x38\x01\x00", b"\x1e\x38\x01\x80\x1e\x38\x01\x00"]),
            st.sampled_from([b"", b"\x05" * 8, b"\x05" * 5]),
        ),
        max_size=4,
    )
)
def test_gtids(gtids: list[tuple[int, int, bytes, bytes, bytes]]) -> None:
    log = log_of([])
    for code, gno, times, versions, ticket in gtids:
        head = struct.pack("<B16sqBqq", 1, SID, gno, 2, gno, gno)
        log.append(make_event(code, head + times + versions + ticket))
    compare(raw_records(placed(log)))


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=40))
def test_mariadb_gtids(flags2: int, extra: int, rest: bytes) -> None:
    body = struct.pack("<QIB", 2**64 - 1, 2**32 - 1, flags2)
    log = [*log_of([]), make_event(162, body + bytes([extra]) + rest), make_event(162, body + rest)]
    compare(raw_records(placed(log)))


def sealed(data: bytes) -> bytes:
    """Put size and checksum right, so that what is inside is read."""
    data = data[:9] + len(data).to_bytes(4, "little") + data[13:-4]
    return data + compute_checksum(data)


def damaged_logs() -> Iterator[list[bytes]]:
    """Yield some thousands of events with bytes changed, cut out or put in, between events that are whole."""
    chance = random.Random(8)
    for server in sorted(FORMATS):
        whole = [case.data for case in CASES if case.server == server and len(case.data) > 23]
        if len(whole) < 2:
            continue
        log = [bytes.fromhex(FORMATS[server])]
        for _ in range(400):
            data = bytearray(chance.choice(whole))
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(19 if chance.random() < 0.9 and len(data) > 19 else 0, len(data))
                what = chance.random()
                if what < 0.6:
                    data[at] = chance.choice([0, 1, 2, 127, 128, 250, 252, 253, 254, 255, data[at] ^ 1])
                elif what < 0.8:
                    del data[at : at + chance.randint(1, 4)]
                else:
                    data[at:at] = chance.randbytes(chance.randint(1, 4))
            if len(data) < 23:
                continue
            log.append(sealed(bytes(data)) if chance.random() < 0.9 else bytes(data))
            if chance.random() < 0.3:
                log.append(chance.choice(whole))
        yield log


def test_damaged_events() -> None:
    for log in damaged_logs():
        compare(raw_records(placed(log)), 100)


def test_cut_events() -> None:
    for case in CASES:
        log = [bytes.fromhex(FORMATS[case.server])]
        log += [sealed(case.data[:size]) for size in range(19, min(len(case.data), 120)) if size >= 23]
        log += [case.data[:size] for size in range(min(len(case.data), 30))]
        records = raw_records([(4, log[0])])
        records += [Record(at, 0, b"7:0:log.000001:%d" % at, data) for at, data in enumerate(log[1:], 5)]
        compare(records)


@pytest.mark.parametrize("checksum", [0, 1])
def test_keys_files_and_limits(checksum: int) -> None:
    log = log_of([GTID, BEGIN, MAP, OTHER_MAP, ROWS, OTHER_ROWS, LAST_ROWS, XidEvent(3)], checksum=checksum)
    records = raw_records(placed(log), "mysql bin:ö.000001")
    no_gtid = raw_records(placed(log_of([BEGIN, MAP, LAST_ROWS, COMMIT])), "mysql bin:ö.000002", 0, 20)
    other_epoch = raw_records(placed(log), "mysql bin:ö.000001", 1, 40)
    for limit in (10**6, 100):
        compare([*records, *no_gtid, *other_epoch], limit=limit)
    odd = [b"", b"x", b"7:0:f:", b"7:0:f: 5", b"7:0:f:+5", b"7:0:f:1_0", b"7:0:f:007", b"7:0:f:-5"]
    odd += [b":0:f:5", b"7x:0:f:5", b"007:0:f:5", b"7:0:f", b"7", b"7:", b"7:0:f5", b"7:0:f:5:", b"7:00:f:5"]
    odd += [b"7:0:f:5\n", b"7:0:f:" + b"9" * 18, b"8:0:f:5", b"7:0:ff:5"]
    records = [Record(0, 0, b"7:0:f:4", log[0]), Record(1, 0, b"7:0:f:99", log[1])]
    for key in odd:
        records += [
            Record(len(records), 0, key, log[1]),
            Record(len(records) + 1, 0, b"7:0:f:500", log[4]),
        ]
    records += [Record(90, 0, None, log[1]), Record(91, 0, b"7:0:f:5", None)]
    records += [Record(92, 0, b"7:0:f:6", log[1], [("artificial", b"1")])]
    compare(records)


ATTRIBUTES = (
    *("artificial", "begins", "checksum", "database", "ends", "epoch", "log_file", "ordinal", "position"),
    *("post_header_extra", "sub_index", "table", "timestamp", "server_id", "transaction", "type_code", "xid"),
    *("header", "event", "decoded"),
)


def read(value: bytes, *, compiled: bool) -> Any:
    """Return all that a record says, or its errors."""
    try:
        record = deserializers[compiled](value)
    except BinlogError as error:
        return type(error), str(error)
    found = []
    for name in ATTRIBUTES:
        try:
            found.append(getattr(record, name))
        except BinlogError as error:
            found.append((type(error), str(error)))
    return found


deserializers = (
    {compiled: deserializer(compiled=compiled) for compiled in (False, True)}
    if kernel.built("events")
    else {}
)


def values() -> list[bytes]:
    serialize, found = EventSerializer(), []
    for case in CASES:
        state, tracker = StreamState(), TransactionTracker()
        decode_event(bytes.fromhex(FORMATS[case.server]), state)
        try:
            decoded = decode_event(case.data, state, verify=False)
        except BinlogError:
            continue
        step = tracker.feed(decoded.header, decoded.event, "log", 4)
        found.append(serialize(decoded, 3, "log.ö", 1 << 33, 1, step, ("döb", "t\udcff"), artificial=True))
        found.append(serialize(decoded, 0, "log.000001", 4, 0, step, None))
    return found


def test_records_are_read_alike() -> None:
    for value in values():
        ours = read(value, compiled=True)
        assert ours == read(value, compiled=False)
        assert [type(each) for each in ours] == [type(each) for each in read(value, compiled=False)]


def test_damaged_records_are_read_alike() -> None:
    chance = random.Random(9)
    whole = values()
    for value in whole[:: len(whole) // 8]:
        for size in range(len(value)):
            assert read(value[:size], compiled=True) == read(value[:size], compiled=False)
    for _ in range(4000):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(min(len(data), 150))
            what = chance.random()
            if what < 0.7:
                data[at] = chance.choice([0, 1, 2, 3, 127, 128, 255, data[at] ^ 1])
            elif what < 0.85:
                del data[at]
            else:
                data.insert(at, chance.choice([0, 2, 128, 255]))
        value = bytes(data)
        assert read(value, compiled=True) == read(value, compiled=False)


# --------------------------------------------------------------------- records of ``millrace binlog``


def log_of_records(log: list[bytes], batch: int = 1000, name: str = "log.000001") -> list[LogRecord]:
    """Make records in both ways, expect the same, and give the kernel's."""
    raws = [RawEvent(name, name, position, data) for position, data in placed(log)]
    batches = [raws[at : at + batch] for at in range(0, len(raws), batch)]
    ours, theirs = ([*log_decoder(compiled=compiled).records(batches)] for compiled in (True, False))
    for our, their in zip(ours, theirs, strict=True):
        if isinstance(their.event, BinlogError):
            assert str(our.event) == str(their.event)
        else:
            assert our[:8] == their[:8]
        assert our.state.format is their.state.format is None or (
            our.state.format.origin == their.state.format.origin  # type: ignore[union-attr]
        )
        assert not their.exact
        if our.exact:
            assert isinstance(our.event, BinlogEvent)
            assert encode_event(our.event, StreamState(our.state.format)) == our.data
    if ours:
        assert ours[-1].state.table_maps == theirs[-1].state.table_maps
    return ours


def log_decoder(*, compiled: bool) -> LogDecoder:
    with patch.object(kernel, "_enabled", compiled):
        return LogDecoder()


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([1, 2, 5]), st.sampled_from([0, 1]))
def test_records_of_any_order_of_events(events: list[Any], batch: int, checksum: int) -> None:
    log_of_records(log_of(events, checksum=checksum), batch)


@pytest.mark.parametrize(("server", "cases"), cases_by_server())
def test_records_of_the_codecs_cases(server: str, cases: list[Case]) -> None:
    log = [bytes.fromhex(FORMATS[server]), *(case.data for case in cases)]
    assert len(log_of_records(log, name="größe.000001")) >= len(log_of_records(log)) >= len(log)


@given(st.lists(query(), min_size=1, max_size=4))
def test_records_of_statements(queries: list[bytes]) -> None:
    log_of_records([*log_of([]), *queries])


def test_records_that_the_kernel_makes() -> None:
    """Without this, the comparisons could compare the reference with itself."""
    log = [GTID, BEGIN, NOTE, MAP, OTHER_MAP, ROWS, OTHER_ROWS, LAST_ROWS, XidEvent(3), DDL, XA_COMMIT, DDL]
    records = log_of_records(log_of(log))
    assert [record.exact for record in records] == [False, *[True] * 10, False, True]


def test_records_of_damaged_events() -> None:
    for log in damaged_logs():
        log_of_records(log)
        log_of_records(log, 1)
