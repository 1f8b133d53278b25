"""The statements of the job flashback, made of records of row topics."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session
from millrace.rowmapper.catalog import Catalog
from millrace.runtime.errors import SettingsError, UserError
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import Era, History, Origin, Statement, TableHistory
from millrace.verify.tables import Column
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import Faults
from spark_jobs.common.tables import KnownColumn, Log, PointInTime, Table, out_of_order, parse_key
from spark_jobs.flashback import (
    _UNDO_SCHEMA,
    Bound,
    Chosen,
    FlashbackResult,
    Undoing,
    Unreturnable,
    _commits,
    _faulty,
    _line,
    _settled,
    _tables,
    _unmatched,
    _with_commit,
    equals,
    literal,
    parse_transactions,
    report,
    summary,
)
from tests.spark_session import SPARK

if TYPE_CHECKING:
    from millrace.rowmapper.selection import Selection
    from spark_jobs.common.job import Job

pytestmark = SPARK

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def column(name: str, kind: str, **more: Any) -> ColumnDefinition:
    return ColumnDefinition(0, name, kind, **more)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", -5, "-5"),
        ("bigint unsigned", Decimal(2**64 - 1), "18446744073709551615"),
        ("decimal(10,7)", Decimal("1E-7"), "0.0000001"),
        ("float", 1.100000023841858, "1.100000023841858e0"),
        ("double", 1e300, "1e+300"),
        ("double", -0.0, "-0.0e0"),
        ("bit(9)", b"\x01\x01", "257"),
        ("varbinary(9)", b"\x00'\xff", "0x0027FF"),
        ("blob", b"", "''"),
        ("point", b"\x00\x00\x00\x00\x01", "0x0000000001"),
        ("date", "0000-00-00", "'0000-00-00'"),
        ("time(2)", "-12:34:56.78", "'-12:34:56.78'"),
        ("year", 1999, "1999"),
        ("varchar(9)", "it's\n\\ \0;", r"'it\'s\n\\ \0;'"),
        ("json", '{"a": "b\\n"}', r"""CAST('{"a": "b\\n"}' AS JSON)"""),
        ("json", None, "NULL"),
    ],
)
def test_literals(kind: str, value: Any, expected: str) -> None:
    assert literal(column("c", kind, charset="utf8mb4"), value, mariadb=False) == expected


def test_what_has_no_literal() -> None:
    with pytest.raises(Unreturnable, match="column c: its bytes are invalid in its character set"):
        literal(column("c", "varchar(9)", charset="utf8mb4"), b"\xff", mariadb=False)
    with pytest.raises(Unreturnable, match="column c: why"):
        literal(column("c", "int"), UnknownValue("why"), mariadb=False)


def test_conditions() -> None:
    text = column("a`b", "varchar(9)", charset="latin1")
    assert equals(text, "é", mariadb=False, exactly=False) == "`a``b` <=> 'é'"
    exact = "CAST(CONVERT(`a``b` USING utf8mb4) AS BINARY) <=> "
    assert equals(text, "é", mariadb=False, exactly=True) == f"{exact}0xc3a9"
    assert equals(text, "", mariadb=False, exactly=True) == f"{exact}''"
    assert equals(text, None, mariadb=False, exactly=True) == "`a``b` <=> NULL"


def a_table(*columns: ColumnDefinition, eras: TableHistory | None = None) -> Table:
    known = [KnownColumn(Column(one.name, SqlType.parse(one.column_type).name, 0), None) for one in columns]
    history = eras or TableHistory.without_changes([one.name for one in columns])
    return Table("shop", "t", TableDefinition("shop", "t", columns), columns, known, history, [])


def change(before: dict[str, Any] | None, after: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"op": "u", "before": before, "after": after, **more}


ID = column("id", "int", key_position=0)
KEYED = a_table(
    ID,
    column("v", "varchar(9)", charset="utf8mb4"),
    column("at", "timestamp"),
    column("twice", "int", generated="STORED"),
)


TWO = a_table(
    column("tenant", "int", key_position=0),
    column("id", "int", generated="STORED", key_position=1),
    column("v", "int"),
)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {"id": 1, "v": "x"}, "DELETE FROM `shop`.`t` WHERE `id` <=> 1 LIMIT 1"),
        (
            {"id": 1, "v": None, "at": None, "twice": 2},
            None,
            "INSERT INTO `shop`.`t` (`id`, `v`, `at`) VALUES (1, NULL, NULL)",
        ),
        (
            {"id": 1, "v": "old", "at": None, "twice": 2},
            {"id": 1, "v": "new", "at": None, "twice": 3},
            "UPDATE `shop`.`t` SET `v` = 'old', `at` = NULL WHERE `id` <=> 1 LIMIT 1",
        ),
    ],
)
def test_statements_byparse_key(before: Any, after: Any, expected: str) -> None:
    whole = {"id": 1, "v": None, "at": None, "twice": None}
    envelope = change(before and whole | before, after and whole | after)
    assert Undoing(KEYED, mariadb=False).statement(envelope, 0) == expected


def test_a_generated_column_of_the_key_tells_the_row_and_is_not_set() -> None:
    undoing = Undoing(TWO, mariadb=False)
    first, second = ({"tenant": 1, "id": 7, "v": value} for value in (1, 2))
    where = "WHERE `tenant` <=> 1 AND `id` <=> 7 LIMIT 1"
    assert undoing.statement(change(None, first), 0) == f"DELETE FROM `shop`.`t` {where}"
    assert undoing.statement(change(first, second), 0) == f"UPDATE `shop`.`t` SET `v` = 1 {where}"
    inserted = "INSERT INTO `shop`.`t` (`tenant`, `v`) VALUES (1, 1)"
    assert undoing.statement(change(first, None), 0) == inserted


def test_without_a_key_the_whole_row_counts() -> None:
    table = a_table(column("v", "varchar(9)", charset="latin1"), column("f", "float"))
    undoing = Undoing(table, mariadb=False)
    envelope = change({"v": "a", "f": 0.5}, {"v": "b", "f": None})
    assert undoing.statement(envelope, 0) == (
        "UPDATE `shop`.`t` SET `v` = 'a', `f` = 0.5e0 "
        "WHERE CAST(CONVERT(`v` USING utf8mb4) AS BINARY) <=> 0x62 AND `f` <=> NULL LIMIT 1"
    )
    assert undoing.key({"v": "a"}) is None


def test_rows_of_before_a_statement() -> None:
    """``w`` was ``v``, ``new`` is new, ``gone`` was dropped, and ``n`` became too narrow for some values."""
    wide, narrow = column("n", "int"), column("n", "tinyint")
    origins = {
        "id": Origin("id"),
        "w": Origin("v"),
        "new": Origin(None),
        "n": Origin("n", ((wide, narrow, "ALTER TABLE shop.t has converted it"),)),
    }
    here = {name: Origin(name) for name in origins}
    eras = TableHistory([Era((0, 1, 4), ("shop", "t"), origins), Era((0, 1, 500), ("shop", "t"), here)])
    table = a_table(ID, column("w", "varchar(9)", charset="utf8mb4"), column("new", "int"), narrow, eras=eras)
    undoing = Undoing(table, mariadb=False)
    deleted = change({"id": 1, "v": "a", "gone": 7, "n": 5}, None)
    assert (
        undoing.statement(deleted, 0)
        == "INSERT INTO `shop`.`t` (`id`, `w`, `new`, `n`) VALUES (1, 'a', NULL, 5)"
    )
    assert undoing.lost(deleted, 0) == ["gone"]
    with pytest.raises(Unreturnable, match=r"column n: ALTER TABLE shop\.t has converted it"):
        undoing.statement(change({"id": 1, "v": "a", "gone": None, "n": 500}, None), 0)
    only_gone = change({"id": 1, "v": "a", "gone": 7, "n": 5}, {"id": 1, "v": "a", "gone": 8, "n": 5})
    with pytest.raises(Unreturnable, match="it changed none of the columns that the table has now"):
        undoing.statement(only_gone, 0)
    with pytest.raises(Unreturnable, match="the table was emptied, or created, after the change"):
        undoing.statement(deleted, -1)


def test_images_without_all_columns() -> None:
    """Minimal images cannot be undone; what is in neither image has not changed."""
    undoing = Undoing(KEYED, mariadb=False)
    row = {"id": 1, "v": None, "at": None, "twice": None}
    minimal = change(
        row, row | {"v": "new"}, before_missing=["v", "at", "twice"], after_missing=["id", "at", "twice"]
    )
    with pytest.raises(Unreturnable, match="column v: its image does not have the column"):
        undoing.statement(minimal, 0)
    with pytest.raises(Unreturnable, match="its image does not have the column"):
        undoing.statement(change(row, None, before_missing=["v", "at", "twice"]), 0)
    noblob = change(row | {"at": None}, row, before_missing=["v"], after_missing=["v"])
    with pytest.raises(Unreturnable, match="it changed none of the columns"):
        undoing.statement(change(row, row, before_missing=["v", "at"], after_missing=["v", "at"]), 0)
    assert undoing.statement(noblob, 0).startswith("UPDATE `shop`.`t` SET `at` = NULL WHERE `id` <=> 1 ")


def test_what_is_chosen() -> None:
    place = (0, 7, 100)
    assert (place, "0-1-5") in Chosen()
    assert (place, f"{UUID}:5") in Chosen(gtids=GtidSet.parse(f"{UUID}:4-5"))
    assert (place, f"{UUID}:6") not in Chosen(gtids=GtidSet.parse(f"{UUID}:4-5"))
    assert (place, "binlog.000007:4") not in Chosen(gtids=GtidSet.parse(f"{UUID}:4-5"))
    assert (place, "binlog.000007:4") in Chosen(transactions=frozenset({"binlog.000007:4"}))
    assert (place, "a") not in Chosen(transactions=frozenset({"binlog.000007:4"}))
    assert (place, "a") not in Chosen(transactions=frozenset())
    assert (place, "a") not in Chosen(after=place)
    assert (place, "a") in Chosen(after=(0, 6, 900), until=place)
    assert (place, "a") not in Chosen(until=(0, 7, 99))
    KEYED.check_key({"id": "5"})
    for table, key, problem in (
        (KEYED, "ID=5", "--key names ID; the primary key of shop.t is id"),
        (KEYED, "v=x,id=5", "--key names v; the primary key of shop.t is id"),
        (a_table(column("v", "int")), "v=5", "--key names v; the primary key of shop.t does not exist"),
        (TWO, "tenant=1", "--key lacks id of the primary key of shop.t"),
    ):
        with pytest.raises(SettingsError, match=f"^{problem}$"):
            table.check_key(parse_key(key))
    pair = a_table(column("a", "int", key_position=0), column("b", "varbinary(9)", key_position=1))
    assert pair.is_row({"a": 1, "b": b"\xff"}, parse_key("a=1,b=0xFF"))
    assert pair.is_row({"a": 1, "b": b"\xff"}, parse_key("a=2,b=0xFF")) is False
    with pytest.raises(SettingsError, match="--key is '5': expected COLUMN=VALUE"):
        parse_key("5")


def test_a_gtid_of_mariadb_names_one_transaction() -> None:
    _, listed = parse_transactions("0-1-100, 1-2-7")
    assert listed == {"0-1-100", "1-2-7"}
    assert [
        number for number in (99, 100, 101) if ((0, 7, 4), f"0-1-{number}") in Chosen(transactions=listed)
    ] == [100]
    assert parse_transactions(f"{UUID}:1-5") == (GtidSet.parse(f"{UUID}:1-5"), None)
    with pytest.raises(
        SettingsError, match=r"--gtids is '0-1': expected a set as of gtid_executed, or GTIDs"
    ):
        parse_transactions("0-1")


UNTIL = PointInTime(SourcePosition(0, "binlog.000009", 4), "0-1-9", 1_700_000_000_000, None)


def verdict_on(outcome: FlashbackResult) -> tuple[str, str] | None:
    """The verdict of the page, which tells all that is noted."""
    job = cast("Job", SimpleNamespace(sources=["shop"], faults=Faults()))
    page = report(job, outcome, written=True)
    doubts = [bound.doubt for bound in outcome.bounds if bound.doubt is not None]
    told = *outcome.unmatched, *outcome.notes, *map(str, outcome.bounds), *doubts
    assert all(note in page.html("footer") for note in told)
    return page.result


def test_nothing_is_no_success(tmp_path: Path) -> None:
    nothing = FlashbackResult(UNTIL, [], [], [])
    nothing.write_sql(f"{tmp_path}/run/flashback.sql")
    assert (tmp_path / "run" / "flashback.sql").read_text().startswith("-- What follows undoes changes")
    assert verdict_on(nothing) == ("Nothing is selected: no change meets all conditions.", "doubt")
    nothing.unmatched = ["shop has no transaction 0-1-5"]
    assert verdict_on(nothing) == ("Nothing is selected: shop has no transaction 0-1-5.", "doubt")
    dropped = FlashbackResult(UNTIL, ["shop.t did not exist"], [], [])
    assert verdict_on(dropped) == ("None of it can be undone: the report lists what cannot.", "doubt")
    dropped.transactions = 1
    assert verdict_on(dropped) == ("Not all of it can be undone: the report lists what cannot.", "doubt")


def undone(spark: SparkSession, *changes: dict[str, Any]) -> DataFrame:
    """What executors made of changes; what is not given is as of a chosen update of row 1 of shop.t."""
    layout = arrow_schema(_UNDO_SCHEMA)
    usual = {
        "epoch": 0, "number": 7, "pos": 100, "sub_index": 0, "row": 0, "file": "binlog.000007", "id": "0-1-5",
        "op": "u", "chosen": True, "table": "shop.t", "key": '{"id": 1}', "statement": "UPDATE",
    }  # fmt: skip
    rows = [tuple((usual | each).get(name) for name in layout.names) for each in changes]
    return spark.createDataFrame(rows, _UNDO_SCHEMA)


def test_what_was_asked_for_and_is_not_there_is_told(spark: SparkSession) -> None:
    ends = spark.createDataFrame([(0, 7, 100, "0-1-5")], "epoch int, number bigint, pos bigint, id string")
    asked = Chosen(transactions=frozenset({"0-1-5", "0-1-6"}))
    assert list(_unmatched(ends, asked, "shop")) == ["shop has no transaction 0-1-6"]
    asked = Chosen(GtidSet.parse(f"{UUID}:1-5"), until=(0, 7, 4))
    assert list(_unmatched(ends, asked, "shop")) == []
    assert list(_unmatched(ends.limit(0), asked, "shop")) == [
        "shop has no transaction of --gtids between the moments"
    ]
    outcome = FlashbackResult(UNTIL, [], [], [])
    outcome.read(undone(spark, {}), [KEYED], Chosen(keys=[{"id": "1"}, {"id": "2"}]))
    assert outcome.unmatched == ["no selected change of shop.t has the key id=2"]
    assert not outcome.nothing


def test_a_prepared_transaction_is_chosen_by_its_commit() -> None:
    """Its rows lie before that, under the GTID of the XA PREPARE."""
    place = {"epoch": 0, "number": 7, "pos": 100, "sub_index": 0, "row": 0}
    committed = {"epoch": 0, "number": 7, "pos": 300}
    names = {
        "id": f"{UUID}:5",
        "gtid": f"{UUID}:4",
        "file": "binlog.000007",
        "time_ms": 0,
        "op": "c",
        "era": 0,
    }
    inserted = change(None, {"id": 1, "v": None, "at": None, "twice": None})

    def is_chosen(chosen: Chosen) -> bool:
        undoing = Undoing(KEYED, mariadb=False)
        line = _line({**place, **names, "committed": committed}, KEYED, undoing, chosen, inserted)
        told = dict(zip(arrow_schema(_UNDO_SCHEMA).names, line, strict=True))
        assert told["chosen"] == (told["statement"] is not None)
        return bool(told["chosen"])

    assert is_chosen(Chosen(after=(0, 7, 200)))
    assert not is_chosen(Chosen(until=(0, 7, 200)))
    assert is_chosen(Chosen(GtidSet.parse(f"{UUID}:5")))
    assert not is_chosen(Chosen(GtidSet.parse(f"{UUID}:4")))


def test_a_moment_is_compared_with_the_place_of_the_commit(spark: SparkSession) -> None:
    """Transactions that were prepared lie before their commit, maybe in another epoch."""
    changes = spark.createDataFrame(
        [
            (0, 7, 100, "x:1", "x:0"),  # prepared, and committed in another epoch
            (0, 7, 200, "x:1", "x:0"),
            (0, 7, 300, "x:2", "x:2"),
            (0, 7, 400, "x:3", "x:3"),  # before the moment
            (0, 7, 500, "binlog.000007:490", None),  # its name comes again in another epoch
            (None, None, None, None, None),  # it cannot be read
        ],
        "epoch int, number bigint, pos bigint, id string, gtid string",
    )
    commits = spark.createDataFrame(
        [
            ("x:1", [(1, 1, 50), (2, 1, 50)]),
            ("x:2", [(0, 7, 290), (0, 7, 390)]),  # CREATE TABLE … SELECT: a statement, and rows
            ("binlog.000007:490", [(1, 7, 590)]),
        ],
        "ended string, ends array<struct<epoch: int, number: bigint, pos: bigint>>",
    )
    found = {row.pos: tuple(row.committed) for row in _with_commit(changes, commits).collect()}
    assert found.pop(None) == (None, None, None)
    assert found == {
        100: (1, 1, 50), 200: (1, 1, 50), 300: (0, 7, 390), 400: (0, 7, 400), 500: (0, 7, 500),
    }  # fmt: skip
    assert _with_commit(changes.limit(1), None).collect()[0].committed == (0, 7, 100)


def test_ends_of_transactions_whose_names_come_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = spark.createDataFrame(
        [(0, 7, 490, "x:3"), (1, 1, 600, "x:3")], "epoch int, number bigint, pos bigint, id string"
    )
    monkeypatch.setattr("spark_jobs.flashback.units", lambda *_: ends)
    nothing = cast("Any", None)
    commits = _commits(nothing, spark, nothing, Chosen(after=(1, 1, 500)))
    changes = ends.withColumns({"gtid": sf.col("id"), "pos": sf.col("pos") - 90})
    assert [tuple(row.committed) for row in _with_commit(changes, commits).orderBy("epoch").collect()] == [
        (0, 7, 490), (1, 1, 600),
    ]  # fmt: skip
    assert _commits(nothing, spark, nothing, Chosen()) is None


def test_a_time_is_told_as_a_place_and_doubted_where_the_log_is_not_in_its_order(spark: SparkSession) -> None:
    ends = spark.createDataFrame(
        [
            (0, 7, 100, "binlog.000007", 60_000, "0-1-5"),
            (0, 7, 200, "binlog.000007", 70_000, None),
            (0, 7, 300, "binlog.000007", 80_000, "0-1-7"),
            (0, 7, 400, "binlog.000007", 50_000, "0-1-8"),  # a replayed one
            (0, 7, 500, "binlog.000007", 90_000, "0-1-9"),
        ],
        "epoch int, number bigint, pos bigint, file string, time_ms bigint, id string",
    )
    place, following = (SourcePosition(0, "binlog.000007", position) for position in (400, 500))
    last = PointInTime(place, "0-1-8", 50_000, following)
    minute = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    doubt = out_of_order(ends, "--after", minute, last, "not undone")
    assert doubt == (
        "times are out of order: transactions before binlog.000007:400 that are later than --after: 2, the "
        "first of them binlog.000007:200; they are not undone. Name a position or GTIDs instead of the time"
    )
    assert out_of_order(ends, "--until", minute + timedelta(seconds=20), last, "undone") is None
    assert out_of_order(ends, "--after", (0, "binlog.000007", 400), last, "not undone") is None

    bound = Bound("--after", "1970-01-01T00:01", last)
    assert str(bound) == (
        "--after 1970-01-01T00:01 is after 0-1-8 at binlog.000007:400, committed 1970-01-01 00:00:50 UTC"
    )
    early = Bound("--after", "1969-01-01", None)
    assert str(early) == "--after 1969-01-01 is before the first transaction of the log"
    outcome = FlashbackResult(UNTIL, [], [], [bound, early])
    outcome.read(undone(spark, {}), [KEYED], Chosen())
    assert verdict_on(outcome) == ("All selected changes can be undone.", "good")
    outcome.bounds = [replace(bound, doubt=doubt)]
    assert verdict_on(outcome) == (f"{doubt[0].upper()}{doubt[1:]}.", "doubt")
    assert outcome.bounds[0].lines == [str(bound), doubt]
    assert summary(outcome)["bounds"][0]["last"] == str(last)


def test_an_update_of_the_key_is_undone_whole_or_not_at_all(spark: SparkSession) -> None:
    two, other = '{"id": 2}', '{"id": 3}'
    old = {"op": "d", "statement": "INSERT 1"}
    new = {"op": "c", "row": 1, "key": two, "statement": "DELETE 2"}
    again = {"pos": 900, "id": "0-1-9", "chosen": False, "statement": None}
    insert = {"pos": 50, "op": "c", "key": other, "statement": "DELETE 3"}

    def left(*changes: dict[str, Any], by_key: bool = False) -> dict[str, str | None]:
        """Why a statement is withheld, by key; None where it is not."""
        found = _settled(undone(spark, *changes), by_key=by_key).collect()
        assert all((row.statement is None) == (row.reason is not None) for row in found)
        return {f"{row.op} {json.loads(row.key)['id']}": row.reason for row in found}

    assert left(old, new, insert) == {"d 1": None, "c 2": None, "c 3": None}
    changed = "the row was changed again by 0-1-9, which is not undone"
    half = f"the key was updated, and its other row is not undone: {changed}"
    assert left(old, new, insert, again) == {"d 1": changed, "c 2": half, "c 3": None}
    assert left(old, new, again | {"key": two}) == {"d 1": half, "c 2": changed}
    lost = old | {"statement": None, "reason": "it is lost"}
    assert left(lost, new)["c 2"] == "the key was updated, and its other row is not undone: it is lost"
    before = "the row was changed again by 0-1-5, which is not undone"
    unnamed = new | {"chosen": False, "statement": None}
    told = "the key was updated, and its other row is not undone: --key does not name it"
    assert left(old, unnamed, {"pos": 50}, by_key=True) == {"u 1": before, "d 1": told}
    assert left(old | {"pos": 60}, {"pos": 50}, insert) == {"d 1": None, "u 1": None, "c 3": None}

    # A row that went from 1 to 2, and then to 3, under which something else has changed it.
    later = {"pos": 200, "id": "0-1-6"}
    then = old | later | {"key": two, "statement": "INSERT 2"}, new | later | {"key": other}
    found = left(old, new, *then, again | {"key": other})
    before = before.replace("0-1-5", "0-1-6")
    assert (found["d 2"], found["c 3"]) == (half, changed)
    assert (found["c 2"], found["d 1"]) == (before, half.replace(changed, before))

    # A row whose key was updated many times, in batches that divide the updates.
    chain = []
    for number in range(500):
        halves = (
            {"op": "d", "key": f'{{"id": {number}}}'},
            {"op": "c", "key": f'{{"id": {number + 1}}}', "row": 1},
        )
        chain += [half | {"pos": number, "id": f"0-1-{number}"} for half in halves]
    for limit in (1000, 333):
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", limit)
        assert None not in left(*chain, again | {"pos": 900, "key": '{"id": 500}'}).values()
        assert {*left(*chain, again | {"pos": 900, "key": '{"id": 501}'}).values()} == {None}
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_tables_that_were_dropped_are_told(spark: SparkSession) -> None:
    catalog, statements, server = Catalog(kept=None), [], Server()
    catalog.add(CatalogEntry(0, "bin.000001", 4, TableDefinition("d", "", (), charset="utf8mb4"), 0))
    texts = (
        "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)",
        "DROP TABLE IF EXISTS t, nothing", "DROP TABLE u",
        "CREATE TABLE u (id INT PRIMARY KEY, more INT INVISIBLE)",
    )  # fmt: skip
    for number, text in enumerate(texts, 1):
        place = SourcePosition(0, "bin.000001", 100 * number)
        catalog.apply(text, Session("d"), place, whole=True)
        record = {
            "epoch": 0, "file": place.log_file, "pos": place.position, "database": "d", "statement": text,
            "gtid": f"0-1-{number}", "ts_ms": number * 60_000,
        }  # fmt: skip
        statements.append(Statement.read(record, server, lower_case_names=False))
    selection = cast("Selection", SimpleNamespace(hidden=lambda *_: []))
    end = SourcePosition(0, "bin.000001", 900)
    log = Log("shop", end, History(statements, catalog), server, selection, snapshot=None, unmerged=False)
    ends = spark.createDataFrame([(0, 1, 150, "d.t")], "epoch int, number bigint, pos bigint, tables string")

    def told(names: Sequence[str], chosen: Chosen) -> tuple[list[str], list[str]]:
        found, gone = _tables(log, ends, [("d", name) for name in names], chosen)
        return [table.name for table in found], gone

    t, u = (
        f"d.{name} was dropped at 1970-01-01 00:0{minute}:00 UTC (bin.000001:{minute}00): "
        "none of the rows that it had can return"
        for name, minute in (("t", 3), ("u", 4))
    )
    assert told([], Chosen(transactions=frozenset({"0-1-1"}))) == ([], [t])  # of whose rows some are chosen
    assert told([], Chosen(after=(0, 1, 350))) == ([], [u, t])  # what dropped it is chosen
    assert told(["t"], Chosen(after=(0, 1, 350))) == ([], [t])
    assert told(["u"], Chosen(after=(0, 1, 350))) == (["u"], [u])
    assert told(["u"], Chosen(after=(0, 1, 450))) == (["u"], [])
    assert told(["u"], Chosen(keys=[{"id": "1"}])) == (["u"], [])
    assert [column.name for column in log.table("d", "u").columns] == ["id", "more"]
    with pytest.raises(UserError, match=r"d\.nothing did not exist at"):
        told(["nothing"], Chosen())


def test_a_record_that_cannot_be_read_is_told() -> None:
    line = _faulty({"offset": 7, "partition": 0, "fault": "it is cut"}, KEYED)
    told = dict(zip(arrow_schema(_UNDO_SCHEMA).names, line, strict=True))
    assert {name: value for name, value in told.items() if value is not None} == {
        "chosen": True,
        "table": "shop.t",
        "reason": "a record of the row topic cannot be read: offset 7 of partition 0: it is cut",
    }
