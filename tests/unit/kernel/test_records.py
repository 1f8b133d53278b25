"""Records in a block are those that were put there, wherever it is cut and whatever is added."""

import random

import pyarrow as pa
import pytest

from millrace import kernel
from millrace.spark.views import VIEWS, RawView
from millrace.stage import Record

pytestmark = pytest.mark.skipif(not kernel.built("records"), reason="the kernel is not built (make kernel)")

if kernel.built("records"):
    from millrace.kernel.records import RecordBlock


def made(chance: random.Random, count: int) -> list[Record]:
    """Make records, of which some have no key, no value, or headers."""
    return [
        Record(
            chance.randrange(1 << 62),
            chance.choice((-1, 0, chance.randrange(1 << 42))),
            chance.choice((None, b"", chance.randbytes(chance.randrange(60)))),
            chance.choice((None, b"", chance.randbytes(chance.randrange(300)))),
            chance.choice((None, None, None, [("chunk", b"0/2"), ("", b"")])),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_block_is_a_sequence_of_its_records(seed: int) -> None:
    chance = random.Random(seed)
    records: list[Record] = []
    block = RecordBlock(Record)
    for _ in range(40):
        more = made(chance, chance.randrange(4))
        block.extend(RecordBlock(Record, more) if chance.random() < 0.5 else more)
        records += more
        start, stop = (chance.randrange(-3, len(records) + 3) for _ in range(2))
        part = block[start:stop]
        assert [*part] == records[start:stop]
        assert [*block] == records
        assert [block[at] for at in range(-len(records), len(records))] == records + records
        assert {type(one) for one in block} <= {Record}
        first, last = sorted((chance.randint(0, len(records)), chance.randint(0, len(records))))
        place = chance.randrange(40)
        assert block.bytes_at(place, first, last) == bytes(
            one.value[place] if one.value and place < len(one.value) else 0 for one in records[first:last]
        )
        assert block.timestamps() == [one.timestamp_ms for one in records]
        assert block.size == sum(len(one.value or b"") for one in records)
        assert bool(block) == bool(records)
        kept = [*part]
        block.number(7)
        records = [one._replace(offset=7 + at) for at, one in enumerate(records)]
        assert [*part] == kept


def test_a_part_is_not_changed_by_what_is_added_to_the_whole_nor_the_whole_by_the_part() -> None:
    records = made(random.Random(1), 20)
    block = RecordBlock(Record, records)
    part, empty = block[3:6], block[6:6]
    part.extend(block[4:5])
    block.extend(block[2:])
    empty.extend(part)
    part.extend(records)
    assert [*block] == records + records[2:]
    assert [*empty] == records[3:6] + records[4:5]
    del block
    assert [*part] == records[3:6] + records[4:5] + records


def test_what_is_no_record_is_refused() -> None:
    block = RecordBlock(Record, made(random.Random(2), 3))
    with pytest.raises(IndexError):
        block[3]
    with pytest.raises(IndexError):
        block[-4]
    with pytest.raises(ValueError, match="gaps"):
        block[::2]
    with pytest.raises(ValueError, match="itself"):
        block.extend(block)
    for place, start, stop in ((-1, 0, 1), (0, -1, 1), (0, 0, 4)):
        with pytest.raises(IndexError):
            block.bytes_at(place, start, stop)
    for wrong in ((1, 2, b"", b""), (1, 2, "", b"", None), (1 << 63, 2, b"", b"", None), 5):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            block.extend([wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        RecordBlock(list)  # type: ignore[arg-type]
    assert len(block) == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_columns_of_a_block_are_those_of_its_records(seed: int) -> None:
    records = made(random.Random(seed), 30)
    view = RawView(VIEWS["raw"].set(2, VIEWS["raw"].field("timestamp").with_type(pa.timestamp("ms", "UTC"))))
    block = RecordBlock(Record, records)
    for start, stop in ((0, 30), (3, 17), (5, 6)):
        batch = view.batch((block[start:stop], 7))
        batch.validate(full=True)
        assert batch.equals(view.batch((records[start:stop], 7)))
