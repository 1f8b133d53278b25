"""Which definition of a table holds for an event."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.events import FormatDescriptionEvent
from millrace.binlog.events.query import StatusVariables
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import MISSING, Server, Session, Unknown
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


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("epoch", [0, 1])
def test_what_is_read_again_keeps_former_names(read_first, epoch):
    def read(epoch, position, *columns):
        made = tuple(ColumnDefinition(i, name, "int") for i, name in enumerate(columns))
        return replace(
            entry("t", epoch, "bin.000001", position, None), definition=TableDefinition("d", "t", made)
        )

    catalog = Catalog()
    catalog.add(read(0, 4, "a", "b"))
    later = [read(epoch, 200, "b", "x"), read(epoch, 300, "b", "x"), read(epoch, 400, "y", "b")]
    if read_first:
        for each in later:
            catalog.add(each)
    place = SourcePosition(0, "bin.000001", 100)
    catalog.apply("ALTER TABLE t RENAME COLUMN a TO x", Session("d"), place, whole=True)
    if not read_first:
        for each in later:
            catalog.add(each)

    def names(epoch, position):
        state = catalog.find("d", "t", SourcePosition(epoch, "bin.000001", position)).definition
        former = {column.name: [each.name for each in column.former] for column in state.columns}
        return former, state.gone

    assert names(0, 99) == ({"a": [], "b": []}, ())
    assert names(0, 100) == ({"x": ["a"], "b": []}, ())
    for position in (200, 250, 300, 399):
        assert names(epoch, position) == ({"x": ["a"], "b": []}, ())
    assert names(epoch, 400) == ({"y": [], "b": []}, ("a", "x"))
    versions = catalog.apply(
        "ALTER TABLE t RENAME COLUMN b TO x",
        Session("d"),
        SourcePosition(epoch, "bin.000001", 500),
        whole=True,
    )
    (state,) = [SchemaVersion.from_bytes(one.to_bytes()).state for one in versions]
    assert state.gone == ("a", "x", "b")
    assert [(column.name, column.former) for column in state.columns] == [("y", ()), ("x", ())]


@pytest.mark.parametrize("statement", ["DROP TABLE t", "ALTER TABLE t FROBNICATE", "RENAME TABLE t TO u"])
@pytest.mark.parametrize("read_first", [True, False])
def test_what_is_read_of_another_table_has_no_names_of_the_first(statement, read_first):
    def read(position, *columns):
        made = tuple(ColumnDefinition(i, name, "int") for i, name in enumerate(columns))
        return replace(
            entry("t", 0, "bin.000001", position, None), definition=TableDefinition("d", "t", made)
        )

    catalog = Catalog()
    for each in (read(4, "a"), *([read(300, "b")] if read_first else [])):
        catalog.add(each)
    for position, text in ((100, "ALTER TABLE t RENAME COLUMN a TO b"), (200, statement)):
        place = SourcePosition(0, "bin.000001", position)
        catalog.apply(text, Session("d"), place, whole=True)
    if not read_first:
        catalog.add(read(300, "b"))
    state = catalog.find("d", "t", SourcePosition(0, "bin.000001", 300)).definition
    assert [(column.name, column.former) for column in state.columns] == [("b", ())]
    assert set(state.gone) == {"a", "b"}


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


def rows_after_it(variables=None, catalog=(), before=(), version=None, **world):
    """The names of the second column in rows after the statement; and how many rows wait."""
    topic = EventsTopic()
    log = Log(topic, named=False)
    if version is not None:
        log.event(FormatDescriptionEvent(4, version, 0, 19, bytes(40), 0))
    for statement in before:
        log.query(statement)
    if catalog and version is None:
        log.begin().insert("a", (1, "x")).commit()
    log.query(CREATED, variables=variables)
    log.begin().insert("a", (2, "x")).commit()
    world = World(topic, catalog=catalog, **world)
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


# -- whole readings ----------------------------------------------------------------------------------------

SESSION = Session("shop", 0, Server.parse("5.7.22-log"), "latin1")


def whole_reading(position=4, *tables, epoch=0, database="shop"):
    """What a reader writes that sees all tables: those of one database, and the server's own."""
    found = [TableDefinition(name, "", (), charset="utf8mb4") for name in (database, "mysql")]
    found += [TableDefinition(database, table, (ColumnDefinition(0, "id", "int"),)) for table in tables]
    return [CatalogEntry(epoch, "bin.000001", position, each, 1, whole=len(found)) for each in found]


def known(*entries, kept=20):
    catalog = Catalog(kept)
    for each in entries:
        catalog.add(each)
    return catalog


def after(catalog, *statements, session=SESSION, position=100, table="a", epoch=0):
    """What is known of a table after statements that come one after the other."""
    for number, text in enumerate(statements):
        place = SourcePosition(epoch, "bin.000001", position + number)
        catalog.apply(text, session, place, whole=True)
    found = catalog.find("shop", table, place)
    return None if found is None else found.definition


@pytest.mark.parametrize("cut_every", [1, 10_000])
@pytest.mark.parametrize("version", ["5.7.22-log", "5.5.5-10.2.11-MariaDB", "10.5.26-MariaDB"])
def test_a_table_that_a_whole_reading_does_not_list_is_created(version, cut_every):
    found = rows_after_it(version=version, catalog=whole_reading(), cut_every=cut_every)
    assert found == (["made"], 0)


@pytest.mark.parametrize(
    ("version", "entries"),
    [
        pytest.param("8.0.15", whole_reading(), id="what MySQL 8 has logged may show only later"),
        pytest.param("9", whole_reading(), id="so may what an unknown version has"),
        pytest.param("5.7.22", whole_reading()[:-1], id="its last entry is not there"),
        pytest.param(
            "5.7.22", [replace(one, whole=None) for one in whole_reading()], id="tables may be missing"
        ),
        pytest.param("5.7.22", whole_reading(5000), id="it was read after the statement"),
        pytest.param("5.7.22", whole_reading(database="other"), id="the database was not listed either"),
    ],
)
def test_what_proves_nothing(version, entries):
    assert rows_after_it(version=version, catalog=entries) == ([], 1)


def test_a_table_that_a_whole_reading_lists_is_found():
    assert after(known(*whole_reading(4, "a")), CREATED).columns[0].column_type == "int"
    assert len(after(known(*whole_reading(4, "A")), CREATED).columns) == 2
    lower = [replace(one, lower_case_names=True) for one in whole_reading(4, "a")]
    assert len(after(known(*lower), CREATED.replace(" a ", " A ")).columns) == 1


def test_entries_of_two_readings_make_no_whole_one():
    one, other = whole_reading()
    assert isinstance(after(known(one, replace(other, read_ms=2)), CREATED), Unknown)
    assert isinstance(after(known(one, replace(other, position=5)), CREATED), Unknown)
    assert isinstance(after(known(other, one, replace(other, read_ms=2)), CREATED), TableDefinition)


def test_a_whole_reading_across_gaps_and_epochs():
    for gap, read, epoch, expected in (
        (SourcePosition(0, "bin.000001", 60), 50, 0, Unknown),
        (SourcePosition(0, "bin.000001", 40), 50, 0, TableDefinition),
        (SourcePosition(1, "bin.000001", 0), 50, 1, Unknown),
    ):
        catalog = known(*whole_reading(read))
        catalog.gap(gap)
        assert isinstance(after(catalog, CREATED, epoch=epoch), expected)
    # Another server may have tables of its own.
    assert isinstance(after(known(*whole_reading()), CREATED, epoch=1), Unknown)
    assert isinstance(after(known(*whole_reading(epoch=1)), CREATED, epoch=1), TableDefinition)


@pytest.mark.parametrize("kept", [None, 20])
def test_the_last_whole_reading_before_a_statement_counts(kept):
    catalog = known(*whole_reading(4), *whole_reading(150, "a"), *whole_reading(300, "a"), kept=kept)
    assert len(after(catalog, CREATED).columns) == 2
    catalog = known(*whole_reading(4), *whole_reading(90, "b"), *whole_reading(300, "a"), kept=kept)
    assert len(after(catalog, CREATED).columns) == 2
    assert len(after(catalog, CREATED.replace(" a ", " b "), position=200, table="b").columns) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "RENAME TABLE v TO a",
        "ALTER TABLE v RENAME a",
        "ALTER TABLE a ADD b INT",
        "ALTER TABLE other CONVERT TO CHARACTER UNHEARD OF",
        "CREATE TABLE a SELECT 1",
        "ALTER DATABASE `#mysql50#shop` UPGRADE DATA DIRECTORY NAME",
    ],
)
def test_a_statement_that_tells_of_a_table_or_may_have_made_it(statement):
    catalog = known(*whole_reading())
    assert isinstance(after(catalog, statement, CREATED), Unknown)
    # So it is for the next process, which has the versions alone.
    versions = known(*whole_reading()).apply(
        statement, SESSION, SourcePosition(0, "bin.000001", 100), whole=True
    )
    restarted = Catalog()
    for version in versions:
        restarted.restore(SchemaVersion.from_bytes(version.to_bytes()))
    for each in whole_reading():
        restarted.add(each)
    assert isinstance(after(restarted, CREATED, position=101), Unknown)
    # A later reading tells again.
    for each in whole_reading(200, "other"):
        restarted.add(each)
    assert isinstance(
        after(restarted, CREATED.replace(" a ", " b "), position=300, table="b"), TableDefinition
    )


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMPORARY TABLE a (x INT)",
        "DROP TEMPORARY TABLE a",
        "DROP TABLE IF EXISTS a",
        "DROP VIEW IF EXISTS a",
        "ALTER TABLE IF EXISTS a ADD b INT",
        "RENAME TABLE b TO c",
        "RENAME TABLE IF EXISTS b TO a",
        "ALTER TABLE IF EXISTS b RENAME a",
        "CREATE TABLE b SELECT 1",
        "CREATE VIEW a AS SELECT 1",
        "CREATE PROCEDURE p() BEGIN END",
    ],
)
def test_a_statement_that_makes_no_such_table(statement):
    assert isinstance(after(known(*whole_reading()), statement, CREATED), TableDefinition)


def test_a_statement_of_which_only_the_beginning_is_read():
    for text, expected in (
        ("RENAME TABLE b TO c, d", Unknown),
        ("CREATE TABLE `\ufffd` (x INT)", Unknown),
        ("CREATE PROCEDURE p() BEGIN", TableDefinition),
        ("DROP TABLE b, ", TableDefinition),
    ):
        catalog = known(*whole_reading())
        catalog.apply(text, SESSION, SourcePosition(0, "bin.000001", 50), whole=False)
        assert isinstance(after(catalog, CREATED), expected), text


def test_what_was_created_where_a_view_was():
    """The statement makes nothing where there is a view, which is dropped only after it."""
    other = "CREATE TABLE IF NOT EXISTS a (made VARCHAR(100), id INT)"
    for drop in ("DROP VIEW a", "DROP VIEW IF EXISTS b, a"):
        assert isinstance(after(known(*whole_reading()), CREATED, drop, other), Unknown)
    # Without a view servers log the statement as well; the reader has seen the table, then.
    seen = [*whole_reading(), *whole_reading(101, "a")]
    assert len(after(known(*seen), CREATED, "BEGIN", "DROP VIEW IF EXISTS a", other).columns) == 1


def test_a_database_that_is_dropped_and_created_again():
    catalog = known(*whole_reading(4, "b"))
    assert after(catalog, "CREATE TABLE a (x INT)", "DROP DATABASE shop") is MISSING
    made = after(
        catalog, "CREATE DATABASE IF NOT EXISTS shop CHARSET latin1", CREATED, position=200, table=""
    )
    assert made.charset == "latin1"
    assert len(after(catalog, CREATED.replace(" a ", " b "), position=300, table="b").columns) == 2


def test_statements_that_a_first_row_mapper_has_missed():
    """The events of before were deleted; a reading of before them tells nothing of what came since."""
    catalog = known(*whole_reading())
    assert catalog.begin(SourcePosition(0, "bin.000001", 4)) is None
    noted = catalog.begin(SourcePosition(0, "bin.000001", 50))
    assert isinstance(after(catalog, CREATED), Unknown)
    restarted = Catalog()
    restarted.restore(SchemaVersion.from_bytes(noted.to_bytes()))
    for each in whole_reading():
        restarted.add(each)
    assert restarted.begin(SourcePosition(0, "bin.000001", 60)) is None
    assert isinstance(after(restarted, CREATED), Unknown)
    assert noted.place.position == 49, "no statement is there, so that it stays when the history is rebuilt"

    late = [replace(one, position=2) for one in whole_reading()]
    assert rows_after_it(version="5.7.22", catalog=late) == ([], 1)


def test_a_database_that_was_not_there_is_created():
    """Where all databases were read, and it was not among them: who has no SELECT may not see all."""
    place = SourcePosition(0, "bin.000001", 100)
    text = "CREATE DATABASE IF NOT EXISTS other"
    session = Session("", 0, Server.parse("11.4.5-MariaDB"), "utf8mb4")
    for entries in ([], [entry("t", 0, "bin.000001", 4, "InnoDB")], whole_reading(4)[:1]):
        (made,) = known(*entries).apply(text, session, place, whole=True)
        assert isinstance(made.state, Unknown)
    (made,) = known(*whole_reading(4)).apply(text, session, place, whole=True)
    assert made.state.charset == "utf8mb4"
    assert known(*whole_reading(4)).apply(text.replace("other", "sys"), session, place, whole=True) == [
        SchemaVersion(
            "sys",
            "",
            *place,
            Unknown(
                "a statement with IF NOT EXISTS may have found another of that name, which was not known"
            ),
        )
    ]
    (made,) = known(*whole_reading(4)).apply(
        "CREATE TABLE IF NOT EXISTS mysql.t (id INT)", session, place, whole=True
    )
    assert isinstance(made.state, TableDefinition)
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
