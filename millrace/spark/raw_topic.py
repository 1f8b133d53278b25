"""The raw topic, read by executors themselves, in pieces that begin where a transaction does.

Where a topic may be divided is found by reading a few records at each place, not by a pass over all of it.
Spark's Kafka source would pass each record through the JVM, which costs more than decoding it. What is
archived of a topic is read from the archive in the same way.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeGuard

from millrace.binlog.grammar import HEADING, Role
from millrace.binlog.header import TYPE_OFFSET
from millrace.binlog.transaction import codes_of
from millrace.contract import EventKey, RawKey
from millrace.kafka.input import InputReader, committed_batches
from millrace.runtime.settings import KafkaSettings
from millrace.spark.archive import Archive
from millrace.spark.decoding import ENDS, Decoding, RawDecoder
from millrace.stage import Record

_GROUP: Final = "millrace-job"
_BATCH: Final = 500
_SIZE: Final = slice(9, 13)
"""Where an event's header has its size."""

_ARCHIVED_BATCH: Final = 5000
_LOOKED_AT: Final = 200_000
"""Offsets that are searched for a beginning, beyond where a piece should begin."""

_LAST_OFFSETS: Final = 10_000
"""Offsets at the end of a range that are searched first for the beginning of its last transaction."""

_FIRST_RECORDS: Final = 100
"""Records of a log file among which its head is."""

_CERTIFICATES: Final = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
BEGINS: Final = codes_of(*HEADING)
DESCRIBES: Final = codes_of(Role.START)


_FileOf = Callable[[Record], tuple[int, int] | None]
"""Returns epoch and number of a record's log file; None if its key does not contain them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the raw topic that is decoded by itself; ``described`` has the format description for it.

    ``prepared`` are the XA transactions that the piece may decide.
    """

    start: int
    end: int
    described: Record | None = None
    prepared: "tuple[Piece, ...]" = ()

    @property
    def offsets(self) -> tuple[int, int]:
        """First and last offset."""
        return self.start, self.end - 1


@dataclass(frozen=True, slots=True)
class CarriedSettings:
    """How executors connect to Kafka: the settings, and certificates as text, not as files."""

    kafka: KafkaSettings
    certificates: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kafka: KafkaSettings) -> "CarriedSettings":
        """Take along what the settings name."""
        paths = {name: getattr(kafka, name) for name in _CERTIFICATES}
        return cls(kafka, {name: path.read_text() for name, path in paths.items() if path is not None})

    def unpack(self, folder: str) -> KafkaSettings:
        """Return the settings, with the certificates in a folder of this machine."""
        found: dict[str, Any] = {}
        for name, text in self.certificates.items():
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_text(text)
            found[name] = path
        return self.kafka.model_copy(update=found)


def read_piece(
    carried: CarriedSettings,
    topic: str,
    piece: Piece,
    *,
    archive: Archive | None = None,
    dated: bool = False,
) -> Iterator[Sequence[Record]]:
    """Yield the committed records of a piece in batches, those that an ``archive`` has from there.

    Unless they are to be ``dated``, they have offsets for timestamps.
    """
    start = piece.start
    if archive is not None and start < archive.end:
        yield from archive.batches(_ARCHIVED_BATCH, start, min(piece.end, archive.end), dated=dated)
        start = archive.end
    if start < piece.end:
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            yield from committed_batches(carried.unpack(folder), topic, _GROUP, start, piece.end, dated=dated)


def last_record(
    carried: CarriedSettings, topic: str, start: int, end: int, archive: Archive | None = None
) -> Record | None:
    """Return the last committed record from an offset to before another.

    The offsets in between may be those of ends of Kafka's transactions, or of aborted ones.
    """
    begin, stride = end, 2
    while begin > start:
        begin, stride = max(start, end - stride), 100 * stride
        found = None
        for records in read_piece(carried, topic, Piece(begin, end), archive=archive):
            found = records[-1]
        if found is not None:
            return found
    return None


def read_spans(
    settings: KafkaSettings, topic: str, spans: Iterable[tuple[int, int]]
) -> Iterator[Iterator[Record]]:
    """Yield the committed records of spans, each from an offset to before another, in turn."""
    with InputReader(settings, topic, _GROUP, ends=True) as reader:
        for start, end in spans:
            reader.jump(start)
            yield chain.from_iterable(reader.batches(_BATCH, end))


def is_whole(value: bytes | None) -> TypeGuard[bytes]:
    """Return whether a value has as many bytes as the header of an event in it says: garbage has not."""
    if value is None or len(value) < _SIZE.stop:
        return False
    return len(value) == int.from_bytes(value[_SIZE], "little")


def find_pieces(
    settings: KafkaSettings,
    topic: str,
    offsets: tuple[int, int],
    first: int,
    number: int,
    *,
    archive: Archive | None = None,
) -> list[Piece]:
    """Cut a slice of a raw topic, whose first offset is ``first``, into about ``number`` pieces.

    Of a slice that begins later than the topic what comes before the first place where a transaction begins
    is left out, if that is near. No transaction is cut, but for an XA transaction between where it is
    prepared and where it is decided.
    """
    start, end = offsets
    if start >= end:
        return []
    with _searching(settings, topic, first, end, archive) as search:
        if start > first:
            start = search.place(start, end) or start
        wanted = [start + (end - start) * index // number for index in range(1, number)]
        places = [start]
        for at, until in zip(wanted, [*wanted, end][1:], strict=True):
            if at <= places[-1]:
                continue
            place = search.place(at, until)
            if place is not None and places[-1] < place < end:
                places.append(place)
        return [
            Piece(at, until, None if at == first else search.described(at))
            for at, until in zip(places, [*places[1:], end], strict=True)
        ]


def whole_stretch(
    settings: KafkaSettings,
    topic: str,
    offsets: tuple[int, int],
    first: int,
    archive: Archive | None = None,
) -> Piece | None:
    """Return the stretch of a raw topic from where no transaction is open to the last such place.

    None where a transaction that begins at the first of the ``offsets`` does not end before the last.
    """
    start, end = offsets
    if start >= end:
        return None
    with _searching(settings, topic, first, end, archive) as search:
        begun = stop = search.last_place(start)
        decoder = RawDecoder(Decoding("raw", into_rows=False, now_ms=0))
        if (described := search.described(begun)) is not None:
            decoder.begin(described)
        for record in search.records(begun):
            decoder.begin(record._replace(timestamp_ms=record.offset))
            if decoder.between_transactions:
                stop = record.offset + 1
        return None if stop == start else Piece(start, stop, search.described(start))


def first_place(
    settings: KafkaSettings,
    topic: str,
    offsets: tuple[int, int],
    first: int,
    archive: Archive | None = None,
) -> int | None:
    """Return the first of some offsets where a transaction begins, or one has just ended."""
    start, end = offsets
    if start >= end:
        return None
    with _searching(settings, topic, first, end, archive) as search:
        return search.place(start, end, most=end - start)


def described_at(
    settings: KafkaSettings,
    topic: str,
    offset: int,
    first: int,
    archive: Archive | None = None,
    *,
    end: int | None = None,
) -> Record | None:
    """Return the format description of the log file that the first record from an offset on is of.

    It is the record at this offset, unless ``end`` says how far to look.
    """
    with _searching(settings, topic, first, offset + 1 if end is None else end, archive) as search:
        return search.described(offset)


def head_of_file(
    settings: KafkaSettings, topic: str, offsets: tuple[int, int], first: int
) -> tuple[int, int] | None:
    """Return between which offsets of a topic of events, before a slice, the head of a log file is.

    It is the file that the first record of the slice is of; None where there is no record. ``first`` is the
    first offset of the topic.
    """
    start, end = offsets
    with _searching(settings, topic, first, end, file_of=_file_of_event) as search:
        begin = search.start_of_file(start)
    return None if begin is None else (begin, min(begin + _FIRST_RECORDS, start))


@contextmanager
def _searching(  # noqa: PLR0917 - as _Search has them
    settings: KafkaSettings,
    topic: str,
    first: int,
    end: int,
    archive: Archive | None = None,
    file_of: "_FileOf | None" = None,
) -> "Iterator[_Search]":
    """Search a topic before an offset; Kafka is not asked where an archive has all of that."""
    if archive is not None and end <= archive.end:
        yield _Search(None, first, end, archive, file_of)
        return
    with InputReader(settings, topic, _GROUP, ends=True) as reader:
        yield _Search(reader, first, end, archive, file_of)


class _Search:
    """Looks at records here and there, with one consumer, and in the archive."""

    def __init__(
        self,
        reader: InputReader | None,
        first: int,
        end: int,
        archive: Archive | None,
        file_of: "_FileOf | None",
    ) -> None:
        self._reader = reader
        self._first = first
        self._end = end
        self._archive = archive
        self._file_of = file_of or _file_of
        self._descriptions: dict[tuple[int, int], Record | None] = {}

    def records(self, start: int, end: int | None = None) -> Iterator[Record]:
        """Yield records from an offset to before another, which is the end of the slice by default."""
        until = self._end if end is None else end
        if self._archive is not None and start < self._archive.end:
            archived = self._archive.batches(_BATCH, start, min(until, self._archive.end))
            yield from chain.from_iterable(archived)
            start = self._archive.end
        if start < until and self._reader is not None:
            self._reader.jump(start)
            yield from chain.from_iterable(self._reader.batches(_BATCH, until))

    def place(self, at: int, until: int, *, most: int = _LOOKED_AT) -> int | None:
        """Return the first offset from ``at`` on where a transaction begins, or one has just ended.

        It is looked for among ``most`` offsets.
        """
        for record in self.records(at, min(until, at + most)):
            code = _type_of(record)
            if code in BEGINS:
                return record.offset
            if code in ENDS:
                return record.offset + 1
        return None

    def last_place(self, start: int) -> int:
        """Return the last offset where a transaction begins, or one has just ended; ``start`` where none is.

        An end that only the text of a statement tells is not seen.
        """
        end, stride = self._end, _LAST_OFFSETS
        while end > start:
            begin, found = max(start, end - stride), None
            for record in self.records(begin, end):
                code = _type_of(record)
                if code in BEGINS:
                    found = record.offset
                elif code in ENDS:
                    found = record.offset + 1
            if found is not None:
                return found
            end, stride = begin, stride * 8
        return start

    def described(self, at: int) -> Record | None:
        """Return the format description of the log file that the record at an offset is of."""
        place = self._file_at(at)
        if place is None:
            return None
        if place not in self._descriptions:
            self._descriptions[place] = self._description(self._first_of(place, at), at)
        return self._descriptions[place]

    def start_of_file(self, at: int) -> int | None:
        """Return the first offset of the log file that the record at an offset is of."""
        place = self._file_at(at)
        return None if place is None else self._first_of(place, at)

    def _file_at(self, at: int) -> tuple[int, int] | None:
        found = map(self._file_of, self.records(at))
        return next((place for place in found if place is not None), None)

    def _first_of(self, place: tuple[int, int], at: int) -> int:
        low, high = self._first, at
        while low < high:
            middle = (low + high) // 2
            if self._reached(middle, place, high):
                high = middle
            else:
                low = middle + 1
        return low

    def _reached(self, offset: int, place: tuple[int, int], until: int) -> bool:
        """Return whether the first record from an offset on is of the file or a later one, by its key."""
        for record in self.records(offset, until):
            found = self._file_of(record)
            if found is not None:
                return found >= place
        return True

    def _description(self, start: int, before: int) -> Record | None:
        for record in islice(self.records(start, before), _FIRST_RECORDS):
            if _type_of(record, plain=False) in DESCRIBES:
                return record._replace(timestamp_ms=record.offset)
        return None


def _type_of(record: Record, *, plain: bool = True) -> int | None:
    """Return the type of an event; None for what is none whole, or, if it is to be ``plain``, has headers."""
    value = record.value
    if not is_whole(value) or (plain and record.headers):
        return None
    return value[TYPE_OFFSET]


def _file_of(record: Record) -> tuple[int, int] | None:
    """Return the file of a raw record.

    The key of garbage says nothing: what is neither an event nor has headers, as a chunk or a marker has.
    """
    if not is_whole(record.value) and not record.headers:
        return None
    return _file_in(RawKey.parse, record)


def _file_of_event(record: Record) -> tuple[int, int] | None:
    """Return the file of a record of an events topic."""
    return _file_in(lambda key: EventKey.parse(key).raw, record)


def _file_in(parse: Callable[[bytes], RawKey], record: Record) -> tuple[int, int] | None:
    try:
        epoch, number, _ = parse(record.key or b"").order
    except ValueError:
        return None
    return epoch, number
