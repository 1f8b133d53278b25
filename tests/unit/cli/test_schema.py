"""What ``millrace schema`` prints of a table."""

import pytest
from click.testing import CliRunner

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import ColumnDefinition, IndexDefinition, TableDefinition
from millrace.cli import schema as command
from millrace.cli.schema import lines_of, schema
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session
from millrace.rowmapper.catalog import Catalog


def test_a_table_as_of_places_in_the_log() -> None:
    catalog = Catalog(kept=None)
    columns = (
        ColumnDefinition(0, "id", "int(10) unsigned", nullable=False, unsigned=True, key_position=0),
        ColumnDefinition(1, "e", "enum('a')", charset="latin1", members=("a",)),
    )
    index = IndexDefinition("u", True, (("e", 3),))
    definition = TableDefinition("d", "t", columns, charset="latin1", indexes=(index,))
    catalog.add(CatalogEntry(0, "bin.000001", 100, definition, 1))
    session = Session("d", 0, Server.parse("8.0.15"))
    for number, statement in enumerate(
        ("ALTER TABLE t ADD v CHAR(2) INVISIBLE", "ALTER TABLE t ADD x WHAT", "DROP TABLE t"), 2
    ):
        catalog.apply(statement, session, SourcePosition(0, "bin.000001", 100 * number), whole=True)

    def shown(position: int) -> list[str]:
        return list(lines_of(catalog.find("d", "t", SourcePosition(0, "bin.000001", position))))

    before = [
        "d.t: read from the server",
        "  id int(10) unsigned, not null, primary key 1",
        "  e enum('a'), character set latin1, null",
        "  unique index u (e(3))",
        "  default character set latin1",
    ]
    assert shown(150) == before
    assert shown(50) == [before[0] + ", but later", *before[1:]]
    after = shown(250)
    assert after[0] == "d.t: by a DDL statement"
    assert after[3] == "  v char(2), character set latin1, null, invisible"
    assert shown(350)[0].startswith("its definition is not known: a statement is not understood")
    assert shown(450) == ["there is no such table: it was dropped, or has another name"]
    assert list(lines_of(catalog.find("d", "other", SourcePosition(0, "", 0)))) == [
        "nothing is known about it"
    ]


@pytest.mark.parametrize("name", ["orders", ".orders", "shop."])
def test_what_is_no_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_history", lambda *_: Catalog())
    done = CliRunner().invoke(schema, ["show", name])
    assert (done.exit_code, done.output.strip()) == (2, f"error: {name} is not DATABASE.TABLE")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--at", "1:bin.000001:0"], "--at goes with --definitions"),
        (
            ["--at", "here", "--definitions", __file__],
            "here is not a position in a log: expected FILE:POSITION",
        ),
    ],
)
def test_definitions_that_are_given_nowhere(arguments: list[str], error: str) -> None:
    done = CliRunner().invoke(schema, ["rebuild", *arguments])
    assert (done.exit_code, done.output.strip()) == (2, f"error: {error}")
