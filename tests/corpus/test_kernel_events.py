"""The kernel writes and reads the events of every real file as the reference does."""

from pathlib import Path

import pytest

from millrace import kernel
from millrace.avro.events import EventRecord
from millrace.binlog.errors import BinlogError
from millrace.binlog.file import iter_events
from millrace.stage import Record
from tests.corpus.conftest import CorpusFile
from tests.unit.kernel.both import NOT_BUILT, compare, deserializer, raw_records

pytestmark = pytest.mark.skipif(not kernel.built("events"), reason=NOT_BUILT)

_READ = ("log_file", "position", "transaction", "ordinal", "begins", "ends", "xid", "database", "table")


def records_of(path: Path) -> list[Record]:
    events = []
    with path.open("rb") as stream:
        try:
            for event in iter_events(stream):
                events.append(event)  # noqa: PERF402 - what comes before damage is kept
        except BinlogError:
            pass  # what is damaged is tested with the events
    return raw_records(events, path.name)


def test_every_real_event(
    corpus: list[CorpusFile], sample_logs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    read, reference = (deserializer(compiled=compiled) for compiled in (True, False))
    total = compiled = 0
    for path in [*(file.path for file in corpus), *sample_logs]:
        written = compare(records_of(path), limit=1 << 30)
        total += len(written)
        for topic, _, value, *_ in written:
            if topic != "shop.events":
                continue
            ours, theirs = read(value), reference(value)
            compiled += not isinstance(ours, EventRecord)
            assert all(getattr(ours, name) == getattr(theirs, name) for name in _READ)
            assert ours.decoded == theirs.decoded
    with capsys.disabled():
        print(f"\n{total} records written and read in both ways, {compiled} read by the kernel")
    assert compiled > 90_000
