"""Rows that are in no topic: which events are blanked, wherever the reader stops."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import IgnorableLogEvent
from millrace.binlog.state import StreamState
from millrace.contract import HEADER_CHECKSUM, HEADER_EXCLUDED, RawKey
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.runtime.errors import UserError
from millrace.selection.tables import is_excluded

from .logs import STOPS, Log, Recorder, event, make, resume, take, take_with_stops, whole

WORD = b"the secret word "
OTHER = b"known to all    "
ROWS, ROWS_V1, PAYLOAD, ROWS_QUERY = 30, 23, 40, 29
STATEMENT_ENDS = 1


def log_with_lengths() -> Log:
    """A log whose format description tells the real lengths of post-headers."""
    log = Log()
    lengths = bytearray(42)
    lengths[18] = 8
    lengths[22:25] = b"\x08\x08\x08"
    lengths[29:32] = b"\x0a\x0a\x0a"
    log.events[0] = event(15, struct.pack("<H50sIB", 4, b"8.0.15", 0, 19) + lengths + b"\1", 4, log.timestamp)
    return log


def table_map(log: Log, number: int, database: str, table: str) -> None:
    names = b"".join(bytes([len(name)]) + name.encode() + b"\0" for name in (database, table))
    log.add(19, number.to_bytes(6, "little") + b"\1\0" + names + b"\1\3\0\0")


def rows(log: Log, number: int, text: bytes, flags: int = 0, type_code: int = ROWS) -> None:
    log.add(type_code, number.to_bytes(6, "little") + struct.pack("<HH", flags, 2) + text)


def statement(log: Log) -> None:
    """One that changes a table that is left out, and one that is not, in several events each."""
    log.add(ROWS_QUERY, b"\x20" + WORD)
    table_map(log, 1, "shop", "secret")
    table_map(log, 2, "shop", "orders")
    rows(log, 1, WORD * 3)
    rows(log, 2, OTHER)
    rows(log, 1, WORD * 200, type_code=ROWS_V1)
    rows(log, 2, OTHER * 150, STATEMENT_ENDS)


def sample() -> Log:
    log = log_with_lengths()
    log.transaction(1)
    log.events.pop()
    log.end -= len(event(16, bytes(8), 0, 0))
    statement(log)
    # The most ordinary statement: its only event is its last, and comes in pieces.
    table_map(log, 3, "shop", "secret")
    rows(log, 3, WORD * 200, STATEMENT_ENDS)
    # The number of the first is that of another table now.
    table_map(log, 1, "shop", "orders")
    rows(log, 1, OTHER, STATEMENT_ENDS)
    log.add(16, bytes(8))
    log.transaction(2, 30)
    return log


def events_of(kafka: Recorder) -> dict[int, tuple[bytes, list[dict[str, bytes]]]]:
    """By position: the bytes that came of an event, and the headers of its records."""
    found: dict[int, tuple[bytes, list[dict[str, bytes]]]] = {}
    for key, value, _, headers in kafka.committed:
        data, before = found.get(RawKey.parse(key).position, (b"", []))
        found[RawKey.parse(key).position] = data + value, [*before, headers]
    return found


def assert_blanked(log: Log, kafka: Recorder) -> None:
    state, found, at = StreamState(), events_of(kafka), 4
    for data in log.events:
        written, headers = found.pop(at)
        assert len(written) == len(data)
        if at == 4 or WORD in data:
            decoded = decode_event(written, state)
        if WORD in data:
            assert isinstance(decoded.event, IgnorableLogEvent)
            assert not any(written[19:-4])
            assert decoded.header.next_position == at + len(data)
            assert all(header[HEADER_EXCLUDED] == b"1" for header in headers)
        else:
            assert written == data
            assert not any(HEADER_EXCLUDED in header for header in headers)
        at += len(data)
    assert not found


@settings(max_examples=150)
@given(piece_size=st.integers(150, 3000), stops=STOPS)
def test_wherever_it_stops_the_same_events_are_blanked(
    piece_size: int, stops: list[tuple[int, bool, bool]]
) -> None:
    """Between the TABLE_MAP and the rows, too, where a connection by position brings the rows alone."""
    log, kafka = sample(), Recorder()
    writer = take_with_stops(log, kafka, piece_size, stops, "shop.secret")
    assert_blanked(log, kafka)
    state = writer.state
    assert state is not None
    assert state.excluded_tables == []


@pytest.mark.parametrize("pattern", ["shop.secret", "%.SECRET", "Shop.s_cret", "shop.s%"])
def test_the_kernel_takes_what_is_not_blanked(pattern: str) -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka, pattern)
    writer.write([piece for data in resume(writer, log) for piece in whole(data)])
    writer.checkpoint()
    assert_blanked(log, kafka)


def test_a_name_that_cannot_be_read_counts_as_left_out() -> None:
    log, kafka = log_with_lengths(), Recorder()
    log.add(19, (7).to_bytes(6, "little") + b"\1\0\xff" + b"cut")
    rows(log, 7, WORD, STATEMENT_ENDS)
    writer = make(kafka, "shop.secret")
    writer.write([piece for data in resume(writer, log) for piece in whole(data)])
    writer.checkpoint()
    written, _ = events_of(kafka)[log.end - len(log.events[-1])]
    assert WORD not in written


def test_damaged_rows_are_blanked_whosever_they_are() -> None:
    log, kafka = log_with_lengths(), Recorder()
    table_map(log, 1, "shop", "orders")
    log.add(ROWS, (1).to_bytes(6, "little") + struct.pack("<HH", 1, 2) + WORD, bad=True)
    writer = make(kafka, "shop.secret")
    writer.write([piece for data in resume(writer, log) for piece in whole(data)])
    writer.checkpoint()
    written, (headers,) = events_of(kafka)[log.end - len(log.events[-1])]
    assert WORD not in written
    # What stands there instead is whole.
    assert HEADER_CHECKSUM not in headers


@pytest.mark.parametrize("piece_size", [100_000, 300])
def test_a_compressed_transaction_is_not_written(piece_size: int) -> None:
    log, kafka = log_with_lengths(), Recorder()
    at = log.add(PAYLOAD, bytes(1000))
    writer = make(kafka, "shop.secret")
    with pytest.raises(UserError, match="binlog_transaction_compression=OFF"):
        take(writer, log, piece_size)
    writer.checkpoint()
    state = writer.state
    assert state is not None
    assert (state.position, at in events_of(kafka)) == (at, False)


def test_an_event_in_pieces_of_any_size_is_blanked_whole() -> None:
    """The checksum may be cut in two, as may the header of the event's first piece not."""
    log = log_with_lengths()
    table_map(log, 1, "shop", "secret")
    rows(log, 1, WORD * 30, STATEMENT_ENDS)
    size = len(log.events[-1])
    for last in range(1, 8):
        kafka = Recorder()
        writer = make(kafka, "shop.secret")
        for data in resume(writer, log)[:-1]:
            writer.write(whole(data))
        data = log.events[-1]
        first, rest = data[: size - last], data[size - last :]
        writer.write([EventPiece(first, True, False, size), EventPiece(rest, False, True, size)])
        writer.checkpoint()
        assert_blanked(log, kafka)


def test_of_a_log_without_checksums_all_is_zeros() -> None:
    log, kafka = log_with_lengths(), Recorder()
    log.events[0] = log.events[0][:-5] + b"\0" + log.events[0][-4:]
    table_map(log, 1, "shop", "secret")
    rows(log, 1, WORD, STATEMENT_ENDS)
    # Nor do the events end with one.
    bare, end = [], 4 + len(log.events[0])
    for data in log.events[1:]:
        end += len(data) - 4
        bare.append(data[:9] + struct.pack("<II", len(data) - 4, end) + data[17:-4])
    tracker, writer = PositionTracker(log.name, 4), make(kafka, "shop.secret")
    writer.begin_session(tracker)
    for data in (*log.start_of_dump(4), log.events[0], *bare):
        writer.write(whole(data))
    writer.checkpoint()
    written = kafka.committed[-1][1]
    assert (len(written), written[4], any(written[19:])) == (len(bare[-1]), 28, False)


def test_case_does_not_count() -> None:
    assert is_excluded(("Shop.%",), "SHOP", "Straße")
    assert not is_excluded((r"shop.a\_b",), "shop", "axb")
