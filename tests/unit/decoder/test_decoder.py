"""The decoder without Kafka: one record per event, and the same output wherever it is cut and restarted."""

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from millrace import kernel
from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.state import DecoderState
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.events import (
    AnnotateRowsEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidLogEvent,
    IntvarEvent,
    PartialRowDataEvent,
    QueryEvent,
    RowsQueryLogEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    WriteRowsCompressedEventV1,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.stream import BinlogEvent, encode_event, seal
from millrace.binlog.types import EventType
from millrace.contract import (
    ABANDONED,
    HEADER_ARTIFICIAL,
    HEADER_CHUNK,
    HEADER_MARKER,
    SOURCE_CHANGED,
    RawKey,
    Topics,
)
from millrace.kafka.chunks import HELD_BYTES, split
from services.decoder.decoder import Decoder, Output
from services.decoder.metrics import DecoderMetrics

TOPICS = Topics("shop")
SID = bytes(range(16))
NO_COMPRESSION = 255

Raw = tuple[bytes, bytes]
"""Key and value of a raw record."""


class LogBuilder:
    """Writes the events of one log file as raw records."""

    def __init__(self, log_file: str = "log.000001", epoch: int = 0) -> None:
        self.log_file, self.epoch = log_file, epoch
        self.state = StreamState()
        self.position = 4
        self.records: list[Raw] = []
        lengths = bytes(
            EVENTS[code].post_header_lengths[-1] if code in EVENTS else 0 for code in range(1, 173)
        )
        self.add(FormatDescriptionEvent(4, "8.0.30", 0, 19, lengths, 1))

    def add(self, event: Event) -> None:
        data = seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), self.state)
        self.records.append((RawKey(7, self.epoch, self.log_file, self.position).encode(), data))
        self.position += len(data)

    def transaction(self, number: int, rows: int = 1) -> None:
        for event in transaction(number, rows):
            self.add(event)

    def payload(self, number: int, rows: int) -> None:
        """Add a transaction whose events are packed in a payload."""
        gtid, *inside = transaction(number, rows)
        self.add(gtid)
        state = self.state.for_payload()
        content = b"".join(
            seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
            for event in inside
        )
        self.add(TransactionPayloadEvent(NO_COMPRESSION, len(content), content))


def transaction(number: int, rows: int = 1) -> list[Event]:
    """Make the events of a transaction of one statement."""
    table_id = 100 + number
    return [
        GtidLogEvent(0, SID, number, 2, 0, 1, 1, None, 100, 80030),
        QueryEvent(1, 0, 0, None, "shop", b"BEGIN"),
        TableMapEvent(table_id, 1, "shop", f"t{number}", b"\x03", b"", b"\x01", b""),
        *(
            WriteRowsEvent(
                table_id, int(row == rows - 1), b"", 1, b"", b"\xff", b"\x00" + row.to_bytes(4, "little")
            )
            for row in range(rows)
        ),
        XidEvent(number),
    ]


@dataclass
class RawRecord:
    """A record of the raw topic as Kafka would give it."""

    raw_key: bytes | None
    raw_value: bytes | None
    raw_offset: int
    raw_headers: list[tuple[str, bytes]] | None = None

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def offset(self) -> int:
        return self.raw_offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self.raw_offset

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.raw_headers


class CutError(Exception):
    """The process ends here."""


@dataclass
class Recorder:
    """Takes the place of Kafka: what was committed, and the state with it. ``cut_after`` commits it dies."""

    committed: list[tuple[Any, ...]] = field(default_factory=list)
    pending_records: list[tuple[Any, ...]] = field(default_factory=list)
    state: bytes | None = None
    due_every: int = 10**9
    cut_after: int | None = None

    def produce(self, topic: str, key: bytes, value: bytes, timestamp_ms: int, headers: Any = None) -> None:
        self.pending_records.append((topic, key, value, timestamp_ms, headers))

    def produce_batch(self, topic: str, records: Sequence[tuple[bytes, bytes, int]]) -> None:
        for record in records:
            self.produce(topic, *record)

    @property
    def due(self) -> bool:
        return len(self.pending_records) >= self.due_every

    def commit(self, state: bytes) -> None:
        self.committed += self.pending_records
        self.pending_records = []
        self.state = state
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after == 0:
                raise CutError


@pytest.fixture(params=[False, True], ids=["reference", "kernel"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not kernel.built("events"):
        pytest.skip("the kernel for events is not built (make kernel): the reference is tested alone")
    monkeypatch.setattr("millrace.kernel._enabled", request.param)


def describe(value: bytes) -> bytes:
    """Say what a record tells of an event, as text."""
    record = EventDeserializer()(value)
    place = f"{record.epoch} {record.log_file} {record.position} {record.sub_index}"
    table = None if record.table is None else (record.database, record.table)
    name = type(record.event).__name__
    artificial = " artificial" * record.artificial
    return f"{place}{artificial} {name} {record.transaction} {record.ordinal} {table}".encode()


class Letters:
    """Writes dead letters as text."""

    def __call__(self, fields: dict[str, Any]) -> bytes:
        value: bytes = fields["value"]
        return f"{fields['error_class']}: {fields['error']}; ".encode() + value

    def around(self, fields: dict[str, Any], field: str, size: int) -> tuple[bytes, bytes]:
        del field, size
        return self(fields), b""


def make(
    recorder: Recorder, limit: int = 10**6, *, raw: Sequence[RawRecord] = (), held_bytes: int = HELD_BYTES
) -> Decoder:
    state = None if recorder.state is None else DecoderState.from_bytes(recorder.state)

    def reread(start: int, stop: int) -> Generator[bytes, None, None]:
        for record in raw[start:stop]:
            assert record.raw_value is not None
            yield record.raw_value

    serialize = EventSerializer()
    output = Output(recorder, TOPICS, serialize, Letters(), limit, limit, serialize.compiled())  # type: ignore[arg-type]
    metrics = DecoderMetrics(CollectorRegistry())
    return Decoder(output, metrics, state, reread=reread, stop=threading.Event(), held_bytes=held_bytes)


def records(raw: Sequence[Raw], limit: int = 10**6) -> list[RawRecord]:
    found: list[RawRecord] = []
    for key, value in raw:
        for header, piece in split(value, limit):
            found.append(RawRecord(key, piece, len(found), None if header is None else [header]))
    return found


def run(
    raw: Sequence[RawRecord], limit: int = 10**6, *, held_bytes: int = HELD_BYTES
) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    decoder = make(recorder, limit, raw=raw, held_bytes=held_bytes)
    decoder.process(raw)
    recorder.commit(decoder.state())
    assert decoder.next_offset == raw[-1].raw_offset + 1
    return recorder.committed


def run_cut(
    raw: Sequence[RawRecord], limit: int, *, held_bytes: int, due_every: int
) -> tuple[list[tuple[Any, ...]], int]:
    """Run decoders that are killed behind every commit, to the end; give the output and how many were."""
    recorder = Recorder(due_every=due_every)
    restarts = 0
    while True:
        decoder, offset = resumed(recorder, limit, raw=raw, held_bytes=held_bytes)
        recorder.pending_records, recorder.cut_after = [], 1
        try:
            for record in raw[offset:]:
                decoder.process([record])
                if recorder.due:
                    recorder.commit(decoder.state())
        except CutError:
            restarts += 1
            continue
        break
    recorder.cut_after = None
    recorder.commit(decoder.state())
    return recorder.committed, restarts


def resumed(
    recorder: Recorder, limit: int, *, raw: Sequence[RawRecord], held_bytes: int
) -> tuple[Decoder, int]:
    """Start a decoder where the state says, as the service does."""
    decoder = make(recorder, limit, raw=raw, held_bytes=held_bytes)
    offset = 0
    if recorder.state is not None:
        state = DecoderState.from_bytes(recorder.state)
        offset = state.input_offset if state.first_chunk_offset is None else state.first_chunk_offset
        assert state.first_chunk_offset is None or state.first_chunk_offset < state.input_offset
    decoder.start_at(offset)
    return decoder, offset


def described(output: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Give records with what those of events tell as their values."""
    return [
        (topic, key, describe(value) if topic == "shop.events" and headers is None else value, *rest, headers)
        for topic, key, value, *rest, headers in output
    ]


def log() -> LogBuilder:
    builder = LogBuilder()
    builder.transaction(1)
    builder.transaction(2, rows=3)
    builder.payload(3, rows=4)
    builder.transaction(4, rows=2)
    return builder


def test_one_record_per_event() -> None:
    builder = LogBuilder()
    builder.transaction(1, rows=2)
    output = described(run(records(builder.records)))
    assert [key for _, key, _, _, _ in output] == [key + b":0" for key, _ in builder.records]
    assert {topic for topic, *_ in output} == {"shop.events"}
    assert [timestamp for *_, timestamp, _ in output] == [1000 + n for n in range(len(output))]
    transaction = "00010203-0405-0607-0809-0a0b0c0d0e0f:1"
    assert [value.decode().split(" ", 4)[4] for _, _, value, _, _ in output] == [
        "FormatDescriptionEvent None 0 None",
        f"GtidLogEvent {transaction} 0 None",
        f"QueryEvent {transaction} 1 None",
        f"TableMapEvent {transaction} 2 ('shop', 't1')",
        f"WriteRowsEvent {transaction} 3 ('shop', 't1')",
        f"WriteRowsEvent {transaction} 4 ('shop', 't1')",
        f"XidEvent {transaction} 5 None",
    ]


def test_log_of_mysql_4_without_start_event() -> None:
    """Only the first log after the server's start has it; elsewhere than at its head nothing is assumed."""
    header = EventHeader(1_000_000_000, 5, 7, 0, 4)
    data = encode_event(BinlogEvent(header, IntvarEvent(2, 9)), StreamState())
    at_head, later = (RawKey(7, 0, f"log.{at}", at).encode() for at in (4, 500))
    output = described(run(records([(at_head, data), (later, data)])))
    values = {topic: value for topic, _, value, *_ in output}
    assert values["shop.events"] == b"0 log.4 4 0 IntvarEvent log.4:4 0 None"
    assert values["shop.deadletter"].startswith(b"MissingStateError: ")


def test_events_inside_a_payload_follow_it() -> None:
    builder = LogBuilder()
    builder.payload(1, rows=2)
    output = described(run(records(builder.records)))
    payload_key = builder.records[-1][0]
    assert [key for _, key, _, _, _ in output[2:]] == [payload_key + b":%d" % n for n in range(6)]
    names = [value.decode().split()[4] for _, _, value, _, _ in output[2:]]
    expected = [
        "TransactionPayloadEvent",
        "QueryEvent",
        "TableMapEvent",
        "WriteRowsEvent",
        "WriteRowsEvent",
        "XidEvent",
    ]
    assert names == expected


@pytest.mark.parametrize(
    ("limit", "output_limit", "held_bytes"),
    [(10**6, 10**6, HELD_BYTES), (50, 10**6, HELD_BYTES), (50, 45, 0), (50, 10**6, 0), (50, 45, 100)],
)
def test_the_output_does_not_depend_on_where_it_was_cut(
    limit: int, output_limit: int, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut behind every commit, also between the chunks of an event and inside a payload, and restarted."""
    monkeypatch.setattr("services.decoder.decoder._BATCH", 1)
    raw = records(log().records, limit)
    whole = run(raw, output_limit)
    if output_limit > limit:
        assert len(whole) == len(log().records) + 4 + 3
    for due_every in (1, 2, 3, 5):
        output, restarts = run_cut(raw, output_limit, held_bytes=held_bytes, due_every=due_every)
        assert output == whole
        if output_limit > limit:
            assert restarts >= len(whole) // due_every - 7
        assert restarts > 3


def test_the_state_in_the_middle_of_chunks() -> None:
    raw = records(log().records, 50)
    recorder = Recorder()
    decoder = make(recorder)
    decoder.process(raw[:2])
    state = DecoderState.from_bytes(decoder.state())
    assert (state.input_offset, state.first_chunk_offset) == (2, 0)


def test_what_cannot_be_decoded_is_set_aside() -> None:
    raw = records(log().records)
    damaged = raw[3].raw_value
    assert damaged is not None
    raw[3].raw_value = damaged[:-1] + b"?"
    raw[5].raw_key = b"nonsense"
    head = (raw[6].raw_key or b"").rpartition(b":")[0]
    raw[6].raw_key = head + b":%d" % (1 << 63)
    raw[7].raw_key, raw[7].raw_value = None, None
    output = run(raw)
    letters = [
        (key, value.decode(errors="replace"))
        for topic, key, value, _, _ in output
        if topic == "shop.deadletter"
    ]
    assert [key for key, _ in letters] == [raw[3].raw_key, b"nonsense", raw[6].raw_key, b""]
    assert letters[0][1].startswith("ChecksumError: ")
    assert letters[1][1].startswith("ValueError: b'nonsense' is no raw key")
    assert letters[2][1].startswith("ValueError: b'9223372036854775808' is negative or has more than 63 bits")
    assert (
        len([topic for topic, *_ in output if topic == "shop.events"]) == len(run(records(log().records))) - 4
    )


def test_events_before_any_format_description_are_set_aside() -> None:
    raw = records([*log().records[4:8], *LogBuilder("log.000002").records])
    output = run(raw)
    letters = [value for topic, _, value, _, _ in output if topic == "shop.deadletter"]
    assert len(letters) == 4
    assert all(value.startswith(b"MissingStateError") for value in letters)
    assert len(output) == 5


def test_nothing_of_another_file_or_epoch_is_remembered() -> None:
    """A file that does not begin with its format description is not read by that of the file before."""
    for other in (LogBuilder("log.000002"), LogBuilder(epoch=1)):
        other.transaction(9)
        output = run(records([*log().records, *other.records[1:]]))
        letters = [key for topic, key, *_ in output if topic == "shop.deadletter"]
        assert letters == [key for key, _ in other.records[1:]]
    again = LogBuilder(epoch=1)
    again.transaction(1)
    output = run(records([*log().records[:3], *again.records]))
    assert {topic for topic, *_ in output} == {"shop.events"}


def test_events_of_several_servers_in_one_file() -> None:
    builder = LogBuilder()
    builder.transaction(1)
    raw = [
        (key.replace(b"7:", b"8:", 1) if n % 2 else key, value)
        for n, (key, value) in enumerate(builder.records)
    ]
    assert [key for _, key, _, _, _ in run(records(raw))] == [key + b":0" for key, _ in raw]


def test_missing_chunks() -> None:
    """What is left of an event whose last chunks are missing is set aside; the next event is read."""
    builder = LogBuilder()
    builder.transaction(1)
    raw = records(builder.records, 50)
    chunked = [record for record in raw if record.raw_key == builder.records[1][0]]
    assert len(chunked) == 2
    without_last = [record for record in raw if record is not chunked[1]]
    without_first = [record for record in raw if record is not chunked[0]]
    for left, error in ((without_last, b"is missing"), (without_first, b"comes without those before it")):
        output = run(left)
        letters = [(key, value) for topic, key, value, _, _ in output if topic == "shop.deadletter"]
        assert len(letters) == 1
        assert letters[0][0] == builder.records[1][0]
        assert error in letters[0][1] or b"end before the last" in letters[0][1]
        assert len(output) == len(builder.records)


def test_headers() -> None:
    """An artificial event is decoded like others; a marker goes through as it is."""
    builder = LogBuilder()
    builder.transaction(1)
    raw = records(builder.records)
    raw[0].raw_headers = [(HEADER_ARTIFICIAL, b"1")]
    marker = RawRecord(b"7:0:log.000001:99", b"why", len(raw), [(HEADER_MARKER, ABANDONED)])
    output = described(run([*raw, marker]))
    assert len(output) == len(raw) + 1
    assert output[-1] == ("shop.events", b"7:0:log.000001:99:0", b"why", 1006, [(HEADER_MARKER, ABANDONED)])
    assert {topic for topic, *_ in output} == {"shop.events"}
    assert [b"artificial" in value for _, _, value, _, _ in output] == [True] + [False] * len(raw)


def test_large_records_are_chunked() -> None:
    builder = LogBuilder()
    builder.transaction(1)
    recorder = Recorder()
    decoder = make(recorder, limit=30)
    decoder.process(records([*builder.records, (b"bad", b"x")]))
    by_key: dict[bytes, list[tuple[bytes, Any]]] = {}
    for _, key, value, _, headers in recorder.pending_records:
        by_key.setdefault(key, []).append((value, headers))
    assert len(by_key) == len(builder.records) + 1
    for pieces in by_key.values():
        assert all(len(value) <= 30 for value, _ in pieces)
        assert [headers for _, headers in pieces] == [
            [(HEADER_CHUNK, b"%d/%d" % (n, len(pieces)))] for n in range(len(pieces))
        ]


@pytest.mark.parametrize("held_bytes", [HELD_BYTES, 0])
def test_large_events_that_cannot_be_decoded_are_set_aside_whole(held_bytes: int) -> None:
    """A bad checksum, a payload that is damaged inside, and one whose last chunk is missing."""
    builder = log()
    builder.payload(5, rows=9)
    key, _ = builder.records[-1]
    raw = records(builder.records, 50)
    expected = {}
    bad = next(key for key, value in builder.records if value[4] == EventType.TRANSACTION_PAYLOAD_EVENT)
    pieces = [record for record in raw if record.raw_key == bad]
    pieces[1].raw_value = b"?" * len(pieces[1].raw_value or b"")
    expected[bad] = b"".join(record.raw_value or b"" for record in pieces)
    raw.pop()
    pieces = [record for record in raw if record.raw_key == key]
    expected[key] = b"".join(record.raw_value or b"" for record in pieces)
    end = RawRecord(b"7:0:log.000001:9999", b"why", len(raw), [(HEADER_MARKER, SOURCE_CHANGED)])
    output = run([*raw, end], held_bytes=held_bytes)
    letters = {key: value for topic, key, value, *_ in output if topic == "shop.deadletter"}
    assert letters.keys() == expected.keys()
    assert letters[bad].startswith(b"ChecksumError: ")
    assert letters[key].startswith(b"ChunkError: the chunks of this event end before the last")
    for of, value in expected.items():
        assert letters[of].endswith(value)


def test_a_large_payload_that_is_damaged_inside() -> None:
    """The events before the damage are written; the payload is set aside, whole."""
    builder = log()
    gtid, *inside = transaction(6, rows=3)
    builder.add(gtid)
    state = builder.state.for_payload()
    content = b"".join(
        seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
        for event in inside
    )
    builder.add(TransactionPayloadEvent(NO_COMPRESSION, len(content), content[:-5]))
    raw = records(builder.records, 50)
    whole, piecewise = run(raw), run(raw, held_bytes=0)
    events = [record for record in whole if record[0] == "shop.events"]
    assert [record for record in piecewise if record[0] == "shop.events"] == events
    letters = [value for topic, _, value, *_ in piecewise if topic == "shop.deadletter"]
    assert len(letters) == 1
    assert letters[0].startswith(b"TruncatedError: ")
    assert letters[0].endswith(builder.records[-1][1])


def test_a_stop_in_the_middle_of_a_large_event() -> None:
    """What was asked to stop stops where a Kafka transaction ends, and another one goes on from there."""
    raw = records(log().records, 50)
    whole = run(raw, 45)
    recorder = Recorder(due_every=3)
    stops = 0
    while True:
        decoder = make(recorder, 45, raw=raw, held_bytes=0)
        offset = 0
        if recorder.state is not None:
            state = DecoderState.from_bytes(recorder.state)
            offset = state.input_offset if state.first_chunk_offset is None else state.first_chunk_offset
        decoder.next_offset = offset
        decoder._stop.set()
        decoder.process(raw[offset:])
        recorder.commit(decoder.state())
        if decoder.next_offset == len(raw):
            break
        stops += 1
    assert recorder.committed == whole
    assert stops >= 3


LONG = bytes(range(256)) * 3
LARGE_EVENTS = [
    WriteRowsEvent(7, 1, b"\x00\x01", 1, b"", b"\xff", LONG),
    WriteRowsCompressedEventV1(7, 1, b"", 1, b"", b"\xff", LONG),
    QueryEvent(1, 2, 3, None, "shop", b"INSERT INTO t VALUES " + LONG),
    ExecuteLoadQueryEvent(1, 2, 3, None, "shop", 4, 5, 6, 0, LONG),
    RowsQueryLogEvent(9, LONG),
    AnnotateRowsEvent(LONG),
    AppendBlockEvent(3, LONG),
    BeginLoadQueryEvent(3, LONG),
    PartialRowDataEvent(3, 2, 0, None, LONG),
]


@pytest.mark.parametrize("limit", [90, 300])
def test_large_events_give_the_records_that_they_would_give_whole(limit: int) -> None:
    """Of every type with a field that takes the rest; the chunks of the input do not show in the output."""
    builder = log()
    for event in LARGE_EVENTS:
        builder.add(event)
    builder.payload(7, rows=30)
    whole = run(records(builder.records), 200)
    assert {topic for topic, *_ in whole} == {"shop.events"}
    piecewise = run(records(builder.records, limit), 200, held_bytes=0)
    assert [(key, value, headers) for _, key, value, _, headers in piecewise] == [
        (key, value, headers) for _, key, value, _, headers in whole
    ]
    assert sum(headers is not None for *_, headers in whole) > 3 * len(LARGE_EVENTS)


def test_what_was_written_of_an_event_that_is_left_out_does_not_count() -> None:
    """Raw records were deleted while a large event was written, and the decoder goes on behind them."""
    raw = records(log().records, 50)
    recorder = Recorder(due_every=3)
    decoder = make(recorder, 45, raw=raw, held_bytes=0)
    decoder._stop.set()
    decoder.process(raw)
    state = DecoderState.from_bytes(decoder.state())
    assert state.sub_index or state.chunk
    recorder = Recorder(state=decoder.state())
    decoder = make(recorder, 45, raw=raw, held_bytes=0)
    start = next(n for n, record in enumerate(raw) if n > state.input_offset + 1 and not record.raw_headers)
    decoder.start_at(start)
    decoder.process(raw[start:])
    expected = list(dict.fromkeys(record.raw_key for record in raw[start:]))
    written = list(dict.fromkeys(key.rpartition(b":")[0] for _, key, *_ in recorder.pending_records))
    assert written == expected


def with_large_inner_events() -> LogBuilder:
    """Make a log with a payload that has large events inside, of which one was written by a table map."""
    builder = LogBuilder()
    gtid, begin, table_map, rows, xid = transaction(8)
    builder.add(gtid)
    state = builder.state.for_payload()
    long = WriteRowsEvent(108, 0, b"", 1, b"", b"\xff", LONG)
    inside = [begin, *LARGE_EVENTS[2:], table_map, long, rows, xid]
    content = b"".join(
        seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
        for event in inside
    )
    builder.add(TransactionPayloadEvent(NO_COMPRESSION, len(content), content))
    builder.transaction(9)
    return builder


@pytest.mark.parametrize(("limit", "held_bytes"), [(10**6, 0), (10**6, 300), (90, 0), (90, 300)])
def test_large_events_inside_a_payload(limit: int, held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the same records, wherever the decoder is cut and restarted."""
    builder = with_large_inner_events()
    whole = run(records(builder.records), 200)
    monkeypatch.setattr("millrace.binlog.events.transaction._PIECE", 90)
    monkeypatch.setattr("services.decoder.decoder._BATCH", 1)
    raw = records(builder.records, limit)
    values = [record[:3] + record[4:] for record in whole]
    for due_every in (1, 2, 7):
        committed, _ = run_cut(raw, 200, held_bytes=held_bytes, due_every=due_every)
        assert [record[:3] + record[4:] for record in committed] == values


@pytest.mark.parametrize("limit", [10**6, 90])
def test_a_payload_that_ends_within_a_large_event(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of that event's record is written; the payload is set aside, whole, wherever it is cut."""
    monkeypatch.setattr("millrace.binlog.events.transaction._PIECE", 90)
    builder = LogBuilder()
    gtid, begin, *_ = transaction(8)
    builder.add(gtid)
    state = builder.state.for_payload()
    content = b"".join(
        seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
        for event in (begin, LARGE_EVENTS[0])
    )
    builder.add(TransactionPayloadEvent(NO_COMPRESSION, len(content), content[:-200]))
    builder.transaction(9)
    raw = records(builder.records, limit)
    output = run(raw, 200, held_bytes=300)
    for due_every in (1, 2, 7):
        cut, _ = run_cut(raw, 200, held_bytes=300, due_every=due_every)
        assert sorted(cut, key=itemgetter(0)) == sorted(output, key=itemgetter(0))
    letters = [record for record in output if record[0] == "shop.deadletter"]
    assert b"".join(value for _, _, value, *_ in letters).endswith(builder.records[2][1])
    assert not [key for _, key, *_ in output if key == builder.records[2][0] + b":2"]
    assert {key for _, key, *_ in output} >= {key + b":0" for key, _ in builder.records}


def test_a_restart_while_the_chunks_of_an_event_are_read_again() -> None:
    """It was cut within the record of a large event before; how much of it is written still counts."""
    raw = records(log().records, 50)
    whole = run(raw, 45)
    recorder = Recorder(due_every=3)
    decoder = make(recorder, 45, raw=raw, held_bytes=0)
    decoder._stop.set()
    decoder.process(raw)
    state = DecoderState.from_bytes(recorder.state or b"")
    assert state.chunk > 0
    decoder, offset = resumed(recorder, 45, raw=raw, held_bytes=0)
    assert offset == state.input_offset
    decoder.process(raw[offset : offset + 1])
    recorder.commit(decoder.state())
    assert DecoderState.from_bytes(recorder.state or b"").first_chunk_offset == offset
    decoder, offset = resumed(recorder, 45, raw=raw, held_bytes=0)
    recorder.due_every = 10**9
    decoder.process(raw[offset:])
    recorder.commit(decoder.state())
    assert recorder.committed == whole


def test_what_a_newer_version_can_decode() -> None:
    """Chunks of a dead letter that an older version was cut off in are not those of the event's record."""
    builder = LogBuilder()
    builder.add(WriteRowsEvent(7, 1, b"", 1, b"", b"\xff", LONG))
    raw = records(builder.records, 90)
    damaged = [*raw[:-1], RawRecord(raw[-1].raw_key, b"????", len(raw) - 1, raw[-1].raw_headers)]
    recorder = Recorder(due_every=3)
    decoder = make(recorder, 200, raw=damaged, held_bytes=0)
    decoder._stop.set()
    decoder.process(damaged)
    state = DecoderState.from_bytes(decoder.state())
    assert (raw[state.input_offset].raw_key, state.dead_letter) == (builder.records[1][0], True)
    assert state.chunk > 0
    assert recorder.committed[-1][0] == "shop.deadletter"
    recorder.due_every = 10**9
    decoder, offset = resumed(recorder, 200, raw=raw, held_bytes=0)
    decoder.process(raw[offset:])
    events = [record for record in recorder.committed if record[0] == "shop.events"]
    assert events + recorder.pending_records == run(raw, 200, held_bytes=0)
