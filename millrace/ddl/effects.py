"""What a DDL statement does to the definitions of tables.

The order in which ALTER TABLE works, the names that servers give to indexes, and what happens to keys when
columns go are those of ``mysql_prepare_alter_table`` and ``mysql_prepare_create_table``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Protocol

from millrace.binlog.names import folded
from millrace.binlog.statement import classify
from millrace.binlog.table import ColumnDefinition, IndexDefinition, TableDefinition, kept_default
from millrace.ddl import statements as ddl
from millrace.ddl.columns import (
    charset_named,
    charset_of,
    column_definition,
    converted,
    has_charset,
    key_bytes,
    key_characters,
    key_prefix,
    names_charset,
)
from millrace.ddl.statements import ColumnSpec, IndexSpec, Name, TableOptions
from millrace.ddl.tokens import NotUnderstoodError, Session


@dataclass(frozen=True, slots=True)
class Unknown:
    """A table whose definition is unknown, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The table does not exist: it was dropped or renamed."""


MISSING: Final = Missing()

State = TableDefinition | Unknown | Missing
"""What is known of a table as of some position; of a database, that of a table with an empty name."""

TableKey = tuple[str, str]

UNNAMED: Final[TableKey] = "", "*"
"""What stands for all tables that a statement may have made and that its text does not tell."""

_WRITTEN_BY_SERVERS: Final = re.compile(r"CREATE (OR REPLACE )?TABLE [^\n]*\(\n  [`\"]")

_OF_INFORMATION_SCHEMA: Final = frozenset({"memory", "aria"})

_WITH_TABLES: Final = frozenset({"TABLE", "SEQUENCE", "DATABASE"})


class Known(Protocol):
    """The definitions before a statement."""

    def state(self, database: str, table: str) -> State | None:
        """Return what is known of a table; None where it was never heard of and may be there."""

    def later(self, database: str, table: str) -> State | None:
        """Return what is known only later of a table that was never heard of; None where nothing is."""

    def was_read(self, database: str, table: str) -> bool:
        """Return whether what is known of a table was read after the last statement that changed it."""

    def last(self, database: str, table: str) -> TableDefinition | None:
        """Return the last definition that a table of this name had, though it may be gone or unknown now."""

    def tables(self, database: str) -> Iterable[str]:
        """Return the tables of a database that are not missing."""


def apply(text: str, session: Session, known: Known, *, whole: bool = True) -> dict[TableKey, State]:
    """Return the new states of what a statement changes, and of what it may change and is not understood.

    A table that was never heard of, and that the statement does not create, stays so; one that it may have
    created or found is unknown, and :data:`UNNAMED` where it may have made others. Without ``whole`` the text
    is the beginning of a statement, or not all of it could be read.
    """
    if not whole:
        reason = "its text is too long, or not in its character set"
        return _unknown(text, session, known, reason, told=False)
    if session.failed and classify(text).verb != "DROP":
        return _unknown(text, session, known, "it ended with an error", told=True)
    work = _Work(session, known)
    statement = None
    try:
        statement = ddl.parse(text, session)
        _check_charset_is_told(text, statement, session)
        if statement is not None:
            _APPLY[type(statement)](work, statement)
    except NotUnderstoodError as error:
        return _unknown(text, session, known, str(error), told=_tells_all(text, statement))
    return work.changes


def _check_charset_is_told(text: str, statement: ddl.Ddl | None, session: Session) -> None:
    """Raise NotUnderstoodError for what a server logs of CREATE TABLE LIKE a temporary table.

    Tables of information_schema are such tables, of engines that few others have.
    """
    if not isinstance(statement, ddl.CreateTable) or statement.options.names_charset:
        return
    likely = session.uses_temporary or (statement.options.engine or "").lower() in _OF_INFORMATION_SCHEMA
    if likely and _WRITTEN_BY_SERVERS.match(text) is not None:
        raise NotUnderstoodError("its character set is that of a temporary table, which the log leaves out")


def altered(text: str, session: Session, *, whole: bool = True) -> set[TableKey]:
    """Return the tables that were there before a statement and whose definition may have been another then.

    A pair with an empty name stands for all tables of a database. Indexes, defaults, options of tables and
    partitions are no part of what rows are read by.
    """
    try:
        statement = ddl.parse(text, session) if whole else None
    except NotUnderstoodError:
        whole, statement = False, None
    if not whole:
        return set() if classify(text).temporary else _named(text, session)
    names: Iterable[Name] = ()
    match statement:
        case ddl.AlterTable(table=table, operations=operations, rename=rename):
            made = [one.table for one in operations if isinstance(one, ddl.ConvertPartition)]
            if rename is not None or any(map(_alters, operations)):
                names = (table, *made, *(() if rename is None else (rename,)))
        case ddl.RenameTables(pairs=pairs):
            names = chain.from_iterable(pairs)
        case ddl.DropTables(tables=tables):
            names = tables
        case ddl.CreateTable(table=table, or_replace=True) | ddl.CreateSequence(table=table, or_replace=True):
            names = (table,)
        case ddl.DropDatabase(database=database) | ddl.CreateDatabase(database=database, or_replace=True):
            names = (Name(database, ""),)
    return {_key(name, session) for name in names}


def _alters(operation: ddl.Operation) -> bool:
    if isinstance(operation, ddl.AddIndex):
        return operation.index.kind == "PRIMARY"
    if isinstance(operation, ddl.DropIndex):
        return operation.name.upper() == "PRIMARY"
    return not isinstance(operation, ddl.RenameIndex | ddl.SetDefault | ddl.SetOptions | ddl.MovePartitions)


def _named(text: str, session: Session) -> set[TableKey]:
    """Return what a statement names that is not understood."""
    return {_key(Name(name.database or "", name.table), session) for name in classify(text).tables}


def _key(name: Name, session: Session) -> TableKey:
    return session.spelled(name.database or session.database), session.spelled(name.table)


def _tells_all(text: str, statement: ddl.Ddl | None) -> bool:
    """Return whether :func:`classify` finds each table that a statement may have made; None is not parsed."""
    if isinstance(statement, ddl.AlterTable):
        return not any(isinstance(one, ddl.ConvertPartition) for one in statement.operations)
    found = classify(text)
    return statement is not None or (found.verb == "CREATE" and bool(found.tables or found.database))


def _unknown(text: str, session: Session, known: Known, reason: str, *, told: bool) -> dict[TableKey, State]:
    """Return the states after a statement that is not understood: what it names is not known any more.

    Unless all tables are ``told`` that it may have made, :data:`UNNAMED` is not, either.
    """
    statement = classify(text)
    if statement.temporary:
        return {}
    state = Unknown(f"a statement is not understood: {reason}")
    creates = statement.verb == "CREATE" or statement.renames
    changes: dict[TableKey, State] = {}
    for name in statement.tables:
        key = session.spelled(name.database or session.database), session.spelled(name.table)
        if creates or known.state(*key) is not None:
            changes[key] = state
    if statement.database is not None and statement.verb in ("CREATE", "ALTER"):
        changes[session.spelled(statement.database), ""] = state
    if statement.verb != "DROP" and statement.object_type in _WITH_TABLES and not told:
        changes[UNNAMED] = state
    return changes


class _Work:
    """The states while one statement is applied."""

    def __init__(self, session: Session, known: Known) -> None:
        self.session = session
        self.changes: dict[TableKey, State] = {}
        self._known = known

    def key(self, name: Name) -> TableKey:
        """Return the full name of a table."""
        return _key(name, self.session)

    def database(self, name: str) -> TableKey:
        """Return what a database is known by; an empty name is that of the session's."""
        return self.session.spelled(name or self.session.database), ""

    def state(self, key: TableKey) -> State | None:
        """Return what is known of a table by now."""
        return self.changes[key] if key in self.changes else self._known.state(*key)

    def was_read(self, key: TableKey) -> bool:
        """Return whether the catalogue has shown a table as it is known."""
        return key not in self.changes and self._known.was_read(*key)

    def put(self, key: TableKey, definition: TableDefinition, *, moved: bool = False) -> None:
        """Take note of a table that has come, by a RENAME or as a copy where it was ``moved``."""
        definition = replace(definition, database=key[0], table=key[1])
        last = self._known.last(*key)
        if last is not None:
            definition = definition.moved_over(last) if moved else definition.replacing(last)
        self.changes[key] = definition

    def exists(self, key: TableKey) -> bool:
        """Return whether a table is there, as far as is known."""
        state = self.state(key)
        return state is not None and state is not MISSING

    def creates(
        self, key: TableKey, statement: ddl.CreateTable | ddl.CreateSequence | ddl.CreateDatabase
    ) -> bool:
        """Return whether a statement makes what it names; note that it is not known where that is uncertain.

        Servers log a statement with IF NOT EXISTS also where it has created nothing. Where the log tells that
        it has, that counts, whatever is known.
        """
        if not statement.if_not_exists or statement.or_replace or self.session.has_created:
            return True
        state = self.state(key)
        if state is None:
            state = self._known.later(*key)
        if state is None and not (key[1] and self.session.server.logs_created_tables_only):
            state = self.changes[key] = Unknown(
                "a statement with IF NOT EXISTS may have found another of that name, which was not known"
            )
        return state is None or state is MISSING

    def tables(self, database: str) -> list[str]:
        """Return the tables of a database."""
        return list(self._known.tables(database))

    def database_charset(self, database: str) -> str | None:
        """Return the default character set of a database; None where it is not known."""
        state = self.state((database, ""))
        return state.charset if isinstance(state, TableDefinition) else None

    def charset(self, options: TableOptions, default: str | None) -> str | None:
        """Return the character set that options name, else ``default``."""
        if options.charset is not None and options.charset != "default":
            return charset_named(options.charset)
        return charset_of(options.collation) or default


# -- whole tables ---------------------------------------------------------------------------------------


def _create_table(work: _Work, statement: ddl.CreateTable) -> None:
    key = work.key(statement.table)
    if not work.creates(key, statement):
        return
    if statement.like is not None:
        source = work.state(work.key(statement.like))
        if work.session.uses_temporary:
            work.changes[key] = Unknown("it was created LIKE a table that may be a temporary one")
        elif isinstance(source, TableDefinition):
            work.put(key, source, moved=True)
        else:
            work.changes[key] = Unknown("it was created LIKE a table whose definition is unknown")
        return
    options = statement.options
    charset = work.charset(options, work.database_charset(key[0]))
    table = _Table(TableDefinition(*key, (), options.engine, charset, options.collation), work.session)
    for spec in statement.columns:
        table.insert(spec, None)
    for period in statement.periods:
        table.add_period(period)
    for spec in statement.columns:
        table.keys_of(spec)
    for index in statement.indexes:
        table.add_index(index)
    if options.versioning or any(spec.versioned for spec in statement.columns):
        table.version(add=True)
    table.end_key()
    work.put(key, table.definition())


_SEQUENCE: Final = (
    *(("bigint(21)", name) for name in ("next_not_cached_value", "minimum_value", "maximum_value")),
    ("bigint(21)", "start_value"),
    ("bigint(21)", "increment"),
    ("bigint(21) unsigned", "cache_size"),
    ("tinyint(1) unsigned", "cycle_option"),
    ("bigint(21)", "cycle_count"),
)


def _create_sequence(work: _Work, statement: ddl.CreateSequence) -> None:
    key = work.key(statement.table)
    if not work.creates(key, statement):
        return
    columns = [
        ColumnDefinition(ordinal, name, column_type, nullable=False, unsigned="unsigned" in column_type)
        for ordinal, (column_type, name) in enumerate(_SEQUENCE)
    ]
    work.put(key, TableDefinition(*key, tuple(columns), None, work.database_charset(key[0])))


def _drop_tables(work: _Work, statement: ddl.DropTables) -> None:
    for name in statement.tables:
        key = work.key(name)
        if work.exists(key):
            work.changes[key] = MISSING


def _drop_views(work: _Work, statement: ddl.DropViews) -> None:
    """Take back what IF NOT EXISTS seemed to have created where there was a view, which may be gone now."""
    for name in statement.views:
        key = work.key(name)
        if isinstance(work.state(key), TableDefinition) and not work.was_read(key):
            work.changes[key] = Unknown("a statement has dropped a view of its name")


def _rename_tables(work: _Work, statement: ddl.RenameTables) -> None:
    for old, new in statement.pairs:
        _rename(work, work.key(old), work.key(new), if_exists=statement.if_exists)


def _rename(work: _Work, old: TableKey, new: TableKey, *, if_exists: bool) -> None:
    state = work.state(old)
    if state is MISSING and if_exists:
        return
    if state is None or state is MISSING:
        if work.state(new) is not None:
            work.changes[new] = Unknown("it got its name from a table whose definition is unknown")
        return
    work.changes[old] = MISSING
    if isinstance(state, TableDefinition):
        work.put(new, state, moved=True)
    else:
        work.changes[new] = state


def _create_database(work: _Work, statement: ddl.CreateDatabase) -> None:
    key = work.database(statement.database)
    if not work.creates(key, statement):
        return
    if statement.or_replace:
        _drop_database(work, ddl.DropDatabase(statement.database))
    charset = work.charset(statement.options, work.session.server_charset)
    work.changes[key] = TableDefinition(*key, (), None, charset, statement.options.collation)


def _alter_database(work: _Work, statement: ddl.AlterDatabase) -> None:
    if statement.options.names_charset:
        key = work.database(statement.database)
        default = None if statement.options.charset != "default" else work.session.server_charset
        charset = work.charset(statement.options, default)
        work.changes[key] = TableDefinition(*key, (), None, charset, statement.options.collation)


def _drop_database(work: _Work, statement: ddl.DropDatabase) -> None:
    key = work.database(statement.database)
    for table in work.tables(key[0]):
        work.changes[key[0], table] = MISSING
    if work.exists(key):
        work.changes[key] = MISSING


# -- ALTER TABLE ----------------------------------------------------------------------------------------


def _alter_table(work: _Work, statement: ddl.AlterTable) -> None:
    key = work.key(statement.table)
    state = work.state(key)
    if isinstance(state, TableDefinition):
        table = _Table(state, work.session)
        table.alter(statement, work.database_charset(key[0]))
        after = table.definition()
        if after.to_dict() != state.to_dict():
            work.changes[key] = after
        for each in statement.operations:
            if isinstance(each, ddl.ConvertPartition):
                _convert_partition(work, each, after)
    elif isinstance(state, Unknown):
        if any(map(_alters, statement.operations)):
            # It is not known again, but not what it was: what is read later may be of before, or of after.
            work.changes[key] = state
        for each in statement.operations:
            if isinstance(each, ddl.ConvertPartition) and each.creates:
                work.changes[work.key(each.table)] = state
    elif state is MISSING and not statement.if_exists:
        work.changes[key] = Unknown("a statement has altered it, and nothing is known to have created it")
    if statement.rename is not None:
        _rename(work, key, work.key(statement.rename), if_exists=statement.if_exists)


def _convert_partition(work: _Work, each: ddl.ConvertPartition, table: TableDefinition) -> None:
    key = work.key(each.table)
    if each.creates:
        work.put(key, table, moved=True)
    else:
        work.changes[key] = MISSING


class _Table:
    """A table while it is altered; names of columns and indexes differ by more than case."""

    def __init__(self, definition: TableDefinition, session: Session) -> None:
        self._was = definition
        self._session = session
        self._charset = definition.charset
        self._collation = definition.collation
        self._engine = definition.engine
        self._taken = frozenset(definition.names)
        self._converts_to: tuple[str, str | None] | None = None
        """Character set and collation to which a statement converts all columns, also those that it adds."""
        self._others: set[str] = set()
        """Names that columns get by the statement, and that another column had before it."""
        self._columns = list(definition.columns)
        self._indexes = list(definition.indexes)
        parts = sorted(
            (column.key_position, column.name, column.key_prefix)
            for column in definition.columns
            if column.key_position is not None
        )
        self._key = [(name, prefix) for _, name, prefix in parts]
        self._periods: dict[str, ddl.Period] = {}
        """Those that the statement defines."""
        self.implicit_period = _has_implicit_period(definition, session)
        if self.implicit_period:
            del self._columns[-2:]
            self._key = [part for part in self._key if part[0] != _PERIOD[1]]
        last = self._key[-1][0] if self._key else None
        self._row_end = last if last is not None and self._is_row_period(last) else None
        """The column that ends the period of a row, where the table names it and it is known."""

    # -- columns

    def _find(self, name: str) -> int | None:
        wanted = folded(name)
        return next((at for at, each in enumerate(self._columns) if folded(each.name) == wanted), None)

    def _at(self, name: str) -> int:
        at = self._find(name)
        if at is None:
            raise NotUnderstoodError(f"the table has no column {name} according to its known definition")
        return at

    def _define(self, spec: ColumnSpec) -> ColumnDefinition:
        if self._converts_to is not None and names_charset(spec, self._session.server):
            charset, collation = self._converts_to
            text = "longtext" if spec.type == "json" else spec.type
            spec = replace(spec, type=text, charset=charset, collation=collation)
        default = self._charset if self._converts_to is None else self._converts_to[0]
        return column_definition(spec, default, self._session)

    def insert(self, spec: ColumnSpec, after: str | None) -> None:
        """Add a column, without the keys that it declares."""
        if self._find(spec.name) is not None:
            raise NotUnderstoodError(f"the table has a column {spec.name} according to its known definition")
        self._place(self._define(spec), after)
        if spec.name in self._taken:
            self._others.add(spec.name)
        if spec.row_period == "END":
            self._row_end = spec.name

    def _place(self, column: ColumnDefinition, after: str | None) -> None:
        if after is None:
            self._columns.append(column)
        else:
            self._columns.insert(self._at(after) + 1 if after else 0, column)

    def keys_of(self, spec: ColumnSpec) -> None:
        if spec.primary:
            self._key = [(spec.name, 0)]
        unique = spec.unique or spec.type == "serial"
        if unique and not (spec.primary and self._session.server.mariadb):
            self.add_index(IndexSpec("UNIQUE", None, ((spec.name, 0),)))

    def alter(self, statement: ddl.AlterTable, database_charset: str | None) -> None:
        """Alter the table in the order of servers: drops and changes, then columns that come or move."""
        operations = statement.operations
        generated_key = self._generated_key()
        if statement.alters_more or any(map(self._applies, operations)):
            self._indexes = [replace(index, hashed=False) for index in self._indexes]
        for each in operations:
            if isinstance(each, ddl.DropIndex):
                self._drop_index(each)
        self._drop_columns(operations)
        self._set_defaults(operations, database_charset)
        changes = self._changes(operations)
        changed = {id(each) for _, each in changes}
        self._change_columns(changes)
        for each in operations:
            if isinstance(each, ddl.AddColumn):
                if each.if_not_exists and self._find(each.column.name) is not None:
                    continue
                self.insert(each.column, each.after)
                changed.add(id(each))
            elif isinstance(each, ddl.ChangeColumn) and each.after is not None and id(each) in changed:
                self._place(self._columns.pop(self._at(each.column.name)), each.after)
            elif isinstance(each, ddl.SetHidden):
                at = self._at(each.column)
                self._columns[at] = replace(self._columns[at], hidden=each.hidden)
            elif isinstance(each, ddl.SetDefault) and (found := self._find(each.column)) is not None:
                column = self._columns[found]
                told = not ddl.is_bits(each.default) or column.column_type.startswith("bit")
                self._columns[found] = replace(column, default=kept_default(each.default) if told else None)
        for each in operations:
            if isinstance(each, ddl.AddPeriod):
                self.add_period(each.period)
        self._alter_indexes(operations, changed)
        self.end_key()
        if generated_key is not None:
            self._put_first(generated_key, operations)

    def _applies(self, operation: ddl.Operation) -> bool:
        """Return whether an operation is done: some are not where a column is there, or is not."""
        match operation:
            case ddl.AddColumn(column=column, if_not_exists=True):
                return self._find(column.name) is None
            case ddl.DropColumn(name=name, if_exists=True):
                return self._find(name) is not None
        return True

    def _alter_indexes(self, operations: Sequence[ddl.Operation], changed: set[int]) -> None:
        """Add and rename indexes in the order of the statement; ``changed`` columns declare some."""
        for each in operations:
            if isinstance(each, ddl.AddColumn | ddl.ChangeColumn) and id(each) in changed:
                self.keys_of(each.column)
            if isinstance(each, ddl.AddIndex):
                self.add_index(each.index)
            elif isinstance(each, ddl.RenameIndex):
                self._rename_index(each)
            elif isinstance(each, ddl.AddVersioning):
                self.version(add=each.add)

    def _put_first(self, name: str, operations: Sequence[ddl.Operation]) -> None:
        """Move a column back to the first place, unless it was dropped, and is another one now."""
        dropped = [folded(each.name) for each in operations if isinstance(each, ddl.DropColumn)]
        if name not in dropped:
            self._columns.insert(0, self._columns.pop(self._at(name)))

    def _generated_key(self) -> str | None:
        """Name the key that MySQL has added (sql_generate_invisible_primary_key), which stays first."""
        server, first = self._session.server, self._columns[0] if self._columns else None
        if server.mariadb or server.version < (8, 0, 30) or first is None or not first.hidden:
            return None
        name = folded(first.name)
        is_key = [folded(part) for part, _ in self._key] == [name]
        return name if is_key and name == _GENERATED_KEY else None

    def _set_defaults(self, operations: Sequence[ddl.Operation], database_charset: str | None) -> None:
        """Take the table's options, which hold for all columns of the statement; convert those there are."""
        # MariaDB converts the columns to one character set, and may have another as the table's default.
        for each in sorted(operations, key=lambda each: not isinstance(each, ddl.ConvertTo)):
            if isinstance(each, ddl.SetOptions):
                self._engine = each.options.engine or self._engine
                if each.options.names_charset:
                    self._set_charset(each.options.charset, each.options.collation, database_charset)
            elif isinstance(each, ddl.ConvertTo):
                self._set_charset(each.charset or "default", each.collation, database_charset)
                if self._charset is None:
                    raise NotUnderstoodError("it converts to an unknown default character set")
                self._converts_to = self._charset, each.collation
                self._columns = [
                    converted(column, self._charset, each.collation, self._session.server)
                    if has_charset(column)
                    else column
                    for column in self._columns
                ]

    def _set_charset(self, charset: str | None, collation: str | None, database_charset: str | None) -> None:
        if charset == "default":
            self._charset = charset_of(collation) or database_charset
        elif charset is not None:
            self._charset = charset_named(charset)
        else:
            self._charset = charset_of(collation) or self._charset
        self._collation = collation

    def _drop_columns(self, operations: Sequence[ddl.Operation]) -> None:
        """Drop columns; the keys of one that is added again, under the same name, stay."""
        added = {
            folded(each.column.name): each.column.name
            for each in operations
            if isinstance(each, ddl.AddColumn)
        }
        for each in operations:
            if isinstance(each, ddl.DropColumn):
                if each.if_exists and self._find(each.name) is None:
                    continue
                column = self._columns.pop(self._at(each.name))
                if folded(each.name) not in added:
                    self._forget(each.name)
                else:
                    self._keep_in_keys(column, added[folded(each.name)])

    def _keep_in_keys(self, column: ColumnDefinition, added: str) -> None:
        """Let keys have of the column that is added in its place as much as they had of the one that goes."""
        name = folded(column.name)

        def kept(parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
            return [
                (added, (key_characters(column, prefix, self._session.server) or 0))
                if folded(part) == name
                else (part, prefix)
                for part, prefix in parts
            ]

        self._key = kept(self._key)
        self._indexes = [replace(index, parts=tuple(kept(index.parts))) for index in self._indexes]

    def _changes(self, operations: Sequence[ddl.Operation]) -> list[tuple[int, ddl.Operation]]:
        """Find the columns that are changed, by the names that they have before the statement."""
        found: list[tuple[int, ddl.Operation]] = []
        for each in operations:
            if isinstance(each, ddl.ChangeColumn | ddl.RenameColumn):
                if each.if_exists and self._find(each.old) is None:
                    continue
                found.append((id(self._columns[self._at(each.old)]), each))
        return found

    def _change_columns(self, changes: Sequence[tuple[int, ddl.Operation]]) -> None:
        """Change columns in place; those that move may be named as a place until then."""
        renames: dict[str, str] = {}
        whole: set[str] = set()
        columns: list[ColumnDefinition] = []
        by_column = dict(changes)
        for column in self._columns:
            change = by_column.get(id(column))
            if isinstance(change, ddl.RenameColumn):
                renames[folded(column.name)] = change.new
                columns.append(self._renamed(replace(column, name=change.new), column))
            elif isinstance(change, ddl.ChangeColumn):
                self._check_converted_text(change.column)
                if change.column.name != column.name:
                    renames[folded(column.name)] = change.column.name
                columns.append(self._renamed(self._define(change.column), column))
                shortest = key_characters(columns[-1], 0, self._session.server)
                for name, prefix in chain(self._key, *(index.parts for index in self._indexes)):
                    if folded(name) == folded(column.name) and shortest is not None and shortest < prefix:
                        whole.add(folded(name))
            else:
                columns.append(column)
        self._columns = columns

        def renamed(parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
            return [
                (renames.get(folded(name), name), 0 if folded(name) in whole else prefix)
                for name, prefix in parts
            ]

        self._key = renamed(self._key)
        self._indexes = [replace(index, parts=tuple(renamed(index.parts))) for index in self._indexes]

    def _check_converted_text(self, spec: ColumnSpec) -> None:
        unsized = spec.type in _UNSIZED and not spec.arguments
        if self._converts_to is not None and unsized and not self._session.server.mariadb:
            # MySQL 9.7 lets it have the size that it had.
            raise NotUnderstoodError(f"column {spec.name} becomes {spec.type} as its table is converted")

    def _renamed(self, column: ColumnDefinition, was: ColumnDefinition) -> ColumnDefinition:
        """Return a column with its former names: none where it has got the name of another."""
        if column.name in self._taken and column.name not in was.names:
            self._others.add(column.name)
            return replace(column, former=())
        return column.renamed(was, self._was.gone)

    # -- indexes

    def add_index(self, spec: IndexSpec) -> None:
        """Add an index, under the name that it is given or that servers give it."""
        parts = tuple((self._spelled(name), prefix) for name, prefix in spec.parts)
        if spec.without_overlaps is not None:
            period = self._periods.get(folded(spec.without_overlaps))
            if period is None:
                raise NotUnderstoodError(f"the columns of the period {spec.without_overlaps} are not known")
            parts += (self._spelled(period.end), 0), (self._spelled(period.start), 0)
        if spec.kind == "PRIMARY":
            if not (spec.if_not_exists and self._key):
                self._key = list(parts)
            return
        names = {folded(index.name) for index in self._indexes}
        if spec.name is not None and folded(spec.name) in names and spec.if_not_exists:
            return
        if spec.kind == "FOREIGN" and self._is_covered([name for name, _ in parts]):
            return
        name = spec.name or _free_name(parts[0][0] or "functional_index", names)
        self._indexes.append(IndexDefinition(name, spec.kind == "UNIQUE", parts, spec.hashed))

    def _spelled(self, name: str) -> str:
        return self._columns[self._at(name)].name if name else ""

    def _is_covered(self, names: list[str]) -> bool:
        """Return whether an index begins with these columns."""
        count = len(names)
        every = [
            [name for name, _ in self._key],
            *([name for name, _ in each.parts] for each in self._indexes),
        ]
        return any(columns[:count] == names for columns in every)

    def _drop_index(self, drop: ddl.DropIndex) -> None:
        if folded(drop.name) == "primary":
            self._key = []
            return
        left = [index for index in self._indexes if folded(index.name) != folded(drop.name)]
        if len(left) == len(self._indexes) and not drop.constraint and not drop.if_exists:
            raise NotUnderstoodError(f"the table has no index {drop.name} according to its known definition")
        self._indexes = left

    def _rename_index(self, rename: ddl.RenameIndex) -> None:
        self._indexes = [
            replace(index, name=rename.new) if folded(index.name) == folded(rename.old) else index
            for index in self._indexes
        ]

    def _forget(self, column: str) -> None:
        """Take a column out of all keys; an index without columns goes."""
        gone = folded(column)

        def without(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
            return tuple(part for part in parts if folded(part[0]) != gone)

        self._key = list(without(self._key))
        indexes = [replace(index, parts=without(index.parts)) for index in self._indexes]
        self._indexes = [index for index in indexes if index.parts]

    def _parts(
        self, parts: Iterable[tuple[str, int]], columns: Mapping[str, ColumnDefinition]
    ) -> Iterator[tuple[str, int]]:
        """Yield the parts of a key with the prefixes that its columns can have."""
        for name, prefix in parts:
            column = columns.get(folded(name))
            yield name, 0 if column is None else key_prefix(column, prefix, self._session.server)

    def _is_hashed(self, index: IndexDefinition, columns: Mapping[str, ColumnDefinition]) -> bool:
        """Return whether MariaDB keeps a unique key as a hash: where it is longer than its engine takes."""
        server, engine = self._session.server, (self._engine or "").lower()
        if not (index.unique and server.mariadb and server.version >= _HASHES) or engine in _IN_MEMORY:
            return False
        parts = [(columns[folded(name)], prefix) for name, prefix in index.parts]
        sizes = [key_bytes(column, prefix, server) for column, prefix in parts]
        known = [size for size in sizes if size is not None]
        too_long = len(known) < len(sizes) or sum(known) > _LONGEST_KEYS.get(engine, _LONGEST_KEY)
        return index.hashed or too_long

    # -- the period of a system-versioned table

    def _is_row_period(self, name: str) -> bool:
        """Return whether a column is of a period that the table names: no other generated one is NOT NULL."""
        column = self._columns[self._at(name)]
        return self._session.server.mariadb and column.generated == "STORED" and not column.nullable

    def version(self, *, add: bool) -> None:
        """Begin or end system versioning: unless the table names the columns of its period, it gets two."""
        if not add:
            self.implicit_period = False
        elif not self._has_row_period:
            self.implicit_period = True

    def end_key(self) -> None:
        """Let the key end with the column in which the period of a row ends, where the table names that."""
        if not self._key or not self._has_row_period:
            return
        if self._row_end is None:
            raise NotUnderstoodError("which column is ROW END, and so the last of the key, is not known")
        if self._row_end not in (name for name, _ in self._key):
            self._key.append((self._row_end, 0))

    @property
    def _has_row_period(self) -> bool:
        return any(self._is_row_period(column.name) for column in self._columns)

    def add_period(self, period: ddl.Period) -> None:
        """Add a period of an application's time, whose columns become NOT NULL."""
        self._periods[folded(period.name)] = period
        for name in (period.start, period.end):
            at = self._at(name)
            self._columns[at] = replace(self._columns[at], nullable=False)

    # -- the whole

    def definition(self) -> TableDefinition:
        """Return the table as it is now."""
        columns, key = self._columns, self._key
        if self.implicit_period:
            columns = columns + [
                ColumnDefinition(0, name, "timestamp(6)", nullable=False, generated="STORED", hidden=True)
                for name in _PERIOD
            ]
            key = [*key, (_PERIOD[1], 0)] if key else key
        by_name = {folded(column.name): column for column in columns}
        positions = {
            folded(name): (at, prefix) for at, (name, prefix) in enumerate(self._parts(key, by_name))
        }
        indexes = [replace(index, parts=tuple(self._parts(index.parts, by_name))) for index in self._indexes]
        indexes = [replace(index, hashed=self._is_hashed(index, by_name)) for index in indexes]
        return TableDefinition(
            self._was.database,
            self._was.table,
            tuple(_numbered(at, column, positions) for at, column in enumerate(columns)),
            self._engine,
            self._charset,
            self._collation,
            tuple(sorted(indexes, key=_index_name)),
        ).after(self._was, self._others)


_UNSIZED: Final = frozenset(("tinytext", "text", "mediumtext"))
_HASHES: Final = (10, 4)
"""The MariaDB since which unique keys may be hashed."""
_IN_MEMORY: Final = frozenset(("memory", "heap"))
_LONGEST_KEY: Final = 3072
"""Bytes of a key of InnoDB."""
_LONGEST_KEYS: Final = {"myisam": 1000, "aria": 2300}

_PERIOD: Final = ("row_start", "row_end")
_GENERATED_KEY: Final = "my_row_id"


def _index_name(index: IndexDefinition) -> str:
    return index.name


def _has_implicit_period(definition: TableDefinition, session: Session) -> bool:
    """Return whether the last two columns are those that MariaDB adds to a system-versioned table."""
    last = definition.columns[-2:]
    return (
        session.server.mariadb
        and tuple(column.name for column in last) == _PERIOD
        and all(column.hidden and column.generated for column in last)
    )


def _numbered(at: int, column: ColumnDefinition, positions: dict[str, tuple[int, int]]) -> ColumnDefinition:
    position, prefix = positions.get(folded(column.name), (None, 0))
    nullable = column.nullable and position is None
    return replace(column, ordinal=at, key_position=position, key_prefix=prefix, nullable=nullable)


def _free_name(base: str, taken: set[str]) -> str:
    """Return an index the name of its first column, numbered from 2 where another has that."""
    name, number = base, 1
    while folded(name) in taken or folded(name) == "primary":
        number += 1
        name = f"{base}_{number}"
    return name


_APPLY: Final[dict[type, Callable[[_Work, Any], None]]] = {
    ddl.CreateTable: _create_table,
    ddl.CreateSequence: _create_sequence,
    ddl.AlterTable: _alter_table,
    ddl.RenameTables: _rename_tables,
    ddl.DropTables: _drop_tables,
    ddl.DropViews: _drop_views,
    ddl.CreateDatabase: _create_database,
    ddl.AlterDatabase: _alter_database,
    ddl.DropDatabase: _drop_database,
}
