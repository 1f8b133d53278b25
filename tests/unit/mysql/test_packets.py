"""Events cut out of packets: whole, byte by byte, beyond the buffer, beyond a packet; errors in between."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.mysql.errors import ProtocolError
from millrace.mysql.packets import HEAD_SIZE, DumpEnd, EventPiece, EventSplitter, ServerError

MAX_PAYLOAD = 0xFFFFFF


pytestmark = pytest.mark.usefixtures("either_codec")


def event(size: int, fill: bytes = b"x") -> bytes:
    """An event whose header says how large it is."""
    return struct.pack("<IBIIIH", 1, 30, 1, size, 0, 0) + fill * (size - 19)


def packets(*payloads: bytes, sequence: int = 1) -> bytes:
    """Packets as a server sends them; a payload is split where it does not fit into one."""
    out = bytearray()
    for payload in payloads:
        rest = payload
        while True:
            part, rest = rest[:MAX_PAYLOAD], rest[MAX_PAYLOAD:]
            out += struct.pack("<I", len(part) | sequence << 24) + part
            sequence = (sequence + 1) & 0xFF
            if len(part) < MAX_PAYLOAD:
                break
    return bytes(out)


def feed(splitter: EventSplitter, data: bytes, step: int) -> list[EventPiece]:
    pieces: list[EventPiece] = []
    offset = 0
    while offset < len(data):
        space = splitter.space()
        size = min(step, len(space), len(data) - offset)
        assert size > 0
        space[:size] = data[offset : offset + size]
        splitter.filled(size)
        offset += size
        pieces += splitter.split()
    return pieces


def joined(pieces: list[EventPiece]) -> list[bytes]:
    """Put pieces together, checking their marks."""
    events: list[bytes] = []
    parts: list[bytes] = []
    for piece in pieces:
        assert piece.first == (not parts)
        parts.append(piece.data)
        if piece.last:
            events.append(b"".join(parts))
            assert len(events[-1]) == piece.event_size
            parts = []
    assert not parts
    return events


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_events_come_out_as_they_went_in(step: int) -> None:
    events = [event(19 + size) for size in (0, 1, 40, 200)] * 100
    pieces = feed(EventSplitter(4096), packets(*(b"\0" + e for e in events)), step)
    assert [piece.data for piece in pieces] == events
    assert all(piece.first and piece.last for piece in pieces)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(19, 700), min_size=1, max_size=20),
    step=st.integers(1, 900),
    buffer_size=st.integers(64, 600),
)
def test_pieces_join_to_events_whatever_the_buffer(sizes: list[int], step: int, buffer_size: int) -> None:
    events = [event(size) for size in sizes]
    pieces = feed(EventSplitter(buffer_size), packets(*(b"\0" + e for e in events)), step)
    assert joined(pieces) == events


@pytest.mark.parametrize("step", [1, 20, 1000])
@pytest.mark.parametrize("buffer_size", [128, 8192])
def test_the_first_piece_tells_of_the_event(step: int, buffer_size: int) -> None:
    pieces = feed(EventSplitter(buffer_size), packets(b"\0" + event(9000)), step)
    assert len(pieces[0].data) >= min(HEAD_SIZE, buffer_size - 5)
    assert joined(pieces) == [event(9000)]


@pytest.mark.parametrize("beyond", [-2, -1, 0, 1, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1])
def test_events_around_the_largest_packet(beyond: int) -> None:
    large = event(MAX_PAYLOAD + beyond, b"L")
    events = [event(30), large, event(31)]
    pieces = feed(EventSplitter(1 << 20), packets(*(b"\0" + e for e in events)), 1 << 20)
    assert joined(pieces) == events
    assert max(len(piece.data) for piece in pieces) <= 1 << 20


def test_errors_come_after_the_events_before_them() -> None:
    splitter = EventSplitter(4096)
    error = b"\xff" + struct.pack("<H", 1236) + b"#HY000" + "Café is purged".encode()
    assert len(feed(splitter, packets(b"\0" + event(30), error), 4096)) == 1
    for _ in range(2):
        with pytest.raises(ServerError) as caught:
            splitter.split()
        assert (caught.value.code, caught.value.state, caught.value.text) == (1236, "HY000", "Café is purged")


def test_an_error_of_a_server_that_shuts_down_has_packet_number_0() -> None:
    splitter = EventSplitter(4096)
    data = packets(b"\0" + event(30)) + packets(b"\xff" + struct.pack("<H", 1053) + b"#08S01down", sequence=0)
    feed(splitter, data, 4096)
    with pytest.raises(ServerError):
        splitter.split()


def test_the_end_of_a_dump_that_does_not_wait() -> None:
    splitter = EventSplitter(4096)
    feed(splitter, packets(b"\0" + event(30), b"\xfe\0\0\0\0"), 4096)
    with pytest.raises(DumpEnd):
        splitter.split()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (packets(b"\0" + event(30), sequence=2), "packet number 2 arrived, expected number 1"),
        (
            packets(b"\x07rest of it"),
            "^a packet of the dump starts with 0x07, which means neither event, error nor end$",
        ),
        (
            packets(b"\0" + event(30)) + packets(b"\0" + event(30), sequence=3),
            "number 3 arrived, expected number 2",
        ),
    ],
)
def test_packets_that_do_not_join(data: bytes, words: str) -> None:
    def read_all() -> None:
        splitter = EventSplitter(4096)
        feed(splitter, data, 4096)
        splitter.split()

    with pytest.raises(ProtocolError, match=words):
        read_all()


def test_an_event_in_parts_must_be_as_large_as_its_packet() -> None:
    with pytest.raises(
        ProtocolError, match=r"^an event of 500 bytes has 500 bytes left, and its last packet \d+$"
    ):
        feed(EventSplitter(128), packets(b"\0" + event(500)[:400]), 128)
    splitter = EventSplitter(4096)
    splitter._event_size = splitter._event_left = 30
    with pytest.raises(
        ProtocolError, match=r"^an event of 30 bytes has 30 bytes left, and its next packet 31$"
    ):
        splitter._open_packet(31, more=True)


def semi_sync(events: list[tuple[bytes, bool]]) -> bytes:
    """Packets to a semi-synchronous replica; after one that wants an answer their numbers begin again."""
    out, sequence = b"", 1
    for data, wants_ack in events:
        payload = b"\0\xef" + bytes([wants_ack]) + data
        out += packets(payload, sequence=sequence)
        sequence = 1 if wants_ack else (sequence + 1 + len(payload) // MAX_PAYLOAD) & 0xFF
    return out


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(19, 700), st.booleans()), min_size=1, max_size=20),
    step=st.integers(1, 900),
    buffer_size=st.integers(64, 600),
)
def test_events_for_a_semi_synchronous_replica(
    sizes: list[tuple[int, bool]], step: int, buffer_size: int
) -> None:
    events = [(event(size), wants_ack) for size, wants_ack in sizes]
    splitter = EventSplitter(buffer_size, semi_sync=True)
    assert joined(feed(splitter, semi_sync(events), step)) == [data for data, _ in events]
    assert splitter.wants_ack == any(wants_ack for _, wants_ack in sizes)


def test_what_wants_an_acknowledgement_is_known_with_the_last_piece() -> None:
    splitter = EventSplitter(128, semi_sync=True)
    data = semi_sync([(event(30), False), (event(500), True)])
    assert len(joined(feed(splitter, data[:45], 45))) == 1
    assert not splitter.wants_ack
    pieces = feed(splitter, data[45:-1], 100)
    assert not pieces[-1].last
    assert not splitter.wants_ack
    assert feed(splitter, data[-1:], 1)[-1].last
    assert splitter.wants_ack


def test_an_event_of_several_packets_that_wants_an_acknowledgement() -> None:
    splitter = EventSplitter(1 << 20, semi_sync=True)
    events = [(event(30), True), (event(2 * MAX_PAYLOAD, b"L"), True), (event(31), False)]
    assert joined(feed(splitter, semi_sync(events), 1 << 20)) == [data for data, _ in events]
    assert splitter.wants_ack


def test_a_packet_without_the_mark_of_semi_sync() -> None:
    with pytest.raises(ProtocolError, match="has 0x01 where 0xef must be"):
        feed(EventSplitter(4096, semi_sync=True), packets(b"\0" + event(30)), 4096)
