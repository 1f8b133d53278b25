"""What a service does between its input and its output: a stage, without Kafka, clock or threads.

A stage takes batches of records and writes into its :class:`Output`. :meth:`Stage.take` is a generator:
wherever it yields, the output and :meth:`Stage.state` agree, so that a Kafka transaction may end there. Who
runs it (:mod:`millrace.kafka.exactly_once`) sends the output, commits it together with the state, and may
leave the stage at any yield, for good.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar, cast

Headers = Sequence[tuple[str, bytes]] | None
"""Headers of a record; None where there are none, as of nearly all."""

Place = tuple[int | str, ...]
"""How far a state has come, in an order in which it only rises."""

Target = tuple[str, int]
"""Topic and partition."""


class Record(NamedTuple):
    """A record as it is read from partition 0 of a topic; ``timestamp_ms`` counts from 1970."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = None


def records_of_columns(
    offsets: Iterable[int],
    timestamps: Iterable[int],
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Iterable[Headers],
) -> list[Record]:
    """Put records together of their fields, without a call of Python for each."""
    return list(map(_RECORD, zip(offsets, timestamps, keys, values, headers)))  # noqa: B905 - may be endless


_RECORD: Final = partial(tuple.__new__, Record)

OutputRecord = tuple[bytes | None, bytes | None, int, Headers]
"""A record to be written: key, value, timestamp in milliseconds since 1970, headers."""


class Block(Protocol):
    """Records that are not objects of their own, for who reads them into columns."""

    size: int
    """Bytes of the values together."""

    def __len__(self) -> int:
        """Count the records."""


Groups = dict[Target, list[OutputRecord]]
"""Records by topic and partition, each in their order."""

_SETTLE_RECORDS: Final = 5000


class Output:
    """Records that a stage has written, by topic and partition, each in their order."""

    settle_bytes = 4 * 1024 * 1024
    """How much makes it full."""

    def __init__(self) -> None:
        self.groups: Groups = {}
        self.count = 0
        self.size = 0
        """Bytes of the values."""

    @property
    def full(self) -> bool:
        """Whether a stage should yield as soon as it can, so that this can be sent."""
        return self.size >= self.settle_bytes or self.count >= _SETTLE_RECORDS

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers = None,
        *,
        partition: int = 0,
    ) -> None:
        """Write a record; None for a tombstone."""
        self.groups.setdefault((topic, partition), []).append((key, value, timestamp_ms, headers))
        self.count += 1
        self.size += len(value or b"")

    def extend(self, topic: str, records: Sequence[OutputRecord], size: int) -> None:
        """Write records to partition 0, whose values have ``size`` bytes together."""
        if records:
            self.groups.setdefault((topic, 0), []).extend(records)
            self.count += len(records)
            self.size += size

    def add_block(self, topic: str, block: Block, timestamp_ms: int) -> None:
        """Write a block to partition 0, as the value of one record."""
        self.groups.setdefault((topic, 0), []).append((None, cast("bytes", block), timestamp_ms, None))
        self.count += len(block)
        self.size += block.size

    @property
    def room(self) -> tuple[int, int]:
        """How many records and bytes it takes until it is full."""
        return _SETTLE_RECORDS - self.count, self.settle_bytes - self.size

    def merge(self, groups: Mapping[Target, list[OutputRecord]], count: int, size: int) -> None:
        """Write ``count`` records, values of ``size`` bytes together; the lists are ours from then on."""
        for target, records in groups.items():
            group = self.groups.setdefault(target, records)
            if group is not records:
                group.extend(records)
        self.count += count
        self.size += size

    def clear(self) -> None:
        """Forget what was sent."""
        self.groups = {}
        self.count = self.size = 0


class FullOutput(Output):
    """One that is always full, so that stages yield wherever they can."""

    settle_bytes = 0


class State(Protocol):
    """Where a stage stands."""

    @property
    def place(self) -> Place:
        """How far it has come."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets in the input topic that it speaks of."""


S_co = TypeVar("S_co", bound=State, covariant=True)


class Stage(Protocol[S_co]):
    """What is done with the records of one topic."""

    output: Output

    def take(self, records: Sequence[Record]) -> Iterator[None]:
        """Take records; yield wherever what was written and :meth:`state` agree, at the end at the latest.

        There are none where none comes: then is the time for other work.
        """

    def state(self) -> S_co:
        """Return the state after everything that was written up to the last yield."""

    @property
    def next_offset(self) -> int:
        """Offset of the record that is to be read next, for lag tools."""
