"""Raw records in pieces, as executors decode them: the row mapper's rows, wherever the cuts lie."""

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from millrace import kernel
from millrace.avro.columnar import AvroColumns
from millrace.binlog.events import GtidLogEvent, WriteRowsEvent, XaPrepareLogEvent
from millrace.binlog.file import iter_events
from millrace.binlog.gtid_set import GtidSet
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import KafkaSettings, load_settings
from millrace.spark import decoding as decoding_module
from millrace.spark import raw_topic
from millrace.spark.decoding import Decoding, RawDecoder, WholeTransactions, _Kept, sections_of
from millrace.spark.raw_topic import ENDS, Piece, find_pieces
from millrace.stage import Record
from spark_jobs.common.job import Input, Job, RawJobSettings, RowJobSettings
from spark_jobs.common.kafka import TopicSlice
from spark_jobs.common.outcome import Outcome, PieceWriter
from spark_jobs.reprocess import _deciding
from tests.shared import PROJECT, run_python
from tests.stages import without_times
from tests.unit.binlog_command.made_logs import TABLE_MAP, MadeLog
from tests.unit.binlog_command.made_logs import rows as image_rows
from tests.unit.kernel.both import raw_records
from tests.unit.rowmapper.harness import SOURCE, EventsTopic, World

if kernel.built("records"):
    from millrace.kernel.records import RecordBlock

LOGS = [
    "columns/logs/mysql-8.0.12.000001",
    "binlog_command/logs/mysql.000001",
    "binlog_command/logs/mariadb.000001",
    "binlog_command/logs/mariadb-10.1.000001",
]

NOWHERE = KafkaSettings(bootstrap_servers="localhost:1")


def log(name: str) -> Path:
    return PROJECT / "tests" / "unit" / name


def raw(path: Path) -> list[Record]:
    with path.open("rb") as stream:
        records = raw_records(list(iter_events(stream)), path.name)
    return [record._replace(timestamp_ms=record.offset) for record in records]


def code_of(record: Record) -> int:
    return (record.value or bytes(5))[4]


class Topic:
    """Records as a reader of a topic gives them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.at = 0

    def jump(self, offset: int) -> None:
        self.at = offset

    def batches(self, count: int, end: int | None = None) -> Iterator[list[Record]]:
        until = len(self.records) if end is None else min(end, len(self.records))
        for at in range(self.at, until, count):
            yield list(self.records[at : min(at + count, until)])


@contextmanager
def topic_of(records: Sequence[Record]) -> Iterator[None]:
    """Let these be what the raw topic holds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(raw_topic, "InputReader", lambda *_, **__: nullcontext(Topic(records)))
        yield


def pieces(records: Sequence[Record], number: int) -> list[Piece]:
    """Cut records as the driver does it."""
    with topic_of(records):
        return find_pieces(NOWHERE, "t.raw", (0, len(records)), 0, number)


def decode(
    records: Sequence[Record],
    number: int,
    folder: Path,
    decoding: Decoding,
    batch: int = 10_000,
    gtids: GtidSet | None = None,
    *,
    placed: bool = False,
    blocks: bool = False,
) -> Outcome:
    def run(index: int, piece: Piece) -> Outcome:
        writer = PieceWriter(decoding, str(folder), f"{index:05}", gtids, placed=placed)
        for span in piece.prepared:
            writer.begin(*([] if span.described is None else [span.described]))
            writer.begin(*records[span.start : span.end])
        if piece.described is not None:
            writer.begin(piece.described)
        for at in range(piece.start, piece.end, batch):
            part = records[at : min(at + batch, piece.end)]
            writer.take(RecordBlock(Record, part) if blocks else part)
        return Outcome.from_json(writer.finish().to_json())

    cut = pieces(records, number)
    outcomes = [run(index, piece) for index, piece in enumerate(cut)]
    job = cast("Job", SimpleNamespace(settings=SimpleNamespace(kafka=NOWHERE)))
    one = Input("t", TopicSlice("t.raw", {0: (0, len(records))}), {})
    known: dict[int, Sequence[Piece]] = {}
    with topic_of(records):
        while again := _deciding(job, one, cut, dict(enumerate(outcomes)), (), known):
            for index, piece in again.items():
                outcomes[index], known[index] = run(index, piece), piece.prepared
    whole = Outcome()
    for outcome in outcomes:
        whole.add(outcome)
    return whole


def rows(folder: Path, outcome: Outcome) -> dict[str, list[Any]]:
    """Read what was written, by table, in the order of the log."""
    found: dict[str, list[Any]] = {}
    for file in sorted(outcome.files, key=lambda one: one.path.rpartition("/")[2]):
        name = "/".join(file.table.split("/")[:2])
        read = pq.ParquetFile(folder / file.path).read().to_pylist()
        assert len(read) == file.rows
        found.setdefault(name, []).extend(map(without_times, read))
    return {
        name: sorted(read, key=place) if name.startswith("rows/") else read for name, read in found.items()
    }


def place(row: Mapping[str, Any]) -> tuple[int, ...]:
    source = row["source"]
    return source["epoch"], source["pos"], source["sub_index"], source["row"]


def published(
    path: Path, selection: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[dict[str, list[Any]], list[bytes]]:
    """Return what the row mapper publishes, read by the reference, and its schema history."""
    world = World(EventsTopic().add_file(path), limit=8 << 20, selection=selection, **settings)
    world.run()
    found: dict[str, list[Any]] = {}
    for topic in world.tables:
        for _, value, _ in world.records(topic):
            assert value is not None
            columns = AvroColumns(world.registry.schema(int.from_bytes(value[1:5], "big")))
            columns._kernel = None
            found.setdefault(f"rows/{topic.removeprefix(SOURCE + '.')}", []).extend(
                map(without_times, columns.read([value]).to_pylist())
            )
    history = [value for _, value, _ in world.records("t.schemas") if value is not None]
    return {name: sorted(read, key=place) for name, read in found.items()}, history


@pytest.mark.parametrize("name", LOGS)
def test_rows_are_those_of_the_row_mapper(name: str, tmp_path: Path) -> None:
    path = log(name)
    records, (expected, history) = raw(path), published(path)
    everything = []
    for number, batch in ((1, 10_000), (2, 30), (3, 7), (5, 10_000), (17, 100)):
        folder, blocks = tmp_path / str(number), kernel.has("records") and number % 2 == 1
        decoding = Decoding(SOURCE, True, 0, schemas=history)
        outcome = decode(records, number, folder, decoding, batch, blocks=blocks)
        found = rows(folder, outcome)
        assert {name: read for name, read in found.items() if name.startswith("rows/")} == expected
        assert outcome.raw_bytes == sum(len(record.value or b"") for record in records)
        everything.append((found, outcome.events, outcome.dead_letters, outcome.counters))
    assert all(one == everything[0] for one in everything)


SELECTED: dict[str, Any] = {
    "replicate": {
        "ignore_table": "archive.orders", "rewrite_db": "shop->store", "ignore_operations": "shop.orders=d",
    },
    "columns": {
        "mask": "shop.items.name=***", "hash": "shop.%.id", "hash_salt": "0123456789abcdef",
        "drop": "shop.orders.note", "truncate": "shop.orders.raw=1",
    },
}  # fmt: skip
ROWS: dict[str, Any] = {"filter": "shop.items: weight > 0", "keys": "shop.orders=item", "decimal": "string"}


def test_rows_are_selected_as_by_the_row_mapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the settings of the driver, whatever the environment of an executor is."""
    path = log("binlog_command/logs/mysql.000001")
    expected, history = published(path, SELECTED, **ROWS)
    plain = published(path)[0]
    assert expected.keys() == {"rows/store.items", "rows/store.orders"}
    assert {row["after"]["name"] for row in expected["rows/store.items"]} == {"***"}
    assert {"note", "id"} & expected["rows/store.orders"][0]["after"].keys() == {"id"}
    assert len(expected["rows/store.orders"]) < len(plain["rows/shop.orders"])
    with monkeypatch.context() as driver:
        for section, values in {**SELECTED, "rows": {**ROWS, "buffer_mib": "3"}}.items():
            for name, value in values.items():
                driver.setenv(f"MILLRACE_{section}_{name}".upper(), value)
        settings = load_settings(RowJobSettings, source=SOURCE, kafka=NOWHERE.model_dump())
    decoding = Decoding(SOURCE, True, 0, schemas=history, sections=sections_of(settings))
    decoding = pickle.loads(pickle.dumps(decoding))
    monkeypatch.setenv("MILLRACE_COLUMNS_MASK", "shop.items.kind=no")
    monkeypatch.setenv("MILLRACE_REPLICATE_DO_DB", "none")
    found = rows(tmp_path, decode(raw(path), 3, tmp_path, decoding, placed=False))
    assert {name: read for name, read in found.items() if name.startswith("rows/")} == expected
    assert RawDecoder(decoding)._events._held_bytes == 3 << 20
    # Only who makes rows needs the salt.
    monkeypatch.setenv("MILLRACE_COLUMNS_HASH", "shop.orders.id")
    given: dict[str, Any] = {"source": SOURCE, "kafka": NOWHERE.model_dump()}
    load_settings(RawJobSettings, **given)
    with pytest.raises(SettingsError, match="MILLRACE_COLUMNS_HASH_SALT is missing"):
        load_settings(RowJobSettings, **given)


@pytest.mark.parametrize("first", [1, 7, 50])
@pytest.mark.parametrize("most", [40, 60, 100])
@pytest.mark.parametrize("compiled", [True, False])
def test_events_are_mapped_once_however_many_at_a_time(
    most: int, first: int, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones go in small parts, and where that ends lies within a batch."""
    monkeypatch.setattr(kernel, "_enabled", compiled)
    monkeypatch.setattr(decoding_module, "MAPPED_EVENTS", most)
    monkeypatch.setattr(decoding_module, "_MAPPED_FIRST", first)
    made = MadeLog(name="bin.000001")
    for number in range(100):
        made.add(GtidLogEvent(0, bytes(16), made.position, number, 0, 1, 1, None, 100, 80030))
        made.query("BEGIN")
        made.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", image_rows((None, (number, "x")))))
        made.query("COMMIT")
    path = tmp_path / "bin.000001"
    path.write_bytes(b"\xfebin" + b"".join(data for _, data in made.events))
    batch = 37
    outcome = decode(raw(path), 1, tmp_path, Decoding(SOURCE, True, 0), batch, blocks=kernel.has("records"))
    found = rows(tmp_path, outcome)
    assert [row["after"]["column_1"] for row in found["rows/shop.t"]] == list(range(100))
    assert [row["status"] for row in found["transactions"]] == ["BEGIN", "END"] * 100
    assert outcome.counters["rows"] == outcome.counters["transactions"] == 100


@pytest.mark.parametrize("name", LOGS)
def test_typed_events_do_not_depend_on_cuts(name: str, tmp_path: Path) -> None:
    records = raw(log(name))
    found = []
    for number in (1, 3, 17):
        folder = tmp_path / str(number)
        outcome = decode(records, number, folder, Decoding(SOURCE, False, 0))
        found.append(rows(folder, outcome))
        assert outcome.events == sum(file.rows for file in outcome.files) >= len(records)
    assert found[0] == found[1] == found[2]


def test_an_xa_transaction_is_decided_once(tmp_path: Path) -> None:
    """Pieces that decide one by the same name are decoded at the same time."""
    made = MadeLog(name="bin.000001")
    first, other = "X'61',X'',1", "X'62',X'',1"

    def statement(text: str) -> None:
        made.add(GtidLogEvent(0, bytes(16), made.position, 2, 0, 1, 1, None, 100, 80030))
        made.query(text)

    def prepare(name: str, number: int) -> None:
        statement(f"XA START {name}")
        made.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", image_rows((None, (number, "x")))))
        made.query(f"XA END {name}")
        made.add(XaPrepareLogEvent(0, 1, b"a" if name == first else b"b", b""))

    prepare(first, 1)
    prepare(other, 2)
    statement(f"XA COMMIT {first}")
    statement(f"XA COMMIT {first}")
    statement(f"XA ROLLBACK {first}")
    prepare(first, 3)
    statement(f"XA COMMIT {other}")
    statement(f"XA COMMIT {first}")
    statement(f"XA COMMIT {other}")
    path = tmp_path / "bin.000001"
    path.write_bytes(b"\xfebin" + b"".join(data for _, data in made.events))
    expected, history = published(path)
    assert [row["after"]["column_1"] for row in expected["rows/shop.t"]] == [1, 2, 3]
    for number in (1, 3, 17):
        folder = tmp_path / str(number)
        outcome = decode(raw(path), number, folder, Decoding(SOURCE, True, 0, schemas=history))
        assert rows(folder, outcome)["rows/shop.t"] == expected["rows/shop.t"], number


def test_transactions_of_a_set(tmp_path: Path) -> None:
    path = log("columns/logs/mysql-8.0.12.000001")
    expected, _ = published(path)
    gtid = next(row["source"]["gtid"] for read in expected.values() for row in read)
    outcome = decode(raw(path), 3, tmp_path, Decoding(SOURCE, True, 0), gtids=GtidSet.parse(gtid))
    found = rows(tmp_path, outcome)
    chosen = {name: [row for row in read if row["source"]["gtid"] == gtid] for name, read in expected.items()}
    assert {name: read for name, read in found.items() if name.startswith("rows/")} == {
        name: read for name, read in chosen.items() if read
    }


def test_a_record_that_is_damaged_is_told_and_loses_nothing_else(tmp_path: Path) -> None:
    path = log("binlog_command/logs/mysql.000001")
    records = raw(path)
    before = rows(tmp_path / "a", decode(records, 3, tmp_path / "a", Decoding(SOURCE, False, 0)))
    at = len(records) // 2
    bad = bytearray(records[at].value or b"")
    bad[-1] ^= 1
    records[at] = records[at]._replace(value=bytes(bad))
    records.append(Record(len(records), len(records), b"no key", None))
    outcome = decode(records, 3, tmp_path / "b", Decoding(SOURCE, False, 0))
    after = rows(tmp_path / "b", outcome)
    assert [(offset, kind) for offset, _, kind, _ in outcome.dead_letters][:1] == [(at, "ChecksumError")]
    assert [offset for offset, *_ in outcome.dead_letters] == [at, len(records) - 1]
    assert [row["raw_offset"] for row in after.pop("deadletter")] == [at, len(records) - 1]
    assert sum(map(len, before.values())) - sum(map(len, after.values())) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_what_may_be_read_again_goes_to_a_file(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(kernel, "has", lambda _: False)
    kept = _Kept(held_bytes=1000)
    chance = random.Random(1)
    every: list[Record] = []
    first = 0
    for _ in range(200):
        every += kept.add(
            [(b"k", chance.randbytes(chance.randrange(200)), 7, chance.choice([None, [("chunk", b"0/1")]]))]
            * chance.randrange(1, 5)
        )
        start, stop = sorted((chance.randrange(first, kept.end + 1), chance.randrange(first, kept.end + 1)))
        assert [*chain.from_iterable(kept.read(start, stop))] == every[start:stop]
        assert [one.offset for one in every] == list(range(kept.end))
        assert {(type(one), one.key, one.timestamp_ms) for one in every} == {(Record, b"k", 7)}
        if chance.random() < 0.1:
            first = chance.randrange(first, kept.end + 1)
            kept.forget(first)
    kept.forget(kept.end)
    assert list(kept.read(first, kept.end)) == []


def test_the_beginning_of_a_transaction_waits_for_the_rest() -> None:
    """The row mapper's kernel takes whole transactions; where no commit is near, nothing waits."""
    records = raw(log(LOGS[0]))
    commits = [record.offset for record in records if code_of(record) in ENDS]
    cut = WholeTransactions()
    (whole,) = cut.take(records[: commits[1] + 3])
    assert [*whole, *cut.rest()] == records[: commits[1] + 3]
    assert cut.rest() == records[commits[1] + 1 : commits[1] + 3]
    (whole,) = cut.take(records[commits[1] + 3 : commits[2] + 1])
    assert (whole, cut.rest()) == (records[commits[1] + 1 : commits[2] + 1], [])
    rest = [record for record in records if code_of(record) not in ENDS][:20]
    assert [[*part] for part in cut.take(rest)] == [rest]
    assert cut.rest() == []


@pytest.mark.parametrize("compiled", [True, False])
def test_a_large_transaction_is_read_a_second_time(compiled: bool) -> None:
    """With room for nothing every transaction is one that is not kept in memory."""
    path = log("columns/logs/mysql-8.0.12.000001")
    decoder = RawDecoder(Decoding(SOURCE, True, 0))
    assert decoder._mapper is not None
    decoder._mapper._most_bytes = 0
    if not compiled:
        decoder._mapper._compiled = None
    decoder._mapper._assembler._buffer_bytes = 0
    decoder._events._held_bytes = 0
    found = sum(
        1 if isinstance(value, bytes) else len(value or ())
        for written in decoder.take(raw(path))
        for (topic, _), made in written.items()
        for _, value, _, _ in made
        if topic.count(".") == 2
    )
    assert found == sum(map(len, published(path)[0].values())) > 0


WORKER = """
import sys
from pathlib import Path
from millrace.spark.decoding import Decoding
from spark_jobs.common.outcome import PieceWriter
from millrace.spark.decoding import prepare_worker
from spark_jobs.common.pieces import _told
from tests.unit.spark.test_decoding import raw

prepare_worker()
writer = PieceWriter(Decoding("t", True, 0), sys.argv[2], "00000")
writer.take(raw(Path(sys.argv[1])))
told = _told(3, writer)
print("pandas" in sys.modules, told.column("piece")[0], "files" in str(told.column("outcome")[0]))
"""


@pytest.mark.skipif(kernel.state() != "on", reason="the kernel is not built, or turned off")
def test_a_worker_does_without_pandas(tmp_path: Path) -> None:
    """Pyarrow would load it, which takes as long as to decode 20,000 transactions."""
    done = run_python("-c", WORKER, str(log(LOGS[0])), str(tmp_path), settings={})
    assert done.stdout.split() == ["False", "3", "True"], done.stderr
