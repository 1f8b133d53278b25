"""Tables followed back through DDL statements."""

from typing import Any

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session
from millrace.rowmapper.catalog import Catalog
from millrace.verify.history import History, Statement, TableHistory, tables_changed
from millrace.verify.missing import DeadLetters, Missing, NonRowChange
from millrace.verify.tables import Comparison

CREATE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) CHARACTER SET latin1)"


def history(*texts: str, columns: tuple[str, ...] = ("id",), table: str = "t") -> TableHistory:
    """Follow a table back through statements at the places 100, 200, …."""
    catalog, statements = Catalog(kept=None), []
    catalog.add(CatalogEntry(0, "bin.000001", 4, TableDefinition("d", "", (), charset="utf8mb4"), 0))
    for number, text in enumerate(texts, 1):
        place = SourcePosition(0, "bin.000001", 100 * number)
        catalog.apply(text, Session("d"), place, whole=True)
        record: dict[str, Any] = {
            "epoch": 0,
            "file": place.log_file,
            "pos": place.position,
            "database": "d",
            "statement": text,
            "gtid": None,
            "ts_ms": 0,
        }
        statements.append(Statement.read(record, Server(), lower_case_names=False))
    return History(statements, catalog).of_table("d", table, columns)


def eras(found: TableHistory) -> list[tuple[int, str]]:
    return [(era.start[2], era.table[1]) for era in found.eras]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), [(0, "t")]),
        ((CREATE,), [(100, "t")]),
        ((CREATE, "TRUNCATE t"), [(200, "t")]),
        ((CREATE, "TRUNCATE TABLE other"), [(100, "t")]),
        ((CREATE, "CREATE TABLE IF NOT EXISTS t (id INT)"), [(100, "t")]),
        ((CREATE, "DROP TABLE t", "CREATE TABLE IF NOT EXISTS t (id INT)"), [(200, "t")]),
        ((CREATE, "DROP DATABASE d"), [(200, "t")]),
        ((CREATE, "DROP VIEW t"), [(100, "t")]),
        (("CREATE TABLE o (id INT)", "RENAME TABLE o TO t"), [(100, "o"), (200, "t")]),
        (('CREATE TABLE "o" (id INT)', 'RENAME TABLE "o" TO t'), [(100, "o"), (200, "t")]),
        (("CREATE TABLE o (id INT)", "ALTER TABLE o RENAME t"), [(100, "o"), (200, "t")]),
        (
            (CREATE, "CREATE TABLE n (id INT)", "RENAME TABLE t TO o, n TO t"),
            [(200, "n"), (300, "t")],
        ),
        ((CREATE, "ALTER TABLE t ADD INDEX (a)"), [(100, "t")]),
        ((CREATE, "ALTER TABLE t DROP PARTITION p"), [(100, "t"), (200, "t")]),
        ((CREATE, "ALTER TABLE t MODIFY id BIGINT"), [(100, "t"), (200, "t")]),
    ],
)
def test_eras(texts: tuple[str, ...], expected: list[tuple[int, str]]) -> None:
    assert eras(history(*texts)) == expected


@pytest.mark.parametrize(
    ("texts", "earlier", "topics"),
    [
        ((CREATE,), [], {"t": {-1, 0}}),
        ((CREATE, "TRUNCATE t"), [(100, "t")], {"t": {-2, -1, 0}}),
        (
            ("CREATE TABLE o (id INT)", "RENAME TABLE o TO t", "TRUNCATE t", "TRUNCATE t"),
            [(100, "o"), (200, "t"), (300, "t")],
            {"o": {-4, -3}, "t": {-2, -1, 0}},
        ),
        (("RENAME TABLE o TO t", "TRUNCATE t"), [(0, "o"), (100, "t")], {"o": {-3, -2}, "t": {-1, 0}}),
        (
            ("CREATE TABLE o (id INT)", "RENAME TABLE o TO t", "DROP TABLE t", CREATE),
            [],
            {"t": {-1, 0}},
        ),
    ],
)
def test_what_was_before_a_table_was_emptied(
    texts: tuple[str, ...], earlier: list[tuple[int, str]], topics: dict[str, set[int]]
) -> None:
    """It is read where the table had another name, but nothing of another table that took this one."""
    found = history(*texts)
    assert [(era.start[2], era.table[1]) for era in found.earlier] == earlier
    assert found.topics(lambda _, table: table, before=True) == topics
    assert found.topics(lambda _, table: table) == {"t": {0}}
    places = [found.era(0, "bin.000001", 100 * number + 1) for number in range(len(texts) + 1)]
    assert places == sorted(places)
    assert places[-1] == 0


def test_columns_that_change_places_and_come_again() -> None:
    found = history(
        CREATE, "ALTER TABLE t CHANGE a b INT, CHANGE b a VARCHAR(20), DROP id", "ALTER TABLE t ADD id INT",
        columns=("id", "a", "b"),
    )  # fmt: skip
    first, middle, last = ({name: each.name for name, each in era.columns.items()} for era in found.eras)
    assert last == {"id": "id", "a": "a", "b": "b"}
    assert middle == {"id": None, "a": "a", "b": "b"}
    assert first == {"id": None, "a": "b", "b": "a"}


def test_a_column_that_was_converted() -> None:
    found = history(
        CREATE, "ALTER TABLE t MODIFY a BIGINT", "ALTER TABLE t CHANGE a c TINYINT", columns=("c",)
    )
    first, middle, last = (era.columns["c"] for era in found.eras)
    assert (first.name, middle.name, last.name) == ("a", "a", "c")
    assert [(len(each.steps), each.value(7)) for each in (first, middle, last)] == [(2, 7), (1, 7), (0, 7)]
    assert first.value(300).reason == "ALTER TABLE d.t at bin.000001:300 has converted it"


def test_rows_that_a_partition_brings() -> None:
    exchanged = "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE t"
    for table in ("t", "p"):
        found = history(CREATE, exchanged, table=table)
        assert found.moved == "ALTER TABLE d.p EXCHANGE PARTITION at bin.000001:200"
        assert found.brings_rows
    assert not history(CREATE, "ALTER TABLE t TRUNCATE PARTITION ALL").brings_rows


def test_the_era_of_a_place() -> None:
    found = history(CREATE, "ALTER TABLE t MODIFY id BIGINT")
    places = (99, 100, 150, 200, 1000)
    assert [found.era(0, "bin.000001", place) for place in places] == [-1, 0, 0, 1, 1]
    assert found.era(0, "bin.000002", 4) == found.era(1, "bin.000001", 4) == 1


def test_changes_without_rows_are_differences():
    """Those of a table under its name then, or of any, since it was emptied and its last snapshot."""

    def at(position: int, name: str = "UPDATE") -> NonRowChange:
        return NonRowChange(SourcePosition(0, "bin.000001", position), name, "0-1-7")

    found = history("CREATE TABLE o (id INT)", "TRUNCATE o", "RENAME TABLE o TO t")
    changes = {
        "d.o": [at(150), at(250), at(350, "DELETE")],
        "d.t": [at(260), at(310)],
        "d.*": [at(320, "SELECT")],
        "e.*": [at(330)],
        "d.t2": [at(340)],
    }
    known = History([], Catalog(kept=None), changes)
    assert known.missing(found).statements == [at(250), at(310), at(320, "SELECT")]
    assert known.missing(found, before=True).statements[0] == at(150)
    assert known.missing(found, at(315).place.order()).statements == [at(320, "SELECT")]
    assert known.missing(found, at(321).place.order()).statements == []
    ended = History([], Catalog(kept=None), changes, until=at(311).place.order())
    assert ended.missing(found).statements == [at(250), at(310)]
    assert str(at(250)) == "UPDATE at bin.000001:250 (0-1-7)"
    compared = Comparison("d", "t", keyed=True)
    assert compared.equal
    compared.lacks = Missing(statements=[at(250)])
    assert not compared.equal


def test_dead_letters_and_gaps_are_missing_under_each_name():
    """Those before the table was emptied, of another table with its name, or after the moment are none."""

    def at(first: int, last: int, table: str = "d.o", *, waits: bool = True) -> DeadLetters:
        return DeadLetters(
            table, waits, *(SourcePosition(0, "bin.000001", place) for place in (first, last)), 2
        )

    found = history("CREATE TABLE o (id INT)", "TRUNCATE o", "RENAME TABLE o TO t")
    emptied, waits, renamed, other = at(110, 150), at(190, 250), at(210, 290), at(310, 390)
    later, unread, nowhere = (
        at(320, 330, "d.t"),
        at(110, 340, "*", waits=False),
        DeadLetters("*", False, None, None),
    )
    catalog = Catalog(kept=None)
    for place in (150, 220, 350):
        catalog.gap(SourcePosition(0, "bin.000001", place))
    every = {"d.o": [emptied, waits, renamed, other], "d.t": [later], "*": [unread, nowhere]}
    known = History([], catalog, dead_letters=every, until=(0, 1, 340))
    assert known.waiting() == {("d", "o"): (0, 1, 110), ("d", "t"): (0, 1, 320)}
    assert known.waiting((0, 1, 325)) == {("d", "o"): (0, 1, 325), ("d", "t"): (0, 1, 325)}
    lacks = known.missing(found)
    assert lacks.dead_letters == [unread, waits, renamed, later, nowhere]
    assert [place.position for place in lacks.gaps] == [220]
    assert lacks.of_table
    assert known.missing(found, (0, 1, 300)).dead_letters == [unread, later, nowhere]
    assert not known.missing(found, (0, 1, 335)).of_table
    assert emptied in known.missing(found, before=True).dead_letters
    assert len(list(lacks)) == 6


@pytest.mark.parametrize(
    ("record", "tables"),
    [
        ({"kind": "NON_ROW_CHANGE", "changed": ["d.t"], "objects": ["d.t", "d.u"]}, ["d.t"]),
        ({"kind": "DDL", "changed": ["d.t"], "objects": ["d.t"]}, ["d.t"]),
        ({"kind": "NON_ROW_CHANGE", "changed": None, "objects": ["d.t", "d.u"]}, ["d.t", "d.u"]),
        ({"kind": "NON_ROW_CHANGE", "objects": [], "database": "d"}, ["d.*"]),
        ({"kind": "DDL", "changed": None, "objects": ["d.t"]}, []),
    ],
)
def test_tables_that_a_statement_changed(record, tables):
    """An earlier version did not say."""
    assert tables_changed(record) == tables
