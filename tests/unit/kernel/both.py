"""The decoder with and without the kernel, on raw records as they come from Kafka."""

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from unittest.mock import patch

from millrace import kernel
from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.service_state import DecoderState
from millrace.contract import RawKey, Topics
from millrace.decoder.stage import DecoderStage, Format
from millrace.stage import Record
from tests.stages import Ledger, Written

if kernel.built("records"):
    from millrace.kernel.records import RecordBlock

__all__ = ["NOT_BUILT", "compare", "decode", "deserializer", "raw_records"]

NOT_BUILT = "the kernel for events is not built (make kernel): the reference is tested alone"


def raw_records(
    events: Iterable[tuple[int, bytes]], log_file: str = "log.000001", epoch: int = 0, offset: int = 0
) -> list[Record]:
    """Make the records of events, given with their positions."""
    return [
        Record(
            number,
            1000 + number,
            RawKey(int.from_bytes(data[5:9], "little"), epoch, log_file, position).encode(),
            data,
        )
        for number, (position, data) in enumerate(events, offset)
    ]


def _reread(start: int, stop: int) -> Generator[bytes, None, None]:
    """Stand in for what reads again what is too large to be held, which is nothing here."""
    raise AssertionError(f"records {start} to {stop} are not large")
    yield b""


def decode(
    batches: Iterable[Sequence[Record]],
    *,
    compiled: bool,
    limit: int = 10**6,
    restart: bool = False,
    blocks: bool = False,
) -> tuple[list[Written], list[bytes]]:
    """Return what a decoder writes, and its state after each batch.

    ``restart`` makes a new decoder of the state for each batch. With ``blocks`` it reads and writes blocks.
    """
    ledger = Ledger()
    states: list[bytes] = []
    stage: DecoderStage | None = None
    with patch.object(kernel, "_enabled", compiled):
        serialize = EventSerializer()
        writer = serialize.compiled()
    assert (writer is not None) == compiled
    form = Format(
        Topics("shop"),
        serialize,
        lambda fields: repr(sorted(fields.items())).encode(),  # type: ignore[arg-type]
        limit,
        limit,
    )
    for batch in batches:
        if stage is None or restart:
            state = DecoderState.from_bytes(states[-1]) if states else DecoderState(batch[0].offset)
            new_block = partial(RecordBlock, Record) if blocks else None
            stage = DecoderStage(form, state, reread=_reread, write_events=writer, new_block=new_block)
        ledger.run(stage, RecordBlock(Record, batch) if blocks else batch)
        states.append(ledger.state.to_bytes())
    return ledger.written, states


def compare(
    records: Sequence[Record], batch: int = 1000, *, limit: int = 10**6, restart: bool = False
) -> list[Written]:
    """Decode in both ways, expect the same, and give it."""
    batches = [records[at : at + batch] for at in range(0, len(records), batch)]
    compiled = decode(batches, compiled=True, limit=limit, restart=restart)
    reference = decode(batches, compiled=False, limit=limit, restart=restart)
    for ours, theirs in zip(compiled[0], reference[0], strict=False):
        assert ours == theirs
    assert compiled == reference
    assert decode(batches, compiled=True, limit=limit, restart=restart, blocks=True) == reference
    return compiled[0]


def deserializer(*, compiled: bool) -> EventDeserializer:
    """Make a reader of the events topic, with or without the kernel."""
    with patch.object(kernel, "_enabled", compiled):
        return EventDeserializer()
