"""Definitions of tables across a gap: statements that are missing may have altered any of them."""

from dataclasses import replace

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import GAP, SourcePosition
from millrace.ddl import Server, Session, State, Unknown
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.definitions import DefiningStatements

from .harness import EventsTopic, World
from .logs import Log

READERS_GAP = b"0:1:bin.000001:0:0"
"""In front of a new epoch, as the reader writes it."""


def definition(name: str, *, epoch: int = 0, position: int = 0, altered: int = 0) -> CatalogEntry:
    """What was read of shop.a, whose second column has this name; the log does not tell it."""
    columns = (
        ColumnDefinition(0, "id", "int", nullable=False, key_position=0),
        ColumnDefinition(1, name, "varchar(100)", charset="utf8mb4"),
    )
    return CatalogEntry(
        epoch,
        "bin.000001",
        position,
        TableDefinition("shop", "a", columns),
        1,
        altered_log_file="bin.000001" if altered else "",
        altered_position=altered,
    )


def insert(log: Log, number: int) -> Log:
    return log.begin().insert("a", (number, "x")).commit()


def after_a_gap(key: bytes = READERS_GAP) -> tuple[EventsTopic, Log]:
    """Row 1, a gap, and a log of the next epoch in which row 2 is first."""
    topic = EventsTopic()
    insert(Log(topic, named=False), 1)
    topic.add_marker(GAP, key)
    return topic, insert(Log(topic, named=False, epoch=1), 2)


def rows(world: World) -> list[tuple[str, dict[str, object]]]:
    found = world.read("t.shop.a")
    return [(value["source"]["schema_source"], value["after"]) for _, value in found]


def waiting(world: World) -> list[str]:
    return [value["error"] for _, value in world.read("t.deadletter")]


@pytest.mark.parametrize("cut_every", [1, 10_000])
def test_what_was_read_before_a_gap_does_not_hold_after_it(cut_every: int) -> None:
    """The column was renamed in what is missing; that is read only later."""
    topic, log = after_a_gap()
    insert(log, 3)
    world = World(
        topic,
        catalog=[definition("note"), definition("text", epoch=1, position=log.position)],
        cut_every=cut_every,
    )
    world.run()
    insert(log, 4)
    world.run()
    assert rows(world) == [
        ("catalog", {"id": 1, "note": "x"}),
        ("catalog_later", {"id": 2, "text": "x"}),
        ("catalog_later", {"id": 3, "text": "x"}),
        ("catalog", {"id": 4, "text": "x"}),
    ]
    assert waiting(world) == []


@pytest.mark.parametrize("cut_every", [1, 10_000])
def test_rows_wait_where_nothing_was_read_after_a_gap(cut_every: int) -> None:
    topic, log = after_a_gap()
    world = World(topic, catalog=[definition("note")], cut_every=cut_every)
    world.run()
    world.catalog.append(definition("text", epoch=1, position=log.position))
    insert(log, 3)
    world.run()
    assert rows(world) == [("catalog", {"id": 1, "note": "x"})]
    for error in waiting(world):
        assert "changes are missing before bin.000001:0 of epoch 1" in error
        assert "--at 1:bin.000001:0" in error
    assert len(waiting(world)) == 2


@pytest.mark.parametrize("cut_every", [1, 10_000])
def test_a_statement_after_a_gap_is_not_applied_to_what_was_known_before_it(cut_every: int) -> None:
    topic, log = after_a_gap()
    log.query("ALTER TABLE a MODIFY note VARCHAR(100) CHARACTER SET utf8mb4 FIRST")
    altered = log.position - 100
    insert(log, 3)
    read = definition("text", epoch=1, position=log.position, altered=altered)
    world = World(topic, catalog=[definition("note"), read], cut_every=cut_every)
    world.run()
    assert rows(world) == [("catalog", {"id": 1, "note": "x"})]
    first, _ = waiting(world)
    assert f"it may have been altered up to bin.000001:{altered}" in first
    assert "--at 1:bin.000001:0" in first


def test_a_gap_that_begins_no_epoch() -> None:
    """Nobody has looked what was altered between it and the next reading: rows wait until that."""
    topic = EventsTopic()
    log = insert(Log(topic, named=False), 1)
    topic.add_marker(GAP, f"0:0:bin.000001:{log.position - 1}:0".encode())
    place = log.position
    insert(log, 2)
    world = World(topic, catalog=[definition("note"), definition("text", position=log.position)])
    world.run()
    assert rows(world) == [("catalog", {"id": 1, "note": "x"})]
    (error,) = waiting(world)
    assert f"changes are missing before bin.000001:{place - 1} of epoch 0" in error
    assert f"--at 0:bin.000001:{place}" in error


def test_a_table_that_tells_its_columns_does_not_wait() -> None:
    topic = EventsTopic()
    insert(Log(topic), 1)
    topic.add_marker(GAP, READERS_GAP)
    insert(Log(topic, epoch=1), 2)
    world = World(topic, catalog=[definition("note")])
    world.run()
    assert rows(world) == [("table_map", {"id": 1, "note": "x"}), ("table_map", {"id": 2, "note": "x"})]


@pytest.mark.parametrize("cut_every", [1, 10_000])
def test_a_gap_is_noted_in_the_schema_history_once(cut_every: int) -> None:
    topic, _ = after_a_gap()
    world = World(topic, catalog=[definition("note")], cut_every=cut_every)
    world.run()
    world.run()
    ((key, value, _),) = world.records("t.schemas")
    assert key == b".@1:bin.000001:0"
    noted = SchemaVersion.from_bytes(value)
    assert noted.place == SourcePosition(1, "bin.000001", 0)
    assert isinstance(noted.state, Unknown)


# -- the catalogue ------------------------------------------------------------------------------------------

GAP_PLACE = SourcePosition(1, "bin.000001", 0)
SESSION = Session("shop", 0, Server.parse("8.0.15"))


def column(catalog: Catalog, place: SourcePosition) -> str | None:
    """The name of the second column at a place; None where the table is not known, or missing."""
    found = catalog.find("shop", "a", place)
    return None if found is None else _second(found.definition)


def _second(state: State) -> str | None:
    return state.columns[1].name if isinstance(state, TableDefinition) else None


def at(position: int, epoch: int = 1) -> SourcePosition:
    return SourcePosition(epoch, "bin.000001", position)


def known(*entries: CatalogEntry, gap: SourcePosition = GAP_PLACE) -> Catalog:
    catalog = Catalog(kept=None)
    for entry in entries:
        catalog.add(entry)
    catalog.restore(SchemaVersion.from_bytes(catalog.gap(gap).to_bytes()))
    return catalog


def test_readings_before_and_after_a_gap_say_the_same() -> None:
    """The first after the gap is kept: it says up to where the table may have been another."""
    catalog = known(
        definition("note", position=4),
        definition("note", epoch=1, position=400, altered=300),
        definition("note", epoch=1, position=500),
    )
    assert [column(catalog, at(position)) for position in (4, 300, 301)] == [None, None, "note"]
    before = known(definition("note", position=4), definition("note", epoch=1, position=400))
    before.add(definition("note", epoch=1, position=500))
    assert column(before, at(4)) == "note"


def test_what_is_read_after_a_gap_says_nothing_of_before_it() -> None:
    catalog = known(definition("text", epoch=1, position=400))
    assert catalog.find("shop", "a", at(4, epoch=0)) is None
    assert catalog.since("shop", "a", at(4, epoch=0)) == []
    assert column(catalog, at(4)) == "text"
    catalog = known(definition("note"), definition("text", epoch=1, position=400))
    (only,) = catalog.since("shop", "a", at(4, epoch=0))
    assert (only.definition.columns[1].name, only.later) == ("note", False)
    assert [found.later for found in catalog.since("shop", "a", at(4))] == [True]


def test_a_table_may_have_come_to_be_in_a_gap() -> None:
    """So CREATE TABLE IF NOT EXISTS tells what it is only where the log says that it was created."""
    created = "CREATE TABLE {} a (id INT, v VARCHAR(100) CHARACTER SET utf8mb4)"
    for entries in ([definition("note")], [definition("text", epoch=1, position=400)]):
        catalog = known(*entries)
        assert catalog.apply(created.format("IF NOT EXISTS"), SESSION, at(100), whole=True) == []
        assert len(catalog.apply(created.format(""), SESSION, at(200), whole=True)) == 1
        assert column(catalog, at(201)) == "v"
        assert column(catalog, at(150)) is None
    catalog, session = known(definition("note")), replace(SESSION, has_created=True)
    assert len(catalog.apply(created.format("IF NOT EXISTS"), session, at(100), whole=True)) == 1
    assert column(catalog, at(150)) == "v"
    catalog = known(definition("note"))
    (dropped,) = catalog.apply("DROP TABLE a", SESSION, at(100), whole=True)
    assert not isinstance(dropped.state, Unknown | TableDefinition)


def test_what_is_redriven_takes_no_definition_of_after_another_statement() -> None:
    """The table got its name after the gap, was altered, and read then: it is not what it was between."""
    catalog = known(definition("text", epoch=1, position=400, altered=300))
    catalog.restore(SchemaVersion("shop", "a", *at(200), Unknown("renamed")))
    for position, names in ((250, [None]), (301, [None, "text"])):
        found = catalog.since("shop", "a", at(position), unaltered=True)
        assert [_second(each.definition) for each in found] == names
        assert len(catalog.since("shop", "a", at(position))) == 2
    catalog.restore(SchemaVersion("shop", "a", *at(350), definition("v").definition))
    assert len(catalog.since("shop", "a", at(301), unaltered=True)) == 1


def test_what_is_forgotten_is_not_known_after_a_gap_either() -> None:
    catalog = Catalog(kept=3)
    catalog.add(definition("note"))
    catalog.gap(GAP_PLACE)
    for number in range(1, 9):
        catalog.add(definition(f"v{number}", epoch=1, position=100 * number))
        catalog.apply("ALTER TABLE other ADD c INT", SESSION, at(100 * number), whole=True)
    assert column(catalog, at(800)) == "v8"
    assert column(catalog, at(4)) is None


def test_several_gaps() -> None:
    catalog = known(definition("note"), definition("text", epoch=2, position=400))
    catalog.gap(SourcePosition(2, "bin.000001", 0))
    assert [column(catalog, at(500, epoch)) for epoch in range(3)] == ["note", None, "text"]
    assert column(catalog, at(4, epoch=2)) == "text"


def test_definitions_that_were_given_stay_where_the_history_is_rebuilt() -> None:
    """What is stored as of an event's place is what its statement is to lead to."""
    topic = EventsTopic()
    log = Log(topic, named=False)
    log.query("CREATE TABLE a (id INT)").query("CREATE TABLE b (id INT)")
    world = World(topic)
    world.run()
    places = [at(position, epoch=0) for position in (3, 4, 103, 104, 203)]
    stored = [SchemaVersion("shop", "c", *place, Unknown(str(place))) for place in places]
    statements = DefiningStatements(Catalog(kept=None), stored)
    reader = world.event_reader()
    made = [version for record in topic.records for version in statements.take(reader.take(record).event)]
    made += statements.gap(at(0, epoch=1))
    assert [(version.table, version.position) for version in made] == [
        ("c", 3),
        ("a", 4),
        ("c", 103),
        ("b", 104),
        ("c", 203),
        ("", 0),
    ]
