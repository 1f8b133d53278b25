"""Where the raw topic is cut: chosen from what the first pass has found."""

import pytest

from spark_jobs.common.pieces import Bucket, cuts_between, is_whole


def buckets(*places: int | None) -> list[Bucket]:
    """Give stretches of 100 bytes and ten offsets each."""
    return [Bucket(100, place) for place in places]


def test_pieces_have_about_as_many_bytes() -> None:
    even = buckets(*range(0, 1000, 10))
    assert cuts_between(even, 0, 1000, 4) == [250, 500, 750]
    assert cuts_between(even, 0, 1000, 1) == []


def test_large_events_weigh_more() -> None:
    found = [Bucket(100, 0), Bucket(900, 10), Bucket(100, 20), Bucket(100, 30), Bucket(100, 40)]
    assert cuts_between(found, 0, 50, 2) == [20]


def test_where_no_transaction_begins_nothing_is_cut() -> None:
    assert cuts_between(buckets(0, None, None, None, 44, None), 0, 60, 3) == [44]
    assert cuts_between(buckets(*[None] * 6), 0, 60, 3) == []


def test_more_pieces_than_places() -> None:
    assert cuts_between(buckets(0, 10, 20), 0, 30, 17) == [10, 20]


def test_the_end_is_no_place_to_cut() -> None:
    assert cuts_between(buckets(0, 20), 0, 20, 2) == []


@pytest.mark.parametrize("number", [2, 5, 50])
def test_no_cut_between_prepare_and_decision(number: int) -> None:
    places = cuts_between(buckets(*range(0, 1000, 10)), 0, 1000, number, [(205, 707)])
    assert places
    assert not [place for place in places if 205 < place <= 707]


def test_garbage_is_no_place_to_cut() -> None:
    event = bytes(9) + (25).to_bytes(4, "little") + bytes(12)
    assert is_whole(event)
    for other in (None, b"", b"garbage", b"\0\0\0\0\x0fgarbage, and much of it", event[:-1], event + b"x"):
        assert not is_whole(other)
