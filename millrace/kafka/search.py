"""Finding records of partition 0 by what they are: the last that is whole, the first that reaches a place."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from millrace.contract import HEADER_CHUNK
from millrace.kafka.read import read_topic, record_of
from millrace.kafka.state import held_range, oldest_offset
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Record

T = TypeVar("T")

_FIRST_STRIDE: Final = 1000


def last_whole(
    settings: KafkaSettings, topic: str, wanted: Callable[[Record], bool] = lambda _: True
) -> Record | None:
    """Return the last record that is ``wanted``, of one in chunks the last chunk; None if there is none.

    Of a record in chunks the first must be wanted, and all must be there. The topic is read backwards in
    growing strides.
    """
    held = held_range(settings, topic)
    low, end = held.start, held.stop
    stride, start = _FIRST_STRIDE, end
    while start > low:
        start = max(low, end - stride)
        found = _last(_whole(map(record_of, read_topic(settings, topic, start=start)), wanted))
        if found is not None:
            return found
        stride *= 8
    return None


def last_before(
    settings: KafkaSettings, topic: str, offset: int, wanted: Callable[[Record], bool] = lambda _: True
) -> Record | None:
    """Return the last committed record before an offset that is ``wanted``; None if there is none."""
    low, end = oldest_offset(settings, topic), offset
    stride = 1
    while end > low:
        start = max(low, end - stride)
        found = _last(filter(wanted, records_between(settings, topic, start, end)))
        if found is not None:
            return found
        end, stride = start, stride * 8
    return None


def last_since(
    settings: KafkaSettings, topic: str, start: int, wanted: Callable[[Record], bool]
) -> tuple[Record, bool] | None:
    """Return the last record from ``start`` on that is ``wanted``, and whether no further chunk follows.

    Of a record in chunks it is the last one there, and the first must be wanted. None if there is none.
    """
    return _last(_wanted(map(record_of, read_topic(settings, topic, start=start)), wanted))


def _last(found: Iterable[T]) -> T | None:
    return next(iter(deque(found, maxlen=1)), None)


def _whole(records: Iterator[Record], wanted: Callable[[Record], bool]) -> Iterator[Record]:
    """Return records that are wanted, of those in chunks the last chunk."""
    return (record for record, is_whole in _wanted(records, wanted) if is_whole)


def _wanted(records: Iterator[Record], wanted: Callable[[Record], bool]) -> Iterator[tuple[Record, bool]]:
    """Yield records that are wanted, in chunks or not, and whether each ends what it is a chunk of."""
    begun: dict[bytes | None, int] = {}
    """By key: the chunk that comes next. Two services may write theirs at the same time."""
    for record in records:
        header = dict(record.headers or ()).get(HEADER_CHUNK)
        if header is None:
            if wanted(record):
                yield record, True
            continue
        index, count = map(int, header.split(b"/"))
        key = record.key
        if index == 0:
            begun.pop(key, None)
            if not wanted(record):
                continue
        elif begun.get(key) != index:
            continue
        begun[key] = index + 1
        if index + 1 == count:
            del begun[key]
        yield record, index + 1 == count


def first_reaching(
    settings: KafkaSettings, topic: str, within: range, reached: Callable[[Record], bool]
) -> int:
    """Return the offset ``within`` of the first record that has ``reached`` a place; the end if none has.

    The topic must be in the order of these places: it is searched by halves.
    """
    start, end = within.start, within.stop
    while start < end:
        middle = (start + end) // 2
        record = next(records_between(settings, topic, middle, end), None)
        if record is None or reached(record):
            end = middle
        else:
            start = record.offset + 1
    return start


def records_between(settings: KafkaSettings, topic: str, start: int, end: int) -> Iterator[Record]:
    """Yield the committed records from offset ``start`` to before ``end``."""
    for record in map(record_of, read_topic(settings, topic, start=start)):
        if record.offset >= end:
            return
        yield record
