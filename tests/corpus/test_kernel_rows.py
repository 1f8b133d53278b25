"""The kernel writes the rows of every real file as the reference does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import kernel
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, decode_event
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent, TableMapEvent
from millrace.binlog.events.transaction import TransactionPayloadEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.table import resolve_columns
from tests.corpus.conftest import CorpusFile
from tests.unit.kernel.both_rows import NOT_BUILT, Way, ways

pytestmark = pytest.mark.skipif(not kernel.built("rows"), reason=NOT_BUILT)


def events_of(path: Path) -> Iterator[BinlogEvent]:
    """All events up to the first that is damaged, those in payloads included."""
    state = StreamState()
    with path.open("rb") as stream:
        try:
            for _, data in iter_events(stream):
                decoded = decode_event(data, state, verify=False)
                yield decoded
                if isinstance(decoded.event, TransactionPayloadEvent):
                    inner = state.for_payload()
                    for each in decoded.event.events():
                        yield decode_event(each, inner)
        except BinlogError:
            return  # what is damaged is tested with the events


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_real_row(
    corpus: list[CorpusFile],
    sample_logs: list[Path],
    capsys: pytest.CaptureFixture[str],
    every: int,
) -> None:
    bound: dict[object, tuple[Way, Way] | None] = {}
    rows = slow = 0
    for path in [*(file.path for file in corpus), *sample_logs][::every]:
        maps: dict[int, TableMapEvent] = {}
        for decoded in events_of(path):
            event = decoded.event
            if isinstance(event, TableMapEvent):
                maps[event.table_id] = event
            if not isinstance(event, RowsEvent) or isinstance(event, PartialUpdateRowsEvent):
                continue
            table_map = maps.get(event.table_id)
            bitmaps = event.columns_before_image, event.columns_after_image
            content = table_map, event.operation, *bitmaps
            if content not in bound:
                bound[content] = bind(table_map, event)
            both = bound[content]
            if both is None:
                continue
            compiled, reference = both
            written = compiled(event.rows)
            assert written == reference(event.rows)
            rows += len(written) if isinstance(written, list) else 0
            slow += compiled.slow
    with capsys.disabled():
        print(f"\n{rows} records of rows written in both ways, {slow} rows of them handed back by the kernel")
    assert rows > 100_000 // every // 2
    assert slow < rows / 20


def bind(table_map: TableMapEvent | None, event: RowsEvent) -> tuple[Way, Way] | None:
    """Bind both ways of writing; None where there is nothing to compare."""
    if table_map is None:
        return None
    try:
        table = resolve_columns(table_map)
    except BinlogError:
        return None
    before, after = event.columns_before_image or None, event.columns_after_image or None
    if not any(before or b"") and not any(after or b""):
        return None
    return ways(table, event.operation, before=before, after=after)
