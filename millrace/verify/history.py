"""What DDL statements did to the rows of a table, which no row event tells.

A table's rows are followed back in the log from what it is now: through other names, under which their
records lie in other topics, and through other names and types of its columns, to where it was created or
emptied. That is cut into eras, between statements that changed any of it.
Statements are those of ``{source}.ddl``; definitions
before and after them are those of the schema history.
"""

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Self

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import ANY_TABLE, RowMapperState
from millrace.binlog.names import folded
from millrace.binlog.statement import classify
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.binlog.types import SqlMode
from millrace.contract import SourcePosition, Topics, log_number
from millrace.ddl import NotUnderstoodError, Server, Session
from millrace.ddl import statements as ddl
from millrace.kafka.client import Message
from millrace.kafka.read import read_topic
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.non_row_changes import NON_ROW_CHANGE
from millrace.runtime.settings import KafkaSettings
from millrace.verify.conversions import converted, keeps_values
from millrace.verify.missing import DeadLetters, DeadLettersByTable, Missing, NonRowChange

_UNLESS: Final = re.compile(r"(?i)\bIF\s+NOT\s+EXISTS\b")
_MOST_CHANGES: Final = 1000
"""Statements that are held for each table."""
Order = tuple[int, int, int]
BEGINNING: Final[Order] = (-1, 0, 0)
END: Final[Order] = (1 << 62, 0, 0)
_TableKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL statement; ``parsed`` is None where it changes no definition, or is not understood."""

    place: SourcePosition
    database: str
    text: str
    session: Session
    parsed: ddl.Ddl | None
    gtid: str | None
    time_ms: int

    @classmethod
    def read(cls, record: Mapping[str, Any], server: Server, *, lower_case_names: bool) -> Self:
        """Read a record of the topic of DDL; it does not say whether the session had ANSI_QUOTES."""
        place = _place_of(record)
        text, parsed = record["statement"], None
        session = Session(record["database"], 0, server, lower_case_names=lower_case_names)
        for each in (session, replace(session, sql_mode=SqlMode.ANSI_QUOTES)):
            try:
                parsed = ddl.parse(text, each)
            except NotUnderstoodError:
                continue
            break
        return cls(place, record["database"], text, session, parsed, record["gtid"], record["ts_ms"])

    def key(self, database: str | None, table: str) -> _TableKey:
        """Return the full name of a table."""
        return self.session.spelled(database or self.database), self.session.spelled(table)

    def named(self, name: ddl.Name) -> _TableKey:
        """Return the full name of a table."""
        return self.key(name.database, name.table)


def _place_of(record: Mapping[str, Any]) -> SourcePosition:
    return SourcePosition(record["epoch"], record["file"], record["pos"])


def tables_changed(record: Mapping[str, Any]) -> list[str]:
    """Return the tables whose rows a statement of the topic of DDL changed without rows in the log.

    ``database.*`` stands for any table of a database. An earlier version did not say.
    """
    changed: list[str] | None = record.get("changed")
    if changed is not None:
        return changed
    if record["kind"] != NON_ROW_CHANGE:
        return []
    return record["objects"] or [f"{record['database']}.{ANY_TABLE}"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a column was in an era.

    ``name`` is None where it was not there yet. ``steps`` are its definitions before and after each statement
    that altered it later, with the statement in words.
    """

    name: str | None
    steps: tuple[tuple[ColumnDefinition, ColumnDefinition, str], ...] = ()

    def value(self, value: Any) -> Any:
        """Return what became of a value of the era."""
        for before, after, reason in self.steps:
            value = converted(before, after, value, reason)
        return value


@dataclass(frozen=True, slots=True)
class Era:
    """The table and columns that had a table's present rows, from a position on."""

    start: Order
    table: _TableKey
    columns: Mapping[str, Origin]
    moved: str | None = None
    """What has moved rows out of the table at the end of the era."""
    brought: bool = False
    """Whether that may have moved rows into it as well."""


@dataclass(slots=True)
class TableHistory:
    """The eras of a table, the oldest first; ``earlier`` are those that ended when it was emptied."""

    eras: list[Era]
    earlier: list[Era] = field(default_factory=list)
    starts: list[Order] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [era.start for era in (*self.earlier, *self.eras)]

    @classmethod
    def without_changes(cls, columns: Sequence[str]) -> Self:
        """Make that of a table to which no statement did anything."""
        return cls([Era(BEGINNING, ("", ""), {name: Origin(name) for name in columns})])

    def era(self, epoch: int, file: str, position: int) -> int:
        """Return the number of the era of a place, a negative one for what was before its rows."""
        return self.era_of((epoch, _number(file), position))

    def era_of(self, order: Order) -> int:
        """Return the number of the era of a position, as :meth:`era` does."""
        return bisect_right(self.starts, order) - 1 - len(self.earlier)

    def era_at(self, number: int) -> Era:
        """Return an era by its number; that before the first has the names of the first."""
        every = [*self.earlier, *self.eras]
        return every[max(number + len(self.earlier), 0)]

    @property
    def from_the_beginning(self) -> bool:
        """Whether the log does not tell where the table was created or emptied."""
        return self.eras[0].start == BEGINNING

    @property
    def moved(self) -> str | None:
        """All statements that have moved rows, in words."""
        return "; ".join(era.moved for era in self.eras if era.moved) or None

    @property
    def brings_rows(self) -> bool:
        """Whether statements may have moved rows into the table."""
        return any(era.brought for era in self.eras)

    def topics(self, topic_of: Callable[[str, str], str], *, before: bool = False) -> dict[str, set[int]]:
        """Return the topics that have its records, in their order, each with the numbers of its eras.

        With ``before`` also the records from before it was created or last emptied.
        """
        found: dict[str, set[int]] = {}
        first, eras = 0, list(self.eras)
        if before:
            eras = [*self.earlier, *eras]
            eras, first = [eras[0], *eras], -1 - len(self.earlier)
        for number, era in enumerate(eras, first):
            found.setdefault(topic_of(*era.table), set()).add(number)
        return found


@cache
def _number(file: str) -> int:
    return log_number(file)[1]


def read_catalog(kafka: KafkaSettings, topics: Topics) -> Catalog:
    """Read the definitions that the server's catalogue gave."""
    catalog = Catalog(kept=None)
    for message in read_topic(kafka, topics.catalog):
        if (value := message.value()) is not None:
            catalog.add(CatalogEntry.from_bytes(value))
    return catalog


def read_schema_history(kafka: KafkaSettings, topics: Topics) -> Catalog:
    """Read the whole schema history: the catalogue, and what statements made of it."""
    catalog = read_catalog(kafka, topics)
    for message in read_topic(kafka, topics.schemas):
        if (value := message.value()) is not None:
            catalog.restore(SchemaVersion.from_bytes(value))
    return catalog


class History:
    """All DDL statements of a source up to a place, what is known of the tables, and what is missing."""

    def __init__(
        self,
        statements: Iterable[Statement],
        catalog: Catalog,
        changes: Mapping[str, Sequence[NonRowChange]] | None = None,
        dead_letters: Mapping[str, Sequence[DeadLetters]] | None = None,
        until: Order = END,
    ) -> None:
        self.until = until
        self.statements = list(statements)
        self.catalog = catalog
        self._changes: defaultdict[str, deque[NonRowChange]] = defaultdict(
            lambda: deque(maxlen=_MOST_CHANGES)
        )
        for table, made in (changes or {}).items():
            self._changes[table].extend(made)
        spelled = catalog.spelled
        self._dead_letters = {spelled(name): found for name, found in (dead_letters or {}).items()}

    @classmethod
    def read(
        cls,
        kafka: KafkaSettings,
        topics: Topics,
        value_of: Callable[[Message], Mapping[str, Any] | None],
        server: Server,
        *,
        until: SourcePosition | None = None,
        state: RowMapperState | None = None,
    ) -> Self:
        """Read the statements before ``until``; ``value_of`` reads a record.

        ``state`` is that of the row mapper; without it no dead letter waits.
        """
        dead_letters = DeadLettersByTable.read(kafka, topics, state).by_table()
        end = END if until is None else until.order()
        history = cls((), read_schema_history(kafka, topics), dead_letters=dead_letters, until=end)
        for message in read_topic(kafka, topics.ddl):
            record = value_of(message)
            if record is None:
                continue
            if _place_of(record).order() < end:
                history.take(record, server)
        return history

    def take(self, record: Mapping[str, Any], server: Server) -> None:
        """Add a record of the topic of DDL."""
        catalog = self.catalog
        for table in tables_changed(record):
            change = NonRowChange(_place_of(record), record["name"], record["gtid"])
            self._changes[catalog.spelled(table)].append(change)
        if record["kind"] == "DDL":
            statement = Statement.read(record, server, lower_case_names=catalog.lower_case_names)
            self.statements.append(statement)

    def waiting(self, since: Order = BEGINNING, until: Order = END) -> dict[_TableKey, Order]:
        """Return the tables whose rows wait in the dead letter topic, by their names then, and where."""
        waiting = [each for found in self._dead_letters.values() for each in found if each.waits]
        found: dict[_TableKey, Order] = {}
        for each in waiting:
            if each.first is None or each.last is None:
                continue
            if each.last.order() > since and each.first.order() <= until:
                database, _, table = each.table.partition(".")
                found.setdefault((database, table), max(each.first.order(), since))
        return found

    def missing(self, eras: "TableHistory", since: Order = BEGINNING, *, before: bool = False) -> Missing:
        """Return what is missing of a table since a position, under each of its names.

        What was before the table was created or emptied counts only with ``before``. Of very many statements
        the last are returned.
        """
        oldest = -1 - len(eras.earlier) if before else 0
        every = [eras.era_at(number) for number in range(oldest, len(eras.eras))]

        def tables(*places: Order) -> set[_TableKey]:
            """Return the names of the table from the first of some positions to the last."""
            first, last = max(places[0], since), min(places[-1], self.until)
            start = max(eras.era_of(first), oldest) - oldest
            return {era.table for era in every[start : eras.era_of(last) - oldest + 1] if first <= last}

        statements: dict[NonRowChange, None] = {}
        dead_letters: dict[int, DeadLetters] = {}
        for table in dict.fromkeys(era.table for era in every):
            for name in (".".join(table), f"{table[0]}.{ANY_TABLE}"):
                for change in self._changes.get(self.catalog.spelled(name), ()):
                    place = change.place.order()
                    if table in tables(place):
                        statements[change] = None
            for name in (".".join(table), ANY_TABLE):
                for each in self._dead_letters.get(self.catalog.spelled(name), ()):
                    places = () if each.first is None or each.last is None else (each.first, each.last)
                    if not places or table in tables(*(place.order() for place in places)):
                        dead_letters[id(each)] = each
        begun = BEGINNING if before else eras.starts[len(eras.earlier)]
        return Missing(
            sorted(dead_letters.values(), key=lambda each: each.first.order() if each.first else END),
            self.catalog.gaps(max(since, begun), self.until),
            sorted(statements, key=lambda change: change.place.order()),
        )

    def definition(self, table: _TableKey, place: SourcePosition) -> TableDefinition | None:
        """Return the definition of a table at a place, None where it is not known."""
        found = self.catalog.find(*table, place)
        definition = None if found is None else found.definition
        return definition if isinstance(definition, TableDefinition) else None

    def of_table(self, database: str, table: str, columns: Sequence[str]) -> TableHistory:
        """Follow a table back to where it was created, noting where it was emptied last."""
        walk = _Walk(self.catalog, (database, table), {name: Origin(name) for name in columns})
        since: int | None = None
        for statement in reversed(self.statements):
            if not walk.step(statement):
                continue
            walk.cut(statement.place.order())
            since = since or len(walk.eras)
            if classify(statement.text).verb != "TRUNCATE":
                break
        else:
            walk.cut(BEGINNING)
            since = since or len(walk.eras)
        return TableHistory(walk.eras[:since][::-1], walk.eras[since:][::-1])


class _Walk:
    """A table on the way back through the log."""

    def __init__(self, catalog: Catalog, table: _TableKey, columns: dict[str, Origin]) -> None:
        self._catalog = catalog
        self._table = table
        self._columns = columns
        self._moved: str | None = None
        self._brought = False
        self.eras: list[Era] = []

    @property
    def here(self) -> tuple[_TableKey, Mapping[str, Origin], str | None, bool]:
        """What an era is from here on."""
        return self._table, self._columns, self._moved, self._brought

    def cut(self, start: Order) -> None:
        """Begin an era at a place; what follows is before it."""
        self.eras.append(Era(start, *self.here))
        self._moved, self._brought = None, False

    def _cut(
        self, statement: Statement, named: _TableKey = ("", ""), work: ddl.Operation | None = None
    ) -> None:
        """Begin an era at a statement; ``work`` is what has moved rows."""
        self.cut(statement.place.order())
        if isinstance(work, ddl.ConvertPartition):
            self._moved, self._brought = "CONVERT PARTITION", True
        elif isinstance(work, ddl.MovePartitions):
            self._moved, self._brought = work.what, work.what in ("EXCHANGE PARTITION", "IMPORT")
        if self._moved:
            self._moved = f"{_words(named)} {self._moved} at {statement.place}"

    def step(self, statement: Statement) -> bool:
        """Go back over a statement; tell whether the table has come to be there, without rows."""
        match statement.parsed:
            case ddl.CreateTable(or_replace=replaces, if_not_exists=unless) as made:
                gone = statement.named(made.table) == self._table and (replaces or not unless)
            case ddl.DropTables(tables=names):
                gone = self._table in map(statement.named, names)
            case ddl.DropDatabase(database=name):
                gone = statement.session.spelled(name) == self._table[0]
            case ddl.RenameTables(pairs=names):
                pairs = [(statement.named(old), statement.named(new)) for old, new in names]
                gone = self._rename(statement, pairs)
            case ddl.AlterTable() as alter:
                gone = self._alter(statement, alter)
            case None:
                gone = self._other(statement)
            case _:
                gone = False
        return gone

    def _rename(self, statement: Statement, pairs: Sequence[tuple[_TableKey, _TableKey]]) -> bool:
        table = self._table
        for old, new in reversed(pairs):
            if table == new:
                table = old
            elif table == old:
                return True
        if table != self._table:
            self._cut(statement)
            self._table = table
        return False

    def _alter(self, statement: Statement, alter: ddl.AlterTable) -> bool:
        named = statement.named(alter.table)
        for each in alter.operations:
            exchanged = each.exchanged if isinstance(each, ddl.MovePartitions) else None
            other = each.table if isinstance(each, ddl.ConvertPartition) else exchanged
            if other is not None and statement.named(other) == self._table:
                self._cut(statement, named, each)
                return False
        after = named if alter.rename is None else statement.named(alter.rename)
        if after != self._table:
            return alter.rename is not None and named == self._table
        moved = [
            each for each in alter.operations if isinstance(each, ddl.MovePartitions | ddl.ConvertPartition)
        ]
        columns = self._columns_before(statement, alter, named, after)
        if moved or named != after or columns != self._columns:
            self._cut(statement, named, moved[0] if moved else None)
            self._table, self._columns = named, columns
        return False

    def _columns_before(
        self, statement: Statement, alter: ddl.AlterTable, named: _TableKey, after: _TableKey
    ) -> dict[str, Origin]:
        """Return what the columns were before an ALTER TABLE."""
        old = self._definitions(named, statement.place, before=True)
        new = self._definitions(after, statement.place, before=False)
        reason = f"{_words(named)} at {statement.place} has converted it"
        earlier: dict[str, str | None] = {}
        for each in alter.operations:
            if isinstance(each, ddl.RenameColumn):
                earlier[folded(each.new)] = each.old
            elif isinstance(each, ddl.ChangeColumn):
                earlier[folded(each.column.name)] = each.old
            elif isinstance(each, ddl.AddColumn):
                name = folded(each.column.name)
                if not (each.if_not_exists and name in old):
                    earlier[name] = None
        columns = {}
        for final, origin in self._columns.items():
            if origin.name is None:
                columns[final] = origin
                continue
            name = origin.name
            previous = earlier.get(folded(name), name)
            if previous is None:
                columns[final] = Origin(None, origin.steps)
                continue
            was, became = old.get(folded(previous)), new.get(folded(name))
            steps = origin.steps
            if was is not None and became is not None and not keeps_values(was, became):
                steps = ((was, became, reason), *steps)
            columns[final] = Origin(previous if was is None else was.name, steps)
        return columns

    def _definitions(
        self, key: _TableKey, place: SourcePosition, *, before: bool
    ) -> dict[str, ColumnDefinition]:
        found = self._catalog.find(*key, place, before=before)
        if found is None or not isinstance(found.definition, TableDefinition):
            return {}
        return {folded(column.name): column for column in found.definition.columns}

    def _other(self, statement: Statement) -> bool:
        """Go back over TRUNCATE, and over what is not understood, as far as it can be told what it is."""
        found = classify(statement.text)
        if found.temporary:
            return False
        if found.verb in ("TRUNCATE", "DROP", "CREATE") and found.object_type in (None, "TABLE"):
            names = {statement.key(name.database, name.table) for name in found.tables}
            return self._table in names and _UNLESS.search(statement.text) is None
        if found.renames:
            pairs = [
                (statement.key(old.database, old.table), statement.key(new.database, new.table))
                for old, new in found.renames
            ]
            return self._rename(statement, pairs)
        return False


def _words(table: _TableKey) -> str:
    return f"ALTER TABLE {'.'.join(table)}"
