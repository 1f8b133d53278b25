"""Partitions as Kafka's Java clients choose them."""

import pytest

from millrace.rowmapper.partition import murmur2, partition_of, partitions_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # the vectors of Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(data, expected):
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_schema_id_does_not_move_a_key():
    keys = [b"\x00" + schema.to_bytes(4, "big") + b"\x0ekey-one" for schema in (1, 77)]
    assert len({partition_of(key, 12) for key in keys}) == 1


def test_rows_without_a_key_keep_their_order():
    assert partition_of(None, 12) == 0
    assert partition_of(b"\x00\x00\x00\x00\x01x", 1) == 0


def test_many_keys_at_once():
    keys = [None, *(b"\x00\x00\x00\x00\x01" + b"k" * size for size in range(40))]
    expected = [partition_of(key, 12) for key in keys]
    assert len(set(expected)) > 5
    assert list(partitions_of(keys, 12)) == expected
