"""The decoder without Kafka: one record per event, and the same output wherever it is cut and restarted."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import pytest

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.service_state import DecoderState
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.event_codec import BinlogEvent, encode_event, seal
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
    RotateEvent,
    RowsQueryLogEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    UserVarEvent,
    WriteRowsCompressedEventV1,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.types import EventType
from millrace.contract import (
    ABANDONED,
    GAP,
    HEADER_ARTIFICIAL,
    HEADER_CHUNK,
    HEADER_MARKER,
    SOURCE_CHANGED,
    RawKey,
    Topics,
)
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.chunks import HELD_BYTES, ChunkJoiner, split
from millrace.stage import Record
from tests.stages import CrashError, Ledger, Written, exhaust

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

    def transaction(self, number: int, rows: int = 1) -> Self:
        for event in transaction(number, rows):
            self.add(event)
        return self

    def payload(self, number: int, rows: int) -> None:
        """Add a transaction whose events are packed in a payload."""
        gtid, *inside = transaction(number, rows)
        self.add(gtid)
        self.pack(inside)

    def pack(self, events: Sequence[Event], cut: int | None = None) -> None:
        """Add a payload of events, whole or cut."""
        state = self.state.for_payload()
        content = b"".join(
            seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 7, 0), event), state)
            for event in events
        )
        self.add(TransactionPayloadEvent(NO_COMPRESSION, len(content), content[:cut]))


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


pytestmark = pytest.mark.usefixtures("either_codec")


def describe(value: bytes) -> bytes:
    """Say what a record tells of an event, as text."""
    record = EventDeserializer()(value)
    place = f"{record.epoch} {record.log_file} {record.position} {record.sub_index}"
    table = None if record.table is None else (record.database, record.table)
    name = type(record.event).__name__
    artificial = " artificial" * record.artificial
    return f"{place}{artificial} {name} {record.transaction} {record.ordinal} {table}".encode()


class DeadLetters:
    """Writes dead letters as text."""

    def __call__(self, fields: dict[str, Any]) -> bytes:
        value: bytes = fields["value"]
        return f"{fields['error_class']}: {fields['error']}; ".encode() + value

    def around(self, fields: dict[str, Any], field: str, size: int) -> tuple[bytes, bytes]:
        del field, size
        return self(fields), b""


def make(
    state: DecoderState | None = None,
    limit: int = 10**6,
    *,
    raw: Sequence[Record] = (),
    held_bytes: int = HELD_BYTES,
    skip_to: int | None = None,
) -> DecoderStage:
    def reread(start: int, stop: int) -> Generator[bytes, None, None]:
        for record in raw[start:stop]:
            assert record.value is not None
            yield record.value

    serialize = EventSerializer()
    form = Format(TOPICS, serialize, DeadLetters(), limit, limit)  # type: ignore[arg-type]
    return DecoderStage(
        form,
        state or DecoderState(0),
        reread=reread,
        write_events=serialize.compiled(),
        held_bytes=held_bytes,
        skip_to=skip_to,
    )


def records(raw: Sequence[Raw], limit: int = 10**6) -> list[Record]:
    found: list[Record] = []
    for key, value in raw:
        for header, piece in split(value, limit):
            number = len(found)
            found.append(Record(number, 1000 + number, key, piece, None if header is None else [header]))
    return found


def run(raw: Sequence[Record], limit: int = 10**6, *, held_bytes: int = HELD_BYTES) -> list[Written]:
    ledger = Ledger()
    stage = make(limit=limit, raw=raw, held_bytes=held_bytes)
    ledger.run(stage, raw)
    assert stage.next_offset == raw[-1].offset + 1
    return ledger.written


def run_cut(
    raw: Sequence[Record], limit: int, *, held_bytes: int, commit_every: int
) -> tuple[list[Written], int]:
    """Run decoders that are killed after every commit, to the end; give the output and how many were."""
    ledger = Ledger(commit_every)
    restarts = 0
    while True:
        ledger.crash_after = ledger.commits + 1
        stage = make(ledger.state, limit, raw=raw, held_bytes=held_bytes)
        try:
            ledger.run(stage, raw[stage.next_offset :], 1)
        except CrashError:
            if stage.next_offset == len(raw):
                return ledger.written, restarts
            restarts += 1


def described(output: list[Written]) -> list[tuple[Any, ...]]:
    """Return records with what those of events tell as their values."""
    return [
        (topic, key, describe(value) if topic == "shop.events" and headers is None else value, *rest, headers)
        for topic, key, value, *rest, headers in output
    ]


def log() -> LogBuilder:
    builder = LogBuilder().transaction(1)
    builder.transaction(2, rows=3)
    builder.payload(3, rows=4)
    builder.transaction(4, rows=2)
    return builder


def test_one_record_per_event() -> None:
    builder = LogBuilder().transaction(1, rows=2)
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
    """Cut after every commit, also between the chunks of an event and inside a payload, and restarted."""
    monkeypatch.setattr("millrace.stage.Output.settle_bytes", 0)
    raw = records(log().records, limit)
    whole = run(raw, output_limit)
    if output_limit > limit:
        assert len(whole) == len(log().records) + 4 + 3
    for commit_every in (1, 2, 3, 5):
        output, restarts = run_cut(raw, output_limit, held_bytes=held_bytes, commit_every=commit_every)
        assert output == whole
        if output_limit > limit:
            assert restarts >= len(whole) // commit_every - 7
        assert restarts > 3


def test_the_state_in_the_middle_of_chunks() -> None:
    raw = records(log().records, 50)
    stage = make()
    exhaust(stage.take(raw[:2]))
    state = stage.state()
    assert (state.input_offset, state.first_chunk_offset) == (2, 0)


def test_what_cannot_be_decoded_is_a_dead_letter() -> None:
    raw = records(log().records)
    damaged = raw[3].value
    assert damaged is not None
    raw[3] = raw[3]._replace(value=damaged[:-1] + b"?")
    raw[5] = raw[5]._replace(key=b"nonsense")
    head = (raw[6].key or b"").rpartition(b":")[0]
    raw[6] = raw[6]._replace(key=head + b":%d" % (1 << 63))
    raw[7] = raw[7]._replace(key=None, value=None)
    output = run(raw)
    dead_letters = [
        (key, (value or b"").decode(errors="replace"))
        for topic, key, value, _, _ in output
        if topic == "shop.deadletter"
    ]
    assert [key for key, _ in dead_letters] == [raw[3].key, b"nonsense", raw[6].key, b""]
    assert dead_letters[0][1].startswith("ChecksumError: ")
    assert dead_letters[1][1].startswith("ValueError: b'nonsense' is not a raw key")
    assert dead_letters[2][1].startswith(
        "ValueError: b'9223372036854775808' is negative or has more than 63 bits"
    )
    assert (
        len([topic for topic, *_ in output if topic == "shop.events"]) == len(run(records(log().records))) - 4
    )


def dead_letters_of(output: list[Written]) -> list[tuple[bytes | None, bytes]]:
    return [(key, value or b"") for topic, key, value, _, _ in output if topic == "shop.deadletter"]


def test_events_before_any_format_description_are_dead_letters() -> None:
    raw = records([*log().records[4:8], *LogBuilder("log.000002").records])
    output = run(raw)
    dead_letters = dead_letters_of(output)
    assert len(dead_letters) == 4
    assert all(value.startswith(b"MissingStateError") for _, value in dead_letters)
    assert len(output) == 5


def test_nothing_of_another_file_or_epoch_is_remembered() -> None:
    """A file that does not begin with its format description is not read by that of the file before."""
    for other in (LogBuilder("log.000002"), LogBuilder(epoch=1)):
        other.transaction(9)
        output = run(records([*log().records, *other.records[1:]]))
        assert [key for key, _ in dead_letters_of(output)] == [key for key, _ in other.records[1:]]
    again = LogBuilder(epoch=1)
    again.transaction(1)
    output = run(records([*log().records[:3], *again.records]))
    assert {topic for topic, *_ in output} == {"shop.events"}


@pytest.mark.parametrize("whole", [False, True], ids=["an event", "a file that begins"])
@pytest.mark.parametrize("batch", [1, 500])
def test_a_record_that_does_not_continue_the_log_ends_nothing(whole: bool, batch: int) -> None:
    """Of another epoch and file, in mid-transaction: the events after it are read as if it were not there."""
    ours = log().records
    foreign = LogBuilder("other.000007", epoch=3)
    foreign.transaction(9)
    foreign.add(RotateEvent(4, "other.000008"))
    for at in (1, 3, 5, 9):
        strangers = foreign.records if whole else [foreign.records[2], foreign.records[-1]]
        raw = records([*ours[:at], *strangers, *ours[at:]])
        ledger = Ledger()
        ledger.run(make(), raw, batch)
        output = described(ledger.written)
        expected = {key for key, _ in strangers if not whole}
        assert {key for key, _ in dead_letters_of(ledger.written)} == expected
        kept = [
            (key, value)
            for topic, key, value, *_ in output
            if topic == "shop.events" and not key.startswith(b"7:3:")
        ]
        assert kept == [(key, value) for _, key, value, *_ in described(run(records(ours)))]


def test_events_of_several_servers_in_one_file() -> None:
    builder = LogBuilder().transaction(1)
    raw = [
        (key.replace(b"7:", b"8:", 1) if n % 2 else key, value)
        for n, (key, value) in enumerate(builder.records)
    ]
    assert [key for _, key, _, _, _ in run(records(raw))] == [key + b":0" for key, _ in raw]


def test_missing_chunks() -> None:
    """What is left of an event whose last chunks are missing is a dead letter; the next event is read."""
    builder = LogBuilder().transaction(1)
    raw = records(builder.records, 50)
    chunked = [record for record in raw if record.key == builder.records[1][0]]
    assert len(chunked) == 2
    without_last = [record for record in raw if record is not chunked[1]]
    without_first = [record for record in raw if record is not chunked[0]]
    for left, error in ((without_last, b"is missing"), (without_first, b"comes without those before it")):
        output = run(left)
        [(key, text)] = dead_letters_of(output)
        assert key == builder.records[1][0]
        assert error in text or b"end before the last" in text
        assert len(output) == len(builder.records)


def test_headers() -> None:
    """An artificial event is decoded like others; a marker goes through as it is."""
    builder = LogBuilder().transaction(1)
    raw = records(builder.records)
    raw[0] = raw[0]._replace(headers=[(HEADER_ARTIFICIAL, b"1")])
    marker = Record(len(raw), 1006, b"7:0:log.000001:99", b"why", [(HEADER_MARKER, ABANDONED)])
    output = described(run([*raw, marker]))
    assert len(output) == len(raw) + 1
    assert output[-1] == ("shop.events", b"7:0:log.000001:99:0", b"why", 1006, [(HEADER_MARKER, ABANDONED)])
    assert {topic for topic, *_ in output} == {"shop.events"}
    assert [b"artificial" in value for _, _, value, _, _ in output] == [True] + [False] * len(raw)


@pytest.mark.parametrize("commit_every", [1, 10_000])
@pytest.mark.parametrize("crash_after", [1, None])
def test_records_that_were_deleted_before_they_were_read(commit_every: int, crash_after: int | None) -> None:
    """A marker says so once, just before the first that is left; until then the state stays as it is."""
    builder = log()
    raw = records(builder.records)
    ledger = Ledger(commit_every)
    ledger.run(make(), raw[:9])
    before, begun = ledger.state, len(ledger.written)
    stage = make(before, skip_to=12)
    assert stage.next_offset == 12
    assert stage.state() == before
    try:
        ledger.crash_after = crash_after and ledger.commits + crash_after
        ledger.run(stage, raw[12:], 1)
    except CrashError:
        assert ledger.state.place_to_read > 12
        ledger.crash_after = None
        ledger.run(make(ledger.state), raw[ledger.state.place_to_read :])
    marker, first, *_ = ledger.written[begun:]
    assert marker[3:] == (raw[12].timestamp_ms, [(HEADER_MARKER, GAP)])
    key = RawKey.parse(raw[12].key or b"")
    assert marker[1] == replace(key, position=key.position - 1).encode() + b":0"
    assert first[1] == key.encode() + b":0"
    assert sum(headers is not None for *_, headers in ledger.written) == 1


@pytest.mark.parametrize(
    ("headers", "written"),
    [
        ([(HEADER_MARKER, GAP)], [(0, GAP)]),
        ([(HEADER_MARKER, SOURCE_CHANGED)], [(1, GAP), (0, SOURCE_CHANGED)]),
    ],
)
def test_a_note_of_the_readers_is_the_first_that_is_left(
    headers: list[tuple[str, bytes]], written: list[tuple[int, bytes]]
) -> None:
    """A gap of the reader's says itself that records are missing before it."""
    note = Record(12, 1006, b"0:1:log.000001:0", b"why", headers)
    ledger = Ledger()
    ledger.run(make(DecoderState(9), skip_to=12), [Record(11, 1005, b"no key", b"", None), note])
    found = [
        (key, dict(marker or ())) for topic, key, _, _, marker in ledger.written if topic == TOPICS.events
    ]
    assert found == [
        (f"0:1:log.000001:{position}:0".encode(), {HEADER_MARKER: kind}) for position, kind in written
    ]


def test_large_records_are_chunked() -> None:
    builder = LogBuilder().transaction(1)
    output = run(records([*builder.records, (b"bad", b"x")]), 30)
    by_key: dict[bytes, list[tuple[bytes, Any]]] = {}
    for _, key, value, _, headers in output:
        assert key is not None
        assert value is not None
        by_key.setdefault(key, []).append((value, headers))
    assert len(by_key) == len(builder.records) + 1
    for pieces in by_key.values():
        assert all(len(value) <= 30 for value, _ in pieces)
        assert [headers for _, headers in pieces] == [
            [(HEADER_CHUNK, b"%d/%d" % (n, len(pieces)))] for n in range(len(pieces))
        ]


@pytest.mark.parametrize("held_bytes", [HELD_BYTES, 0])
def test_large_events_that_cannot_be_decoded_are_dead_letters_whole(held_bytes: int) -> None:
    """A bad checksum, a payload that is damaged inside, and one whose last chunk is missing."""
    builder = log()
    builder.payload(5, rows=9)
    key, _ = builder.records[-1]
    raw = records(builder.records, 50)
    expected = {}
    bad = next(key for key, value in builder.records if value[4] == EventType.TRANSACTION_PAYLOAD_EVENT)
    pieces = [record for record in raw if record.key == bad]
    raw[pieces[1].offset] = pieces[1] = pieces[1]._replace(value=b"?" * len(pieces[1].value or b""))
    expected[bad] = b"".join(record.value or b"" for record in pieces)
    raw.pop()
    pieces = [record for record in raw if record.key == key]
    expected[key] = b"".join(record.value or b"" for record in pieces)
    end = Record(len(raw), 0, b"7:0:log.000001:9999", b"why", [(HEADER_MARKER, SOURCE_CHANGED)])
    dead_letters = dict(dead_letters_of(run([*raw, end], held_bytes=held_bytes)))
    assert dead_letters.keys() == expected.keys()
    assert dead_letters[bad].startswith(b"ChecksumError: ")
    assert dead_letters[key].startswith(b"ChunkError: the chunks of this event end before the last")
    for of, value in expected.items():
        assert dead_letters[of].endswith(value)


def test_a_large_payload_that_is_damaged_inside() -> None:
    """The events before the damage are written; the payload is a dead letter, whole."""
    builder = log()
    gtid, *inside = transaction(6, rows=3)
    builder.add(gtid)
    builder.pack(inside, -5)
    raw = records(builder.records, 50)
    whole, piecewise = run(raw), run(raw, held_bytes=0)
    events = [record for record in whole if record[0] == "shop.events"]
    assert [record for record in piecewise if record[0] == "shop.events"] == events
    [(_, text)] = dead_letters_of(piecewise)
    assert text.startswith(b"TruncatedError: ")
    assert text.endswith(builder.records[-1][1])


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


def with_large_inner_events() -> LogBuilder:
    """Make a log with a payload that has large events inside, of which one was written by a table map."""
    builder = LogBuilder()
    gtid, begin, table_map, rows, xid = transaction(8)
    builder.add(gtid)
    long = WriteRowsEvent(108, 0, b"", 1, b"", b"\xff", LONG)
    inside = [begin, *LARGE_EVENTS[2:], table_map, long, rows, xid]
    builder.pack(inside)
    builder.transaction(9)
    return builder


@pytest.mark.parametrize(("limit", "held_bytes"), [(10**6, 0), (10**6, 300), (90, 0), (90, 300)])
def test_large_events_inside_a_payload(limit: int, held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the same records, wherever the decoder is cut and restarted."""
    builder = with_large_inner_events()
    whole = run(records(builder.records), 200)
    monkeypatch.setattr("millrace.binlog.events.transaction._PIECE", 90)
    monkeypatch.setattr("millrace.stage.Output.settle_bytes", 0)
    raw = records(builder.records, limit)
    values = [record[:3] + record[4:] for record in whole]
    for commit_every in (1, 2, 7):
        committed, _ = run_cut(raw, 200, held_bytes=held_bytes, commit_every=commit_every)
        assert [record[:3] + record[4:] for record in committed] == values


@pytest.mark.parametrize("limit", [10**6, 90])
def test_a_payload_that_ends_within_a_large_event(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of that event's record is written; the payload is a dead letter, whole, wherever it is cut."""
    monkeypatch.setattr("millrace.binlog.events.transaction._PIECE", 90)
    builder = LogBuilder()
    gtid, begin, *_ = transaction(8)
    builder.add(gtid)
    builder.pack([begin, LARGE_EVENTS[0]], -200)
    builder.transaction(9)
    raw = records(builder.records, limit)
    output = run(raw, 200, held_bytes=300)
    for commit_every in (1, 2, 7):
        cut, _ = run_cut(raw, 200, held_bytes=300, commit_every=commit_every)
        assert cut == output
    assert b"".join(value for _, value in dead_letters_of(output)).endswith(builder.records[2][1])
    assert not [key for _, key, *_ in output if key == builder.records[2][0] + b":2"]
    assert {key for _, key, *_ in output} >= {key + b":0" for key, _ in builder.records}


def test_a_large_event_inside_a_payload_that_cannot_be_taken_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is held up to a bound; beyond it, the payload is a dead letter, whole, and the stream continues."""
    monkeypatch.setattr("millrace.binlog.events.transaction._PIECE", 90)
    builder = LogBuilder()
    gtid, begin, *_, xid = transaction(8)
    builder.add(gtid)
    builder.pack([begin, UserVarEvent("v", 0, 0, 8, LONG, 0), xid])
    builder.transaction(9)
    raw = records(builder.records)
    whole = run(raw)
    assert run(raw, held_bytes=300) == whole
    monkeypatch.setattr("millrace.decoder.stage._MOST_JOINED", 700)
    output = run(raw, held_bytes=300)
    [(key, text)] = dead_letters_of(output)
    assert key == builder.records[2][0]
    assert text.startswith(b"TooLargeError: an event of ")
    assert text.endswith(builder.records[2][1])
    assert {key for _, key, *_ in output} >= {key + b":0" for key, _ in builder.records}


def cut_within(raw: Sequence[Record], limit: int, ledger: Ledger) -> DecoderState:
    """Let a decoder crash within the chunks of a large record; give its state."""
    ledger.commit_every = 1
    stage = make(None, limit, raw=raw, held_bytes=0)
    for _ in chain.from_iterable(stage.take([record]) for record in raw):
        ledger.settle(stage)
        if ledger.state is not None and ledger.state.chunk > 1:
            break
    ledger.commit_every = 10**9
    state = ledger.state
    assert isinstance(state, DecoderState)
    assert state.chunk > 1
    return state


def test_a_restart_while_the_chunks_of_an_event_are_read_again() -> None:
    """It was cut within the record of a large event before; how much of it is written still counts."""
    raw = records(log().records, 50)
    ledger = Ledger()
    state = cut_within(raw, 45, ledger)
    stage = make(state, 45, raw=raw, held_bytes=0)
    offset = stage.next_offset
    assert offset == state.input_offset
    ledger.run(stage, raw[offset : offset + 1])
    assert ledger.state.first_chunk_offset == offset
    stage = make(ledger.state, 45, raw=raw, held_bytes=0)
    ledger.run(stage, raw[offset:])
    assert ledger.written == run(raw, 45)


def test_chunks_that_were_cut_from_something_else_begin_again() -> None:
    """Another version writes another record: readers see its first chunk, and forget those before it."""
    raw = records(log().records, 50)
    ledger = Ledger()
    state = cut_within(raw, 45, ledger)
    stage = make(replace(state, fingerprint=state.fingerprint ^ 1), 45, raw=raw, held_bytes=0)
    ledger.run(stage, raw[stage.next_offset :])
    joined: dict[bytes | None, bytes] = {}
    joiners: dict[bytes | None, ChunkJoiner] = {}
    restarts = 0
    for _, key, value, _, headers in ledger.written:
        assert value is not None
        if headers is None:
            joined[key] = value
            continue
        joiner = joiners.setdefault(key, ChunkJoiner())
        if headers[0][1].startswith(b"0/") and joiner.first_offset is not None:
            restarts += 1
            joiner.reset()
        whole = joiner.feed(key or b"", headers[0][1], value, 0)
        if whole is not None:
            assert key not in joined
            joined[key] = whole
    assert restarts == 1
    assert joined == {key: value for _, key, value, *_ in run(raw)}


def test_what_a_newer_version_can_decode() -> None:
    """Chunks of a dead letter that an older version was cut off in are not those of the event's record."""
    builder = LogBuilder()
    builder.add(WriteRowsEvent(7, 1, b"", 1, b"", b"\xff", LONG))
    raw = records(builder.records, 90)
    damaged = [*raw[:-1], raw[-1]._replace(value=b"????")]
    ledger = Ledger()
    state = cut_within(damaged, 200, ledger)
    assert (raw[state.input_offset].key, state.dead_letter) == (builder.records[1][0], True)
    assert [topic for topic, *_ in ledger.written][-1] == "shop.deadletter"
    stage = make(state, 200, raw=raw, held_bytes=0)
    ledger.run(stage, raw[stage.next_offset :])
    assert ledger.topics["shop.events"] == run(raw, 200, held_bytes=0)
