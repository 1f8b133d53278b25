"""Which definition of a table holds for an event."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.events.query import StatusVariables
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session, Unknown
from millrace.rowmapper.catalog import Catalog

from .harness import EventsTopic, World
from .logs import Log


def entry(name, epoch, log_file, position, engine):
    return CatalogEntry(epoch, log_file, position, TableDefinition("d", name, (), engine=engine), 1)


def test_definition_of_the_position():
    catalog = Catalog()
    for order in (2, 0, 1):
        epoch, file, position = [(0, "bin.999999", 500), (0, "bin.1000000", 4), (1, "bin.000001", 4)][order]
        catalog.add(entry("t", epoch, file, position, str(order)))

    def found(epoch, log_file, position):
        answer = catalog.find("d", "t", SourcePosition(epoch, log_file, position))
        return answer.definition.engine, answer.later

    assert found(0, "bin.999999", 499) == ("0", True)
    assert found(0, "bin.999999", 500) == ("0", False)
    assert found(0, "bin.999999", 10_000) == ("0", False)
    assert found(0, "bin.1000000", 4) == ("1", False)
    assert found(0, "bin.1000001", 4) == ("1", False)
    assert found(1, "bin.000001", 900) == ("2", False)
    assert catalog.find("d", "other", SourcePosition(0, "bin.000001", 4)) is None


def test_names_do_not_differ_by_case_where_the_server_says_so():
    """Servers with lower_case_table_names log names of tables in lower case, and statements as they are."""
    catalog = Catalog()
    catalog.add(replace(entry("t", 0, "bin.000001", 4, "InnoDB"), lower_case_names=True))
    place = SourcePosition(0, "bin.000001", 90)
    versions = catalog.apply("ALTER TABLE D.T ADD a INT", Session("D"), place, whole=True)
    assert [(version.database, version.table) for version in versions] == [("d", "t")]
    assert list(catalog.tables("d", place)) == ["t"]
    for names in (("d", "t"), ("D", "T")):
        found = catalog.find(*names, place)
        assert [column.name for column in found.definition.columns] == ["a"]


def test_a_definition_does_not_hold_before_what_may_have_altered_it():
    read = replace(
        entry("t", 0, "bin.000003", 4, "InnoDB"), altered_log_file="bin.000002", altered_position=700
    )
    catalog = Catalog()
    catalog.add(read)
    catalog.add(entry("t", 0, "bin.000003", 900, "InnoDB"))  # as a reader that starts again reads it
    session = Session("d", 0, Server.parse("8.0.15"))

    def found(position, log_file="bin.000002"):
        return catalog.find("d", "t", SourcePosition(0, log_file, position))

    for position in (4, 700):
        assert isinstance(found(position).definition, Unknown)
        assert "it may have been altered up to bin.000002:700" in found(position).definition.reason
        (only,) = catalog.since("d", "t", SourcePosition(0, "bin.000002", position))
        assert only == found(position)
    assert found(701) == (read.definition, True, "catalog")
    assert found(4, "bin.000003") == (read.definition, False, "catalog")
    # The statement itself tells nothing, since nothing is known before it.
    place = SourcePosition(0, "bin.000002", 700)
    assert catalog.apply("ALTER TABLE t ADD a INT", session, place, whole=True) == []
    # Nor does it become known what the table was before it was created again.
    assert catalog.apply(
        "CREATE TABLE t (a INT) CHARACTER SET latin1",
        session,
        SourcePosition(0, "bin.000002", 900),
        whole=True,
    )
    assert isinstance(found(4).definition, Unknown)


def test_where_nobody_has_looked_a_definition_holds_from_its_own_place_on():
    def read(position, altered, engine):
        there = entry("t", 0, "bin.000001", position, engine)
        return replace(there, altered_log_file="bin.000001", altered_position=altered)

    catalog = Catalog()
    catalog.add(read(500, 500, "a"))

    def found(position):
        return catalog.find("d", "t", SourcePosition(0, "bin.000001", position))

    assert found(499) is None
    assert found(500).definition.engine == "a"
    # Another one tells that nothing has altered the table since 200.
    catalog.add(read(700, 200, "b"))
    assert isinstance(found(200).definition, Unknown)
    assert found(201)[:2] == found(499)[:2] == (read(700, 200, "b").definition, True)
    assert found(500)[:2] == (read(500, 500, "a").definition, False)
    catalog.gap(SourcePosition(0, "bin.000001", 300))
    assert isinstance(found(400).definition, Unknown)


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from("abc")), max_size=30))
def test_readings_that_say_the_same_change_nothing_and_are_not_kept(read):
    catalog, entries = Catalog(kept=None), []
    for position, engine in sorted(read, key=lambda one: one[0]):
        new = entry("t", 0, "bin.000001", position, engine)
        catalog.add(new)
        entries.append(new)
    for position in range(-1, 10):
        before = [one for one in entries if one.position <= position]
        found = catalog.find("d", "t", SourcePosition(0, "bin.000001", position))
        if entries:
            assert found[:2] == ((before or entries[:1])[-1].definition, not before)
        since = catalog.since("d", "t", SourcePosition(0, "bin.000001", position))
        assert any(one.later for one in since) == (len(before) < len(entries))


def test_a_thousand_starts_of_the_reader_are_two_readings():
    catalog = Catalog()
    for position in range(1000):
        catalog.add(entry("t", 0, "bin.000001", position, "InnoDB"))
    kept = catalog.since("d", "t", SourcePosition(0, "bin.000001", 0))
    assert [one.later for one in kept] == [False, True]


def test_what_is_older_than_what_is_kept_is_not_known():
    catalog = Catalog(kept=3)
    catalog.add(entry("t", 0, "bin.000001", 0, "InnoDB"))
    session = Session("d", 0, Server.parse("8.0.15"))
    for number in range(1, 9):
        place = SourcePosition(0, "bin.000001", 10 * number)
        assert catalog.apply(f"ALTER TABLE t ADD c{number} INT", session, place, whole=True)
    # Readings come again when a row mapper starts.
    catalog.add(entry("t", 0, "bin.000001", 0, "InnoDB"))

    def found(position):
        return catalog.find("d", "t", SourcePosition(0, "bin.000001", position)).definition

    assert [len(found(position).columns) for position in (75, 80, 1000)] == [7, 8, 8]
    assert isinstance(found(65), Unknown)
    assert isinstance(found(5), Unknown)


def test_readings_ahead_of_the_stream_do_not_drive_out_what_holds_for_it():
    """The reader may be many statements ahead of the row mapper."""
    catalog = Catalog(kept=3)
    session = Session("d", 0, Server.parse("8.0.15"))
    for position in (100, 200, 300, 400, 500):
        catalog.add(entry("t", 0, "bin.000001", position, str(position)))
    catalog.apply("ALTER TABLE t ADD b INT", session, SourcePosition(0, "bin.000001", 150), whole=True)
    for position, engine in ((120, "100"), (250, "200"), (450, "400"), (500, "500")):
        found = catalog.find("d", "t", SourcePosition(0, "bin.000001", position))
        assert found.definition.engine == engine


# -- IF NOT EXISTS ------------------------------------------------------------------------------------------

CREATED = "CREATE TABLE IF NOT EXISTS a (id INT PRIMARY KEY, made VARCHAR(100) CHARACTER SET utf8mb4)"
"""The table may have been there, with other columns."""


def rows_after_it(variables=None, catalog=(), before=()):
    """The names of the second column in rows after the statement; and how many rows wait."""
    topic = EventsTopic()
    log = Log(topic, named=False)
    for statement in before:
        log.query(statement)
    if catalog:
        log.begin().insert("a", (1, "x")).commit()
    log.query(CREATED, variables=variables)
    log.begin().insert("a", (2, "x")).commit()
    world = World(topic, catalog=catalog)
    world.run()
    found = [list(value["after"])[1] for _, value in world.read("t.shop.a")]
    return found, len(world.records("t.deadletter"))


def read_at(position, altered=None):
    columns = (
        ColumnDefinition(0, "id", "int", nullable=False, key_position=0),
        ColumnDefinition(1, "read", "varchar(100)", charset="utf8mb4"),
    )
    found = CatalogEntry(0, "bin.000001", position, TableDefinition("shop", "a", columns), 1)
    return (
        found if altered is None else replace(found, altered_log_file="bin.000001", altered_position=altered)
    )


def test_what_a_statement_may_have_found_is_not_known():
    """The log has the statement also where the table was there, with other columns."""
    assert rows_after_it() == ([], 1)


def test_what_the_log_says_that_a_statement_has_created():
    """MySQL 8 logs the transaction of its dictionary in which it created something."""
    assert rows_after_it(StatusVariables(codes=b"\x11", ddl_logged_with_xid=7)) == (["made"], 0)
    assert rows_after_it(StatusVariables(codes=b"\x81", xid=7)) == (["made"], 0)


def test_a_statement_creates_what_was_dropped():
    assert rows_after_it(before=["CREATE TABLE a (id INT)", "DROP TABLE a"]) == (["made"], 0)
    assert rows_after_it(before=["CREATE TABLE a (id INT)", "RENAME TABLE a TO b"]) == (["made"], 0)


def test_a_statement_finds_what_was_read():
    """Before it, or after it where nothing has altered the table in between."""
    assert rows_after_it(catalog=[read_at(4)]) == (["read", "read"], 0)
    assert rows_after_it(catalog=[read_at(5000)]) == (["read", "read"], 0)
    assert rows_after_it(catalog=[read_at(5000, altered=4000)]) == ([], 2)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("10.6.9-MariaDB", Unknown), ("11.4.5-MariaDB", TableDefinition), ("9.7.4", Unknown)],
)
def test_a_server_that_logs_only_what_was_created(version, expected):
    session = Session("shop", 0, Server.parse(version), "utf8mb4")
    for kind in (
        "TABLE IF NOT EXISTS a (id INT)",
        "TABLE IF NOT EXISTS a LIKE b",
        "SEQUENCE IF NOT EXISTS a",
    ):
        catalog = Catalog()
        catalog.apply("CREATE TABLE b (id INT)", session, SourcePosition(0, "bin.000001", 4), whole=True)
        (made,) = catalog.apply(f"CREATE {kind}", session, SourcePosition(0, "bin.000001", 100), whole=True)
        assert isinstance(made.state, expected), kind


def test_a_database_that_was_not_there_is_created():
    """Where the catalogue was read, it had all databases."""
    place = SourcePosition(0, "bin.000001", 100)
    text = "CREATE DATABASE IF NOT EXISTS other"
    session = Session("", 0, Server.parse("11.4.5-MariaDB"), "utf8mb4")
    catalog = Catalog()
    (made,) = catalog.apply(text, session, place, whole=True)
    assert isinstance(made.state, Unknown)
    catalog = Catalog()
    catalog.add(entry("t", 0, "bin.000001", 4, "InnoDB"))
    (made,) = catalog.apply(text, session, place, whole=True)
    assert made.state.charset == "utf8mb4"
    later = Catalog()
    later.add(CatalogEntry(0, "bin.000001", 200, TableDefinition("other", "", (), charset="latin1"), 1))
    assert later.apply(text, session, place, whole=True) == []


def test_a_definition_that_grows_too_large_is_not_known_until_it_is_read_again():
    session, place = Session("d", 0, Server.parse("8.0.15")), SourcePosition(0, "bin.000001", 100)
    catalog = Catalog()
    catalog.apply("CREATE TABLE t (a INT) CHARACTER SET latin1", session, place, whole=True)

    def grow(number):
        text = f"ALTER TABLE t ADD e{number} ENUM({','.join(repr(f'{each:06d}') for each in range(40_000))})"
        (version,) = catalog.apply(text, session, place._replace(position=number), whole=True)
        assert len(version.to_bytes()) < 1_010_000
        assert catalog.find("d", "t", version.place).definition == version.state
        return version.state

    assert len(grow(200).columns) == 2
    assert grow(300).reason.startswith("it is too large: more than 1,000,000 bytes")
    later = place._replace(position=400)
    catalog.apply("ALTER TABLE t ADD b INT", session, later, whole=True)
    assert isinstance(catalog.find("d", "t", later).definition, Unknown), "nor is it known from there on"
    catalog.add(entry("t", 0, "bin.000001", 500, "InnoDB"))
    assert catalog.find("d", "t", place._replace(position=500)).definition.engine == "InnoDB"


def test_a_definition_that_was_too_large_to_be_read():
    catalog = Catalog()
    catalog.add(replace(entry("t", 0, "bin.000001", 4, "InnoDB"), unknown="why"))
    assert catalog.find("d", "t", SourcePosition(0, "bin.000001", 90)).definition == Unknown("why")
