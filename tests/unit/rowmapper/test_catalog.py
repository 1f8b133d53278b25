"""Which definition of a table holds for an event."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import Server, Session, Unknown
from millrace.rowmapper.catalog import Catalog


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
    assert catalog.apply("CREATE TABLE t (a INT)", session, SourcePosition(0, "bin.000002", 900), whole=True)
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
