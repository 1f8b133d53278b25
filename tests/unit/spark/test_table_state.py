"""The parts of table_state and of what it shares with other jobs that need neither Kafka nor Spark."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from millrace.avro.snapshots import SnapshotRange, SnapshotState, SnapshotTable
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.gtid_set import GtidSet, MariadbGtidPosition
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session
from millrace.ddl import statements as ddl
from millrace.ddl.columns import column_definition
from millrace.rowmapper.catalog import Catalog
from millrace.runtime.errors import SettingsError, UserError
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import Era, History, Origin, TableHistory
from millrace.verify.tables import Column, added_value
from spark_jobs.common import tables
from spark_jobs.common.faults import NO_FAULT
from spark_jobs.common.job import Job
from spark_jobs.common.tables import (
    Counts,
    KnownColumn,
    Log,
    PointInTime,
    Table,
    has_one_key,
    parse_key,
    parse_moment,
    parse_tables,
    without_later,
)
from spark_jobs.table_state import (
    State,
    _doubts,
    _without_snapshot,
    arrow_type,
    digest,
    state_layout,
    state_lines,
    write_state,
)
from tests.spark_session import SPARK

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", None),
        ("binlog.000007:1234", (None, "binlog.000007", 1234)),
        ("2:my-host.relay.000007:4", (2, "my-host.relay.000007", 4)),
        ("2026-01-31T10:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        (f"{UUID}:1-5", GtidSet.parse(f"{UUID}:1-5")),
        ("0-1-270", MariadbGtidPosition.parse("0-1-270")),
        ("gtid:2026-1-31", MariadbGtidPosition.parse("2026-1-31")),
    ],
)
def test_moments(text: str, expected: object) -> None:
    assert parse_moment("--at", text) == expected


@pytest.mark.parametrize("text", ["yesterday", "20260131", "17", "offset:17", "binlog:4"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--at is .*: expected latest, a time, FILE"):
        parse_moment("--at", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id=5", {"id": "5"}),
        ("a=1,b=x=y", {"a": "1", "b": "x=y"}),
        ("name='Smith, John'", {"name": "Smith, John"}),
        ("a='it''s',b=", {"a": "it's", "b": ""}),
        ("a=it's,b='x", {"a": "it's", "b": "'x"}),
        ("a='it's,b=1", {"a": "'it's", "b": "1"}),
    ],
)
def test_values_of_keys(text: str, expected: object) -> None:
    assert parse_key(text) == expected


@pytest.mark.parametrize("text", ["", "5", "id=5,", "=5", "name=Smith, John", "a=1,,b=2"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--key is .*: expected COLUMN=VALUE.*'Smith, John'$"):
        parse_key(text)


def test_names_of_tables() -> None:
    assert parse_tables(["shop.orders", "`a.b`.`c``d`", "shop.orders"]) == [
        ("shop", "orders"),
        ("a.b", "c`d"),
    ]
    for wrong in ("orders", "a.", ".b", "a.b.c`"):
        with pytest.raises(SettingsError, match=r"expected DATABASE\.TABLE"):
            parse_tables([wrong])


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("INT", None),
        ("INT NOT NULL", 0),
        ("INT DEFAULT -7", -7),
        ("INT NOT NULL DEFAULT '12'", 12),
        ("BOOL DEFAULT TRUE", 1),
        ("YEAR DEFAULT 70", 1970),
        ("YEAR DEFAULT '5'", 2005),
        ("YEAR DEFAULT 0", UnknownValue),
        ("YEAR DEFAULT 2024", 2024),
        ("SET('x','y','z') CHARACTER SET latin1 DEFAULT 'z,x'", "x,z"),
        ("DECIMAL(6,2) DEFAULT 1.50", Decimal("1.5")),
        ("DECIMAL(6,2) DEFAULT 1.505", UnknownValue),
        ("FLOAT DEFAULT 1.1", 1.100000023841858),
        ("DOUBLE DEFAULT 1e-5", 1e-5),
        ("VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'it''s '", "it's "),
        ("CHAR(9) CHARACTER SET utf8mb4 DEFAULT 'it '", "it"),
        ("ENUM('a','b') CHARACTER SET utf8mb4 NOT NULL", "a"),
        ("ENUM('a','b') CHARACTER SET utf8mb4 DEFAULT 'B'", UnknownValue),
        ("DATETIME(3) DEFAULT '2024-01-02 03:04:05.678'", "2024-01-02 03:04:05.678"),
        ("DATETIME(3) DEFAULT '2024-1-2'", UnknownValue),
        ("DATE DEFAULT '0000-00-00'", "0000-00-00"),
        ("DATE DEFAULT (CURRENT_DATE)", UnknownValue),
        ("DATETIME DEFAULT CURRENT_TIMESTAMP", UnknownValue),
        ("TIMESTAMP NULL DEFAULT '2024-01-02 03:04:05'", UnknownValue),
        ("INT NOT NULL AUTO_INCREMENT", UnknownValue),
        ("INT AS (a + 1)", UnknownValue),
        ("VARBINARY(9) DEFAULT 'ab'", b"ab"),
        ("BINARY(9) DEFAULT 'ab'", UnknownValue),
        ("ENUM('b', 'a') CHARACTER SET latin1 NOT NULL", "b"),
        ("SET('b', 'a') CHARACTER SET latin1 NOT NULL", ""),
        ("BINARY(3) NOT NULL", b"\0\0\0"),
        ("BIT(12) NOT NULL", b"\0\0"),
        ("DATE NOT NULL", "0000-00-00"),
        ("TIME NOT NULL", "00:00:00"),
        ("DATETIME(3) NOT NULL", "0000-00-00 00:00:00.000"),
        ("JSON NOT NULL", "null"),
        ("VECTOR(3) NOT NULL", UnknownValue),
    ],
)
def test_what_rows_get_that_are_there(clause: str, expected: Any) -> None:
    session = Session("shop", 0, Server(False, (8, 0, 30)), timestamp_not_null=False)
    parsed = ddl.parse(f"ALTER TABLE t ADD COLUMN c {clause}", session)
    assert isinstance(parsed, ddl.AlterTable)
    (added,) = parsed.operations
    assert isinstance(added, ddl.AddColumn)
    definition = column_definition(added.column, None, session)
    sql = SqlType.parse(definition.column_type)
    column = Column("c", sql.name, sql.argument(0) if sql.name in ("datetime", "time") else 0)
    found = added_value(column, definition, added.column)
    assert found == expected or (expected is UnknownValue and isinstance(found, UnknownValue)), found


def a_table(*columns: tuple[str, str, dict[str, Any]]) -> Table:
    definitions = [ColumnDefinition(at, name, kind, **more) for at, (name, kind, more) in enumerate(columns)]
    known = [
        KnownColumn(Column(one.name, SqlType.parse(one.column_type).name, 0), None) for one in definitions
    ]
    names = [one.name for one in definitions]
    whole = TableDefinition("shop", "t", tuple(definitions))
    return Table("shop", "t", whole, definitions, known, TableHistory.without_changes(names), [])


@SPARK[0]
@SPARK[1]
def test_what_is_written(spark: SparkSession, tmp_path: Path) -> None:
    text = {"charset": "utf8mb4"}
    table = a_table(
        ("id", "bigint unsigned", {"unsigned": True}),
        ("n", "decimal(40,1)", {}),
        ("d", "decimal(5,1)", {}),
        ("v", "varchar(9)", text),
        ("b", "varbinary(9)", {}),
        ("t", "datetime", {}),
    )
    rows: list[tuple[Any, ...]] = [
        (2**64 - 1, Decimal("1.5"), Decimal("2.5"), "<b>", b"\xff", "0000-00-00 00:00:00"),
        (1, None, UnknownValue("why"), b"\xff", None, None),
    ]
    fault = ("t", 0, 7, b"k", b"v", "why")
    steps = [(rows[0], 2, NO_FAULT), (None, 0, fault), (rows[1], 1, NO_FAULT), (rows[0], -3, NO_FAULT)]
    first, rest = state_lines(table, steps)
    one, same, other = first.column("row").to_pylist()
    assert one == same
    assert [tuple(row.values()) for row in (one, other)] == [
        (2**64 - 1, "1.5", Decimal("2.5"), "<b>", b"\xff", "0000-00-00 00:00:00"),
        (1, None, None, None, None, None),
    ]
    untold = [("d", "why"), ("v", "its bytes are invalid in its character set")]
    assert first.column("untold").to_pylist() == [None, None, untold]
    assert list(map(tuple, map(dict.values, rest.to_pylist()))) == [
        (None, None, None, *fault),
        (None, None, 3, *NO_FAULT),
    ]
    made = pa.Table.from_batches([first, rest]).replace_schema_metadata(None)
    folded = spark.createDataFrame(made, from_arrow_schema(state_layout(table)))
    state = State("a*b.{t}")
    job = SimpleNamespace(spark=spark, folder=str(tmp_path))
    job.write = partial(Job.write, cast("Any", job))
    write_state(cast("Any", job), state, folded)
    assert (state.rows, state.unknown_rows, state.faults) == (3, 3, 1)
    assert state.untold == {"d: why": 1, "v: its bytes are invalid in its character set": 1}
    written = pq.read_table(tmp_path / state.table / "rows")
    assert written.drop(["millrace.untold"]).to_pylist() == [one, same, other]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", pa.int64()),
        ("year", pa.int64()),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("float", pa.float64()),
        ("bit(9)", pa.binary()),
        ("point", pa.binary()),
        ("json", pa.string()),
        ("time(3)", pa.string()),
    ],
)
def test_types(text: str, expected: pa.DataType) -> None:
    assert arrow_type(ColumnDefinition(0, "c", text)) == expected


def test_rows_are_the_same_whatever_the_digits() -> None:
    assert digest((Decimal("1.0"), "a")) == digest((Decimal("1.00"), "a"))
    assert digest((Decimal("1.0"), "a")) != digest((Decimal("1.0"), "A"))


def test_what_the_topics_may_lack() -> None:
    """A snapshot that is under way or left rows out, and a moment after the end of the topics."""
    table = a_table(("id", "int", {"key_position": 0}))
    taken = SnapshotTable("shop", "t", rows=10, estimate=100, ranges=[SnapshotRange(("1",), done=False)])
    done = replace(taken, ranges=[SnapshotRange(done=True)])
    end = SourcePosition(0, "binlog.000001", 500)
    latest = PointInTime(end, "0-1-5", 1000, None, latest=True)

    def doubts(
        *read: SnapshotTable, unmerged: bool = False, until: PointInTime = latest, rows: bool = False
    ) -> list[str]:
        whole = cast("Any", SimpleNamespace(is_whole=lambda *_: True, filters=lambda *_: False))
        last = SnapshotState(1, list(read)) if read else None
        log = Log("shop", end, History([], Catalog()), Server(False, (8, 0, 30)), whole, last, unmerged)
        return list(_doubts(log, table, until, has_snapshot=rows))

    missing = "rows that nothing has changed since are missing, unless an earlier snapshot has them"
    assert doubts(done) == []
    assert doubts(replace(taken, table="other"), replace(done, table="t")) == []
    assert doubts(taken) == [f"its snapshot is not complete, with 10 of about 100 rows: {missing}"]
    assert doubts(done, unmerged=True) == [f"rows of snapshots wait for the row mapper: {missing}"]
    assert doubts(replace(done, note="it is no longer there")) == [
        f"its snapshot ended early, since it is no longer there: {missing}"
    ]
    (where,) = doubts(replace(done, where="id < 7"))
    assert where.endswith("it has those with id < 7")
    assert "there is no snapshot of it" in doubts()[0]
    assert "there is no snapshot of it" in doubts(replace(done, table="other"))[0]
    (forgotten,) = doubts(replace(done, table="other"), rows=True)
    assert forgotten.startswith("whether its snapshot was complete is no longer known")
    (after,) = doubts(done, until=replace(latest, latest=False))
    assert after.startswith("the topics end with 0-1-5: what follows it up to the moment")
    assert doubts(done, until=replace(latest, latest=False, next=SourcePosition(0, end.log_file, 600))) == []


def test_what_a_snapshot_has_of_a_moment() -> None:
    def at(position: int) -> SourcePosition:
        return SourcePosition(0, "binlog.000001", position)

    quiet = PointInTime(at(500), "0-1-5", 1000, None)
    assert quiet.has_snapshot(at(400))
    assert quiet.has_snapshot(at(531))
    followed = replace(quiet, next=at(900))
    assert followed.has_snapshot(at(531))
    assert not followed.has_snapshot(at(901))
    assert str(replace(quiet, last="x", time_ms=None)) == f"x at {at(500)}"


CHANGES = "id string, epoch int, number bigint, pos bigint, logged boolean"
UNITS = "epoch int, number bigint, pos bigint, file string, time_ms bigint, id string"


@SPARK[0]
@SPARK[1]
def test_what_was_committed_later(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a prepared XA transaction; not that of another one with the same GTID, of a server reset."""
    ends = [(0, 1, 50, "a:1"), (0, 1, 500, "a:2"), (1, 1, 50, "a:1"), (1, 1, 90, "a:3"), (1, 1, 99, "a:2")]
    ends += [(0, 1, 700, "bin.000001:600"), (1, 2, 7, "bin.000001:600")]
    lines = [(*place, "bin.000001", 0, name) for *place, name in ends]
    monkeypatch.setattr(tables, "units", lambda *_: spark.createDataFrame(lines, UNITS))
    changes = [
        ("a:1", 0, 1, 40, True),
        ("a:2", 0, 1, 450, True),
        ("a:3", 0, 1, 460, True),  # prepared; committed in the next epoch
        ("bin.000001:600", 0, 1, 650, True),
        ("snapshot-1", 0, 1, 480, False),
        ("a:1", 1, 1, 45, True),
    ]
    frame = spark.createDataFrame(changes, CHANGES)

    def left(epoch: int, position: int, following: SourcePosition | None) -> list[tuple[Any, ...]]:
        until = PointInTime(SourcePosition(epoch, "bin.000001", position), "", 0, following)
        found = without_later(cast("Any", None), spark, cast("Any", None), frame, until).collect()
        return sorted((row.id, row.epoch) for row in found)

    whole = [("a:1", 0), ("a:2", 0), ("bin.000001:600", 0), ("snapshot-1", 0)]
    assert left(0, 700, SourcePosition(1, "bin.000001", 50)) == whole
    assert left(0, 500, SourcePosition(0, "bin.000001", 700)) == [whole[0], whole[1], whole[3]]
    assert left(0, 450, SourcePosition(0, "bin.000001", 500)) == [whole[0], whole[3]]  # nothing follows yet
    assert left(0, 50, SourcePosition(0, "bin.000001", 60)) == [whole[0]]
    assert left(1, 99, None) == sorted([*whole, ("a:1", 1), ("a:3", 0)])


@SPARK[0]
@SPARK[1]
def test_a_moment_before_the_last_snapshot(spark: SparkSession) -> None:
    rows = [
        ("snapshot-1", 0, 1, 100, False),
        ("snapshot-2", 0, 1, 80, False),
        ("snapshot-2", 0, 1, 900, False),
    ]
    frame, last = spark.createDataFrame(rows, CHANGES), SourcePosition(0, "bin.000001", 900)
    table = a_table(("id", "int", {}))

    def without(position: int, of: Table = table) -> list[str]:
        place = SourcePosition(0, "bin.000001", position)
        until = PointInTime(place, "", 0, place._replace(position=position + 9))
        return list(_without_snapshot(of, frame, last, until))

    (doubt,) = without(500)
    assert doubt.startswith(f"its last snapshot, up to {last}, is later")
    assert without(95) == [doubt]  # nothing was written until it was taken
    with pytest.raises(UserError, match=rf"from a snapshot up to {last}, and .*:90 is before that: name a"):
        without(90)
    created = TableHistory([Era((0, 1, 4), ("shop", "t"), {"id": Origin("id")})])
    assert without(90, replace(table, eras=created)) == []


def test_where_a_key_has_the_same_bytes() -> None:
    def schema(*parts: tuple[str, str]) -> dict[str, Any]:
        return {"fields": [{"name": name, "type": kind} for name, kind in parts]}

    schemas = {1: schema(("id", "int")), 2: schema(("id", "int")), 3: schema(("name", "string"))}

    def one(*keys: int, keyless: int = 0) -> bool:
        return has_one_key(schemas, Counts(9, keyless, 0, keys, None))

    assert one(1)
    assert one(1, 2)
    assert not one(1, 3)
    assert not one(1, keyless=1)
