"""Tables of Iceberg that the job reprocess replaces slices of: on logs of real servers, without Kafka."""

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.settings import load_settings
from millrace.spark.decoding import Decoding
from millrace.spark.raw_topic import BEGINS, DESCRIBES, ENDS
from millrace.stage import Record
from spark_jobs.common.iceberg import IcebergTables, Slice, open_catalog, united
from spark_jobs.common.job import RawJobSettings
from spark_jobs.common.outcome import Outcome, PieceWriter
from spark_jobs.reprocess import _check, stage
from tests.spark_session import SPARK
from tests.stages import without_nulls
from tests.unit.rowmapper.harness import SOURCE
from tests.unit.spark.test_decoding import LOGS, code_of, decode, log, published, raw, rows

pytestmark = SPARK

LOG = "columns/logs/mysql-8.0.12.000001"


def types(text: str) -> StructType:
    return StructType.fromDDL(text)


@pytest.mark.parametrize(
    ("known", "found", "whole", "named"),
    [
        ("a int", "a bigint, b string", "a bigint, b string", "a bigint, b string"),
        ("a bigint, b string", "a int", "a bigint, b string", "a int"),
        ("a decimal(10,2)", "a decimal(12,2)", "a decimal(12,2)", "a decimal(12,2)"),
        (
            "a decimal(10,2)",
            "a decimal(12,4)",
            "a decimal(10,2), a__decimal_12_4 decimal(12,4)",
            "a__decimal_12_4 decimal(12,4)",
        ),
        ("a int, a__string string", "a string", "a int, a__string string", "a__string string"),
        ("Name string", "name string", "Name string", "Name string"),
        (
            "s struct<a:int,b:float>",
            "s struct<a:string,b:double>",
            "s struct<a:int,b:double,a__string:string>",
            "s struct<a__string:string,b:double>",
        ),
        (
            "l array<struct<a:int>>",
            "l array<struct<a:bigint>>",
            "l array<struct<a:bigint>>",
            "l array<struct<a:bigint>>",
        ),
    ],
)
@pytest.mark.usefixtures("spark")
def test_columns_of_a_table_that_changes(known: str, found: str, whole: str, named: str) -> None:
    assert united(types(known), types(found)) == (types(whole), types(named))


def test_what_a_slice_is_in_sql() -> None:
    assert Slice(3, 9).condition("a.b") == "raw_offset >= 3 AND raw_offset < 9"
    assert Slice(3, 9, [(7, 8)]).condition("a.b") == (
        "raw_offset >= 3 AND raw_offset < 9 AND NOT raw_offset BETWEEN 7 AND 8"
    )
    part = Slice(3, 9, [(1, 1)], [(0, 0), (1, 1)])
    text = (
        "(raw_offset >= 3 AND raw_offset < 9 OR raw_offset BETWEEN 0 AND 0 OR raw_offset BETWEEN 1 AND 1)"
        " AND NOT raw_offset BETWEEN 1 AND 1"
    )
    assert (part.first, part.condition("a.b")) == (0, text)
    assert part.condition("deadletter") == (
        f"(service = 'decoder' AND raw_offset >= 3 AND raw_offset < 9) OR (service <> 'decoder' AND {text})"
    )


@pytest.mark.parametrize("name", LOGS)
def test_a_slice_that_is_made_again_changes_nothing(name: str, tmp_path: Path) -> None:
    """Wherever it begins and ends: what a slice replaces is what it makes, also within transactions."""
    records, history = raw(log(name)), published(log(name))[1]
    whole, _ = placed_rows(records, Slice(0, len(records)), history, tmp_path / "whole")
    chance = random.Random(name)
    replaced = 0
    for number in range(20):
        start, end = sorted(chance.sample(range(len(records) + 1), 2))
        # As the first pass does it.
        codes = [(at, code_of(records[at])) for at in range(start, end)]
        places = [at + (code in ENDS) for at, code in codes if code in BEGINS | ENDS]
        start = next(iter(places), start) if start else 0
        made, part = placed_rows(records, Slice(start, end), history, tmp_path / str(number))
        kept = [row for row in whole if not within(part, row[1]["raw_offset"])]
        assert sorted(kept + made, key=order) == whole, part
        replaced += len(made)
    assert replaced or not whole


def placed_rows(
    records: list[Record], part: Slice, history: list[bytes], folder: Path
) -> tuple[list[tuple[str, Any]], Slice]:
    """Decode a slice of a log; give its rows in order, and the slice that they replace."""
    writer = PieceWriter(Decoding(SOURCE, True, 0, schemas=history), str(folder), "0", placed=True)
    described = [one for one in records[: part.start] if code_of(one) in DESCRIBES]
    if described:
        writer.begin(described[-1])
    if part.start < part.end:
        writer.take(records[part.start : part.end])
    outcome = writer.finish()
    found = [
        (file.table, without_nulls(row))
        for file in outcome.files
        if file.table.startswith("rows/")
        for row in pq.ParquetFile(folder / file.path).read().to_pylist()
    ]
    start = outcome.first_offset if part.start else 0
    begun = [*outcome.unfinished, *outcome.prepared]
    return sorted(found, key=order), Slice(part.end if start is None else start, part.end, begun)


def order(row: tuple[str, Any]) -> tuple[int, ...]:
    return _place(row[1])


def within(part: Slice, offset: int) -> bool:
    """Say what the condition of a slice says."""
    return bool(
        eval(
            re.sub(
                r"NOT raw_offset BETWEEN (\d+) AND (\d+)",
                r"not \1 <= raw_offset <= \2",
                part.condition("a.b"),
            ).replace("AND", "and"),
            {"raw_offset": offset},
        )
    )


class Warehouse:
    """A catalog in a folder, and what its tables have."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        # A session keeps the catalogs that it has opened: each test has one of its own name.
        self.catalog = f"lake_{folder.name}"
        spark.conf.set(f"spark.sql.catalog.{self.catalog}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{self.catalog}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{self.catalog}.warehouse", f"{folder}/lake")
        open_catalog(spark, self.catalog, "")
        self.runs = 0

    def stage(self, start: int, end: int, *, events: bool = False) -> tuple[IcebergTables, Outcome]:
        """Decode a slice of the log and stage it."""
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        records = raw(log(LOG))[start:end]
        decoding = Decoding(SOURCE, not events, self.runs, schemas=published(log(LOG))[1])
        outcome = decode(records, 1, folder, decoding, placed=True)
        tables = IcebergTables(self.spark, self.catalog, SOURCE, f"run-{self.runs}")
        part = Slice(start, end, [*outcome.unfinished, *outcome.prepared])
        stage(tables, part, "events" if events else "rows", str(folder), outcome.files)
        return tables, outcome

    def name(self, table: str) -> str:
        return f"{self.catalog}.{SOURCE}.{table.replace('.', '__')}"

    def rows(self, table: str) -> list[Any]:
        found = self.spark.table(self.name(table)).toArrow().to_pylist()
        return sorted(map(without_nulls, found), key=_place)

    def everything(self) -> dict[str, list[Any]]:
        names = self.spark.sql(f"SHOW TABLES IN {self.catalog}.{SOURCE}").collect()
        return {row.tableName: self.rows(row.tableName) for row in names}


def _place(row: Mapping[str, Any]) -> tuple[int, ...]:
    source = row.get("source", row)
    return row["raw_offset"], source.get("sub_index", 0), source.get("row", 0), row.get("status", "")


def plain(found: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [
        {name: value for name, value in row.items() if name not in {"raw_offset", "day", "key", "ts_ms"}}
        for row in found
    ]


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, tmp_path)


def test_tables_have_what_the_files_have(warehouse: Warehouse, tmp_path: Path) -> None:
    """Also when the slice is made again, when a run was killed, and when what it made before is gone."""
    end = len(raw(log(LOG)))
    tables, outcome = warehouse.stage(0, end)
    assert not any(warehouse.everything().values())  # nothing is there until it is all there
    snapshots = tables.publish()
    assert len(snapshots) == len({file.table.partition("/schema=")[0] for file in outcome.files})
    files = rows(
        tmp_path / "parquet",
        decode(
            raw(log(LOG)), 3, tmp_path / "parquet", Decoding(SOURCE, True, 0, schemas=published(log(LOG))[1])
        ),
    )
    expected = {name.removeprefix("rows/"): read for name, read in files.items()}
    assert expected["transactions"]
    for table, read in expected.items():
        assert plain(warehouse.rows(table)) == list(map(without_nulls, read)), table
    before = warehouse.everything()
    warehouse.stage(0, end)  # and then it is killed
    assert warehouse.everything() == before
    again, _ = warehouse.stage(0, end)
    again.publish()
    assert warehouse.everything() == before
    refs = {row.name: row for row in warehouse.spark.table(f"{warehouse.name(table)}.refs").collect()}
    killed = refs.keys() - {"main"}
    assert len(killed) == 1
    assert refs[killed.pop()].max_reference_age_in_ms > 0

    middle = end // 2
    tables.clear(Slice(0, middle), events=True, but=[])  # those of rows are not meant
    assert tables.publish() == {}
    tables.clear(Slice(0, middle), events=False, but=[])
    tables.publish()
    assert warehouse.everything() == {
        name: [row for row in found if row["raw_offset"] >= middle] for name, found in before.items()
    }


def test_events_of_all_types_are_one_table(warehouse: Warehouse, tmp_path: Path) -> None:
    end = len(raw(log(LOG)))
    warehouse.stage(0, end, events=True)[0].publish()
    folder = tmp_path / "parquet"
    files = rows(folder, decode(raw(log(LOG)), 1, folder, Decoding(SOURCE, False, 0)))
    expected = [
        row | {"event": {name.removeprefix("events/"): row["event"]}}
        for name, read in files.items()
        for row in read
    ]
    found = warehouse.rows("events")
    assert len(found) >= end
    assert sorted(plain(found), key=str) == sorted(map(without_nulls, expected), key=str)


def test_options_that_do_not_go_together() -> None:
    given = {"source": "t", "kafka": {"bootstrap_servers": "localhost:1"}}
    settings = load_settings(RawJobSettings, **given, rows={"wide_decimal": "decimal"})
    with pytest.raises(SettingsError) as refused:
        _check(settings, "0-1-5", "lake", "folder")
    assert refused.value.lines == [
        "--gtids cannot be combined with --format iceberg, which replaces a slice: give --from and --to",
        "--warehouse cannot be combined with --catalog: the catalog has its own",
        "MILLRACE_ROWS_WIDE_DECIMAL is decimal, and Iceberg has 38 digits: set it to string",
    ]
    _check(load_settings(RawJobSettings, **given), None, None, "folder")


def test_tables_and_catalogs_that_are_not_ours(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    with pytest.raises(SettingsError, match=r"Spark has no setting spark\.sql\.catalog\.lake: set it"):
        open_catalog(spark, "lake", "")
    spark.conf.set("spark.sql.catalog.broken", "org.apache.iceberg.None")
    with pytest.raises(UserError, match="'millrace job jars --iceberg'"):
        open_catalog(spark, "broken", "")

    tables = IcebergTables(spark, warehouse.catalog, SOURCE, "run-1")
    spark.sql(f"CREATE TABLE {warehouse.name('a.b')} (id int) USING iceberg")
    with pytest.raises(UserError, match=r"a__b is not a table of Millrace, and a\.b would be written"):
        tables.stage("a.b", {}, Slice(0, 1))
    spark.sql(f"ALTER TABLE {warehouse.name('a.b')} SET TBLPROPERTIES ('millrace.table' = 'a._b')")
    with pytest.raises(UserError, match=r"a__b has the rows of a\._b, and a\.b would be written"):
        tables.stage("a.b", {}, Slice(0, 1))


def test_a_table_that_another_has_changed(warehouse: Warehouse) -> None:
    """A run that began before another ended changes nothing, and says so."""
    first, second = (warehouse.stage(0, len(raw(log(LOG))))[0] for _ in range(2))
    second.publish()
    before = warehouse.everything()
    with pytest.raises(UserError, match="was changed by another writer while this job ran"):
        first.publish()
    first.discard()
    assert warehouse.everything() == before
