"""The decoder with and without the kernel, on raw records as they come from Kafka."""

import threading
from collections.abc import Generator, Iterable, Sequence
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from millrace import kernel
from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.state import DecoderState
from millrace.contract import RawKey, Topics
from services.decoder.decoder import Decoder, Output
from services.decoder.metrics import DecoderMetrics

__all__ = ["NOT_BUILT", "RawRecord", "compare", "decode", "deserializer", "raw_records"]

NOT_BUILT = "the kernel for events is not built (make kernel): the reference is tested alone"


class RawRecord:
    """A record of the raw topic."""

    def __init__(
        self, key: bytes | None, value: bytes | None, offset: int, headers: list[tuple[str, bytes]] | None
    ) -> None:
        self._key, self._value, self._offset, self._headers = key, value, offset, headers

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self._offset

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers


def raw_records(
    events: Iterable[tuple[int, bytes]], log_file: str = "log.000001", epoch: int = 0, offset: int = 0
) -> list[RawRecord]:
    """Make the records of events, given with their positions."""
    return [
        RawRecord(
            RawKey(int.from_bytes(data[5:9], "little"), epoch, log_file, position).encode(),
            data,
            number,
            None,
        )
        for number, (position, data) in enumerate(events, offset)
    ]


class _Producer:
    due = False

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def produce(self, *record: Any) -> None:
        self.written.append(record)

    def produce_batch(self, topic: str, records: Sequence[tuple[bytes, bytes, int]]) -> None:
        self.written += [(topic, *record) for record in records]


def _reread(start: int, stop: int) -> Generator[bytes, None, None]:
    """Stand in for what reads again what is too large to be held, which is nothing here."""
    raise AssertionError(f"records {start} to {stop} are not large")
    yield b""


def decode(
    batches: Iterable[Sequence[RawRecord]], *, compiled: bool, limit: int = 10**6, restart: bool = False
) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Give what a decoder writes, and its state behind each batch.

    ``restart`` makes a new decoder of the state for each batch.
    """
    producer = _Producer()
    states: list[bytes] = []
    decoder: Decoder | None = None
    with patch.object(kernel, "_enabled", compiled):
        serialize = EventSerializer()
        writer = serialize.compiled()
    assert (writer is not None) == compiled
    for batch in batches:
        if decoder is None or restart:
            output = Output(
                producer,  # type: ignore[arg-type]
                Topics("shop"),
                serialize,
                lambda fields: repr(sorted(fields.items())).encode(),  # type: ignore[arg-type]
                limit,
                limit,
                writer,
            )
            state = DecoderState.from_bytes(states[-1]) if states else None
            metrics = DecoderMetrics(CollectorRegistry())
            decoder = Decoder(output, metrics, state, reread=_reread, stop=threading.Event())
            decoder.next_offset = batch[0].offset()
        decoder.process(batch)
        states.append(decoder.state())
    return producer.written, states


def compare(
    records: Sequence[RawRecord], batch: int = 1000, *, limit: int = 10**6, restart: bool = False
) -> list[tuple[Any, ...]]:
    """Decode in both ways, expect the same, and give it."""
    batches = [records[at : at + batch] for at in range(0, len(records), batch)]
    compiled = decode(batches, compiled=True, limit=limit, restart=restart)
    reference = decode(batches, compiled=False, limit=limit, restart=restart)
    for ours, theirs in zip(compiled[0], reference[0], strict=False):
        assert ours == theirs
    assert compiled == reference
    return compiled[0]


def deserializer(*, compiled: bool) -> EventDeserializer:
    """Make a reader of the events topic, with or without the kernel."""
    with patch.object(kernel, "_enabled", compiled):
        return EventDeserializer()
