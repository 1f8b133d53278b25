"""A raw topic that is decoded as it grows, wherever what has arrived ends: without Kafka and Spark."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from millrace.runtime.errors import UserError
from millrace.spark import raw_topic
from millrace.spark.decoding import Decoding
from millrace.spark.raw_topic import BEGINS, DESCRIBES, Piece, described_at, first_place, whole_stretch
from millrace.stage import Record
from spark_jobs import reprocess
from spark_jobs.common import raw_stream
from spark_jobs.common.follow import Arrived
from spark_jobs.common.job import Input, Job
from spark_jobs.common.kafka import TopicSlice
from spark_jobs.common.outcome import Outcome, PieceWriter
from tests.stages import without_times
from tests.unit.rowmapper.harness import SOURCE
from tests.unit.spark.test_decoding import LOGS, NOWHERE, code_of, log, published, raw, topic_of

NOW = datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.fixture(params=LOGS)
def path(request: pytest.FixtureRequest) -> Path:
    return log(request.param)


@pytest.fixture
def records(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Record]]:
    """The log, which is what the raw topic holds."""
    found = raw(path)
    monkeypatch.setattr(raw_topic, "_LAST_OFFSETS", 7)
    with topic_of(found):
        yield found


def decoded(
    records: list[Record],
    piece: Piece,
    prepared: Sequence[tuple[int, int]],
    decoding: Decoding,
    folder: Path,
) -> tuple[list[Any], list[tuple[int, int]]]:
    """Decode a stretch as executors do; give what it makes, and what is not decided."""
    writer = PieceWriter(decoding, str(folder), "0", placed=True)
    for first, last in prepared:
        before = described_at(NOWHERE, "t", first, 0)
        assert before is not None
        writer.begin(before)
        writer.begin(*records[first : last + 1])
    if piece.described is not None:
        writer.begin(piece.described)
    writer.take(records[piece.start : piece.end])
    outcome = writer.finish()
    made = [
        (file.table, without_times(row))
        for file in outcome.files
        for row in pq.ParquetFile(folder / file.path).read().to_pylist()
    ]
    return made, [*outcome.unfinished, *outcome.prepared]


@pytest.mark.parametrize("into_rows", [True, False])
def test_what_stretches_make_is_what_the_whole_makes(
    path: Path, records: list[Record], tmp_path: Path, into_rows: bool
) -> None:
    """Each transaction once, none in part; also XA transactions, which are decided in a later stretch."""
    decoding = Decoding(SOURCE, into_rows, 0, schemas=published(path)[1])
    whole, left = decoded(records, Piece(0, len(records)), (), decoding, tmp_path / "whole")
    chance = random.Random(len(records))
    ends = sorted({*chance.sample(range(1, len(records)), min(25, len(records) // 2)), len(records)})
    at, prepared, made, cut = 0, list[tuple[int, int]](), list[Any](), 0
    for end in ends:
        piece = whole_stretch(NOWHERE, "t", (at, end), 0)
        cut += piece is None or piece.end < end
        if piece is None:
            continue
        assert piece.start == at < piece.end <= end
        found, prepared = decoded(records, piece, prepared, decoding, tmp_path / str(end))
        at, made = piece.end, made + found
    assert cut
    assert (at, prepared) == (len(records), left)
    assert sorted(map(str, made)) == sorted(map(str, whole))
    assert whole_stretch(NOWHERE, "t", (at, at), 0) is None


def test_garbage_does_not_hide_the_format_description(records: list[Record]) -> None:
    """Not even where its key is of another log, or of a later epoch."""
    keys = b"1:0:x:4", b"1:99999:binlog.000001:4", b"", None
    whole = list(records)
    described = next(record for record in records if code_of(record) in DESCRIBES)
    records.clear()
    for record in whole:
        for key, value in zip(keys, (b"x", b"x", b"", None), strict=True):
            records.append(Record(len(records), 0, key, value))
        records.append(record._replace(offset=len(records)))
    for at in range(9, len(records), 5):  # the events
        found = described_at(NOWHERE, "t", at, 0)
        assert found is not None
        assert found.value == described.value


def test_where_a_stretch_may_begin(records: list[Record]) -> None:
    first = first_place(NOWHERE, "t", (0, len(records)), 0)
    assert first == next(record.offset for record in records if code_of(record) in BEGINS)
    assert first_place(NOWHERE, "t", (first + 1, first + 2), 0) is None


def test_pieces_that_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that decide what was prepared before them."""
    asked: list[int] = []
    monkeypatch.setattr(reprocess, "described_at", lambda _kafka, _topic, at, *_: asked.append(at))
    job = cast("Job", SimpleNamespace(settings=SimpleNamespace(kafka=NOWHERE)))
    pieces = [Piece(at, at + 10) for at in (0, 10, 20, 30)]
    outcomes = dict(enumerate([Outcome(prepared=[(3, 5)]), Outcome(), Outcome(decided=1), Outcome()]))
    outcomes[3].prepared = [(35, 38)]
    of_topic = Input("t", TopicSlice("t.raw", {0: (0, 40)}), {})
    again = reprocess._deciding(job, of_topic, pieces, outcomes, [Piece(-9, -5)], {})
    assert again == {2: replace(pieces[2], prepared=(Piece(-9, -5), Piece(3, 6)))}
    assert asked == [3], "what nothing decides needs no format description"
    given = {2: again[2].prepared}
    outcomes[2] = Outcome(prepared=[(-9, -6)])
    assert reprocess._deciding(job, of_topic, pieces, outcomes, [Piece(-9, -5)], given) == {}


def test_records_that_were_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a prepared transaction that nobody has decided are done without; others are not."""
    monkeypatch.setattr(raw_stream, "resolve_slice", lambda *_: TopicSlice("t.raw", {0: (7, 40)}))
    monkeypatch.setattr(raw_stream, "described_at", lambda *_: None)
    monkeypatch.setattr(raw_stream, "whole_stretch", lambda _kafka, _topic, span, _first: Piece(*span))
    job = cast(
        "Job", SimpleNamespace(spark=None, kafka={}, output="o", settings=SimpleNamespace(kafka=NOWHERE))
    )
    one = Input("t", TopicSlice("t.raw", {0: (0, 40)}), {})
    notes: list[str] = []
    arrived = Arrived(40, NOW)
    position = raw_stream._Position(20, [(3, 5), (9, 12)])
    micro_batch = raw_stream._next(job, one, position, arrived, notes)
    assert micro_batch == raw_stream.MicroBatch(Piece(20, 40), [Piece(9, 13)], True)
    (note,) = notes
    assert note.startswith("records 3 to 5 of t.raw, an XA transaction that is prepared and not decided")
    assert note.endswith("if it is committed, its rows are missing")
    with pytest.raises(UserError, match=r"^records 6 to 6 of t\.raw were deleted before they were read"):
        raw_stream._next(job, one, raw_stream._Position(6), arrived, notes)
