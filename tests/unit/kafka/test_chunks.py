"""Events larger than a record: cut, joined, and what is wrong with pieces that do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.kafka.chunks import ChunkError, ChunkJoiner, split, split_parts


@given(st.binary(max_size=200), st.integers(1, 50))
def test_pieces_join_to_the_whole(value: bytes, limit: int) -> None:
    pieces = list(split(value, limit))
    if len(value) <= limit:
        assert pieces == [(None, value)]
        return
    joiner = ChunkJoiner()
    results = []
    for offset, (header, piece) in enumerate(pieces, 10):
        assert header is not None
        assert header[0] == "chunk"
        assert 0 < len(piece) <= limit
        results.append(joiner.feed(b"key", header[1], piece, offset))
        assert joiner.first_offset == (10 if results[-1] is None else None)
    assert results == [None] * (len(pieces) - 1) + [value]


def test_headers_count_from_zero() -> None:
    assert [header for header, _ in split(b"abcdef", 4)] == [("chunk", b"0/2"), ("chunk", b"1/2")]


@pytest.mark.parametrize("header", [b"", b"1", b"a/b", b"2/2", b"-1/2", b"0/0", b"0/1/2"])
def test_malformed_headers(header: bytes) -> None:
    with pytest.raises(ChunkError, match="the header chunk is"):
        ChunkJoiner().feed(b"key", header, b"", 0)


def test_a_missing_first_piece() -> None:
    with pytest.raises(ChunkError, match="chunk 1 of 3 comes without those before it"):
        ChunkJoiner().feed(b"key", b"1/3", b"", 0)


@pytest.mark.parametrize(
    ("key", "header"), [(b"key", b"2/3"), (b"other", b"1/3"), (b"key", b"1/4"), (b"key", b"0/3")]
)
def test_a_piece_out_of_place(key: bytes, header: bytes) -> None:
    joiner = ChunkJoiner()
    joiner.feed(b"key", b"0/3", b"first", 7)
    with pytest.raises(ChunkError, match="chunk 1 of 3 of b'key' is missing"):
        joiner.feed(key, header, b"", 8)
    assert joiner.pieces == [b"first"]
    assert joiner.first_offset == 7
    joiner.reset()
    assert joiner.first_offset is None
    assert joiner.feed(b"other", b"0/1", b"whole", 9) == b"whole"


def test_a_value_that_came_in_other_parts_than_it_has() -> None:
    with pytest.raises(ChunkError, match=r"^a value of 5 bytes came as 2 bytes$"):
        list(split_parts([b"a", b"b"], 5, 10))
