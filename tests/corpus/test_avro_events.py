"""Every real event can be rebuilt from its record of the events topic, and fastavro agrees with the bytes."""

import io
from collections import Counter
from pathlib import Path

import fastavro
import pytest

from millrace.avro.events import EventDeserializer, EventSerializer, binlog_event_schema
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event, encode_event
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from tests.corpus.conftest import CorpusFile

SCHEMA = fastavro.parse_schema(binlog_event_schema())
COMPARED = 50
"""Records of each type that are read and written by fastavro as well."""


def test_raw_events_from_records(
    corpus: list[CorpusFile], sample_logs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    serialize, deserialize = EventSerializer(), EventDeserializer()
    types: Counter[str] = Counter()
    for path in [*(file.path for file in corpus), *sample_logs]:
        state, tracker = StreamState(), TransactionTracker()
        with path.open("rb") as stream:
            try:
                for position, data in iter_events(stream):
                    decoded = decode_event(data, state, verify=False)
                    step = tracker.feed(decoded.header, decoded.event, "log", position)
                    value = serialize(decoded, 3, "log", position, 0, step, ("döb", "t"))
                    record = deserialize(value)
                    assert encode_event(record.decoded, state) == data
                    assert record.event == decoded.event
                    assert (record.epoch, record.log_file, record.position) == (3, "log", position)
                    assert (record.transaction, record.ordinal) == (step.transaction, step.ordinal)
                    assert (record.begins, record.ends, record.xid) == (step.begins, step.ends, step.xid)
                    assert (record.database, record.table) == ("döb", "t")
                    name = type(record.event).__name__
                    types[name] += 1
                    if types[name] <= COMPARED:
                        compare_with_fastavro(value, name)
            except BinlogError:
                continue  # what is damaged is tested with the events
    with capsys.disabled():
        print(f"\n{sum(types.values())} events of {len(types)} types rebuilt from their Avro records")
    assert sum(types.values()) > 100_000


def compare_with_fastavro(value: bytes, name: str) -> None:
    read = fastavro.schemaless_reader(io.BytesIO(value), SCHEMA, None, return_record_name=True)
    assert read["event"][0] == f"millrace.{name}"
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMA, read)
    assert written.getvalue() == value
