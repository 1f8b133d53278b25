"""What DDL statements say about tables, as far as a definition depends on it.

The grammar is a subset of both servers' manuals: options that change no definition are skipped,
and anything unexpected raises NotUnderstoodError. Nothing here knows a table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from millrace.binlog.values import value
from millrace.ddl.tokens import NotUnderstoodError, Session, Tokens, tokenize


class Name(NamedTuple):
    """A table; ``database`` is empty where the statement leaves it to the session."""

    database: str
    table: str


@dataclass(slots=True)
class ColumnSpec:
    """A column as a statement defines it; None for what it does not say."""

    name: str
    type: str = ""
    arguments: tuple[int, ...] = ()
    members: tuple[str | bytes, ...] | None = None
    """Bytes are in the character set of the column."""
    unsigned: bool = False
    zerofill: bool = False
    compressed: bool = False
    charset: str | None = None
    collation: str | None = None
    nullable: bool | None = None
    generated: Literal["VIRTUAL", "STORED"] | None = None
    hidden: bool = False
    primary: bool = False
    unique: bool = False
    row_period: Literal["START", "END"] | None = None
    versioned: bool = False
    default: str | None = None
    """A literal; of one without DEFAULT, and of DEFAULT NULL, None."""
    computed: bool = False
    """Whether each row gets a value of its own, or one that depends on the session."""


@value
class IndexSpec:
    """An index; in ``parts`` an expression is an empty name. ``kind``: PRIMARY, UNIQUE, INDEX, FOREIGN."""

    kind: str
    name: str | None
    parts: tuple[tuple[str, int], ...]
    if_not_exists: bool = False
    hashed: bool = False
    without_overlaps: str | None = None
    """The application-time period that is the last part."""


@value
class Period:
    """PERIOD FOR an application's time, of MariaDB: the columns in which it begins and ends."""

    name: str
    start: str
    end: str


@dataclass(slots=True)
class TableOptions:
    """Options of a table or database that a definition depends on."""

    charset: str | None = None
    collation: str | None = None
    engine: str | None = None
    versioning: bool = False

    @property
    def names_charset(self) -> bool:
        """Whether a character set is named."""
        return self.charset is not None or self.collation is not None


@value
class CreateTable:
    """CREATE TABLE; ``like`` is the table whose definition it takes."""

    table: Name
    columns: tuple[ColumnSpec, ...] = ()
    indexes: tuple[IndexSpec, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    like: Name | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    periods: tuple[Period, ...] = ()


@value
class CreateSequence:
    """CREATE SEQUENCE, which makes a table."""

    table: Name
    if_not_exists: bool = False
    or_replace: bool = False


@value
class AddColumn:
    """ADD COLUMN; ``after`` is a column, empty for the first place, None for the last."""

    column: ColumnSpec
    after: str | None = None
    if_not_exists: bool = False


@value
class ChangeColumn:
    """CHANGE and MODIFY COLUMN; ``after`` is None where the column stays in its place."""

    old: str
    column: ColumnSpec
    after: str | None = None
    if_exists: bool = False


@value
class RenameColumn:
    """RENAME COLUMN."""

    old: str
    new: str
    if_exists: bool = False


@value
class DropColumn:
    """DROP COLUMN."""

    name: str
    if_exists: bool = False


@value
class SetDefault:
    """ALTER COLUMN … SET DEFAULT or DROP DEFAULT; ``default`` as a :class:`ColumnSpec` has it."""

    column: str
    default: str | None


@value
class SetHidden:
    """ALTER COLUMN … SET INVISIBLE or VISIBLE."""

    column: str
    hidden: bool


@value
class AddIndex:
    """ADD INDEX, PRIMARY KEY and the like."""

    index: IndexSpec


@value
class DropIndex:
    """DROP INDEX or, of the name PRIMARY, DROP PRIMARY KEY; a ``constraint`` may be no index."""

    name: str
    constraint: bool = False
    if_exists: bool = False


@value
class RenameIndex:
    """RENAME INDEX."""

    old: str
    new: str


@value
class ConvertTo:
    """CONVERT TO CHARACTER SET; both are None for DEFAULT."""

    charset: str | None
    collation: str | None


@value
class SetOptions:
    """Options of the table."""

    options: TableOptions


@value
class AddVersioning:
    """ADD SYSTEM VERSIONING, or DROP."""

    add: bool


@value
class AddPeriod:
    """ADD PERIOD FOR an application's time."""

    period: Period


@value
class ConvertPartition:
    """CONVERT PARTITION … TO TABLE (``creates``), which makes a table, or CONVERT TABLE … TO PARTITION."""

    table: Name
    creates: bool


@value
class MovePartitions:
    """Work on partitions or tablespaces that moves rows out of the table, or in, such as DROP PARTITION.

    ``exchanged`` is the other table of an exchange of rows.
    """

    what: str
    exchanged: Name | None = None


Operation = (
    AddColumn
    | ChangeColumn
    | RenameColumn
    | DropColumn
    | SetDefault
    | SetHidden
    | AddIndex
    | DropIndex
    | RenameIndex
    | ConvertTo
    | SetOptions
    | AddVersioning
    | AddPeriod
    | ConvertPartition
    | MovePartitions
)


@value
class AlterTable:
    """ALTER TABLE, and CREATE and DROP INDEX; ``rename`` is the table's new name.

    ``alters_more`` says that it alters something that is not in a definition, such as a comment.
    """

    table: Name
    operations: tuple[Operation, ...]
    rename: Name | None = None
    if_exists: bool = False
    alters_more: bool = False


@value
class RenameTables:
    """RENAME TABLE, one pair after the other."""

    pairs: tuple[tuple[Name, Name], ...]
    if_exists: bool = False


@value
class DropTables:
    """DROP TABLE and DROP SEQUENCE."""

    tables: tuple[Name, ...]


@value
class DropViews:
    """DROP VIEW; with IF EXISTS servers log it also where a name is that of a table, or of nothing."""

    views: tuple[Name, ...]


@value
class CreateDatabase:
    """CREATE DATABASE."""

    database: str
    options: TableOptions
    if_not_exists: bool = False
    or_replace: bool = False


@value
class AlterDatabase:
    """ALTER DATABASE; the database is empty for the session's."""

    database: str
    options: TableOptions


@value
class DropDatabase:
    """DROP DATABASE."""

    database: str


Ddl = (
    CreateTable
    | CreateSequence
    | AlterTable
    | RenameTables
    | DropTables
    | DropViews
    | CreateDatabase
    | AlterDatabase
    | DropDatabase
)


def parse(text: str, session: Session) -> Ddl | None:
    """Read a statement; None for one that has nothing to do with what tables there are.

    Raise NotUnderstoodError for one that may and is not understood.
    """
    tokens = Tokens(tokenize(text, session))
    while tokens.accept(";"):
        pass
    if tokens.accept("SET", "STATEMENT"):
        while not tokens.accept("FOR"):
            tokens.advance()
    verb = _VERBS.get(tokens.word)
    if verb is None:
        return None
    tokens.advance()
    return verb(tokens)


# -- statements -----------------------------------------------------------------------------------------


def _create(tokens: Tokens) -> Ddl | None:
    or_replace = tokens.accept("OR", "REPLACE")
    unique = ""
    temporary = False
    while word := tokens.accept_one(
        "TEMPORARY", "ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"
    ):
        temporary |= word == "TEMPORARY"
        unique = word if word in _INDEX_KINDS else unique
    if tokens.accept("TABLE"):
        return None if temporary else _create_table(tokens, or_replace=or_replace)
    if tokens.accept("SEQUENCE"):
        if temporary:
            return None
        missing = _if_not_exists(tokens)
        sequence = CreateSequence(_table(tokens), missing, or_replace)
        _expect_usual_sequence(tokens)
        return sequence
    if tokens.accept_one("DATABASE", "SCHEMA"):
        missing = _if_not_exists(tokens)
        return CreateDatabase(tokens.name(), _database_options(tokens), missing, or_replace)
    if tokens.accept("INDEX"):
        return _create_index(tokens, "UNIQUE" if unique == "UNIQUE" else "INDEX", or_replace=or_replace)
    return None


def _expect_usual_sequence(tokens: Tokens) -> None:
    while not tokens.at_end():
        if tokens.advance().upper == "AS":
            raise NotUnderstoodError("the columns of a sequence have the type that its statement names")


def _create_index(tokens: Tokens, kind: str, *, or_replace: bool) -> AlterTable:
    missing = _if_not_exists(tokens)
    name = None if tokens.word == "ON" else tokens.name()
    hashed = _index_type(tokens)
    tokens.expect("ON")
    table = _table(tokens)
    parts, period = _key_parts(tokens)
    hashed |= _index_options(tokens)
    index = AddIndex(IndexSpec(kind, name, parts, missing, hashed, period))
    drop = (DropIndex(name, if_exists=True),) if or_replace and name else ()
    # What follows are options of the index, and how it is built.
    return AlterTable(table, (*drop, index))


def _create_table(tokens: Tokens, *, or_replace: bool) -> CreateTable:
    missing = _if_not_exists(tokens)
    table = _table(tokens)
    parenthesis = tokens.word == "(" and tokens.ahead() == "LIKE"
    if parenthesis:
        tokens.advance()
    if tokens.accept("LIKE"):
        like = _table(tokens)
        if parenthesis:
            tokens.expect(")")
        options = TableOptions()
        _expect_end(tokens)
        return CreateTable(table, like=like, if_not_exists=missing, or_replace=or_replace, options=options)
    columns: list[ColumnSpec] = []
    indexes: list[IndexSpec] = []
    periods: list[Period] = []
    if not tokens.accept("("):
        raise NotUnderstoodError("the columns come from a SELECT")
    while True:
        index = _index_or_none(tokens)
        if index is not None:
            indexes.append(index)
        elif not _is_constraint(tokens, periods):
            columns.append(_column(tokens, _column_name(tokens)))
        if not tokens.accept(","):
            break
    tokens.expect(")")
    options = TableOptions()
    _table_options(tokens, options)
    return CreateTable(
        table, tuple(columns), tuple(indexes), options, None, missing, or_replace, tuple(periods)
    )


_SELECTS: Final = frozenset({"SELECT", "REPLACE", "IGNORE", "AS", "TABLE", "VALUES", "(", "WITH"})


def _table_options(tokens: Tokens, options: TableOptions) -> None:
    """Read the options after the columns of CREATE TABLE, up to its end."""
    while not tokens.at_end():
        if tokens.accept(",") or _option(tokens, options):
            continue
        if tokens.accept("START", "TRANSACTION"):
            continue
        if tokens.accept("PARTITION", "BY"):
            _skip_partitions(tokens)
        elif tokens.word in _SELECTS:
            raise NotUnderstoodError("columns come from a SELECT")
        else:
            _other_option(tokens)


def _skip_partitions(tokens: Tokens) -> None:
    while not tokens.at_end():
        if tokens.word in _SELECTS - {"(", "VALUES"}:
            raise NotUnderstoodError("columns come from a SELECT")
        if tokens.word == "(":
            tokens.skip_parentheses()
        else:
            tokens.advance()


def _option(tokens: Tokens, options: TableOptions) -> bool:
    """Read an option that a definition depends on; say whether there was one."""
    if tokens.word == "DEFAULT" and tokens.ahead() in ("CHARACTER", "CHARSET", "CHAR", "COLLATE"):
        tokens.advance()
    if tokens.accept("CHARACTER", "SET") or tokens.accept("CHARSET") or tokens.accept("CHAR", "SET"):
        tokens.accept("=")
        options.charset = _charset(tokens)
    elif tokens.accept("COLLATE"):
        options.collation = _collation(tokens)
    elif tokens.accept_one("ENGINE", "TYPE"):
        tokens.accept("=")
        token = tokens.advance()
        options.engine = token.text
    elif tokens.accept("WITH", "SYSTEM", "VERSIONING"):
        options.versioning = True
    else:
        return False
    return True


def _charset(tokens: Tokens) -> str:
    token = tokens.token
    if token is not None and token.kind == "string":
        return tokens.string().lower()
    return tokens.name().lower()


def _collation(tokens: Tokens) -> str | None:
    """Take the name of a collation; None for DEFAULT, that of the character set."""
    tokens.accept("=")
    return None if tokens.accept("DEFAULT") else _charset(tokens)


_TWO_WORDS: Final = frozenset({("DATA", "DIRECTORY"), ("INDEX", "DIRECTORY"), ("DEFAULT", "ENCRYPTION")})


def _other_option(tokens: Tokens) -> None:
    """Step over an option: NAME [=] value."""
    if (tokens.word, tokens.ahead()) in _TWO_WORDS:
        tokens.advance()
    if tokens.accept("STORAGE"):
        tokens.advance()
        return
    if not tokens.is_name():
        raise NotUnderstoodError(f"an option of a table is expected {tokens.here}")
    tokens.advance()
    tokens.skip_value()


def _database_options(tokens: Tokens) -> TableOptions:
    options = TableOptions()
    while not tokens.at_end():
        if tokens.accept(",") or _option(tokens, options):
            continue
        if tokens.accept("READ", "ONLY"):
            tokens.skip_value()
        else:
            _other_option(tokens)
    return options


def _drop(tokens: Tokens) -> Ddl | None:
    if tokens.accept("TEMPORARY"):
        return None
    tokens.accept_one("ONLINE", "OFFLINE")
    if tokens.accept_one("TABLE", "TABLES", "SEQUENCE"):
        return DropTables(_dropped(tokens))
    if tokens.accept("VIEW"):
        return DropViews(_dropped(tokens))
    if tokens.accept_one("DATABASE", "SCHEMA"):
        _if_exists(tokens)
        return DropDatabase(tokens.name())
    if tokens.accept("INDEX"):
        exists = _if_exists(tokens)
        name = tokens.name()
        tokens.expect("ON")
        return AlterTable(_table(tokens), (DropIndex(name, if_exists=exists),))
    return None


def _dropped(tokens: Tokens) -> tuple[Name, ...]:
    _if_exists(tokens)
    names = [_table(tokens)]
    while tokens.accept(","):
        names.append(_table(tokens))
    tokens.accept_one("RESTRICT", "CASCADE")
    _wait(tokens)
    _expect_end(tokens)
    return tuple(names)


def _rename(tokens: Tokens) -> Ddl | None:
    if not tokens.accept_one("TABLE", "TABLES"):
        return None
    exists = _if_exists(tokens)
    pairs = []
    while True:
        old = _table(tokens)
        _wait(tokens)
        tokens.expect("TO")
        pairs.append((old, _table(tokens)))
        if not tokens.accept(","):
            break
    _expect_end(tokens)
    return RenameTables(tuple(pairs), exists)


def _alter(tokens: Tokens) -> Ddl | None:
    while tokens.accept_one("ONLINE", "OFFLINE", "IGNORE"):
        pass
    if tokens.accept_one("DATABASE", "SCHEMA"):
        options = ("CHARACTER", "CHARSET", "CHAR", "COLLATE", "DEFAULT", "COMMENT", "READ", "UPGRADE")
        database = "" if tokens.token is not None and tokens.word in options else tokens.name()
        if tokens.word == "UPGRADE":
            raise NotUnderstoodError("the name of a database changes")
        return AlterDatabase(database, _database_options(tokens))
    if tokens.accept("SEQUENCE"):
        _expect_usual_sequence(tokens)
        return None
    if not tokens.accept("TABLE"):
        return None
    exists = _if_exists(tokens)
    table = _table(tokens)
    _wait(tokens)
    operations: list[Operation] = []
    rename = None
    alters_more = False
    while not tokens.at_end():
        if tokens.accept("RENAME"):
            renamed = _alter_rename(tokens, operations)
            rename = renamed or rename
        else:
            word, known = tokens.word, len(operations)
            _alter_one(tokens, operations)
            alters_more |= len(operations) == known and word not in _ALTERS_NOTHING
        tokens.accept(",")
    return AlterTable(table, tuple(operations), rename, exists, alters_more)


_ALTERS_NOTHING: Final = frozenset({"ALGORITHM", "DISABLE", "ENABLE", "LOCK"})


_VERBS: Final[dict[str, Callable[[Tokens], Ddl | None]]] = {
    "CREATE": _create,
    "ALTER": _alter,
    "DROP": _drop,
    "RENAME": _rename,
}


# -- ALTER TABLE ----------------------------------------------------------------------------------------


def _alter_rename(tokens: Tokens, operations: list[Operation]) -> Name | None:
    if tokens.accept("COLUMN"):
        exists = _if_exists(tokens)
        old = tokens.name()
        tokens.expect("TO")
        operations.append(RenameColumn(old, tokens.name(), exists))
        return None
    if tokens.accept_one("INDEX", "KEY"):
        _if_exists(tokens)
        old = _column_name(tokens)
        tokens.expect("TO")
        operations.append(RenameIndex(old, _column_name(tokens)))
        return None
    tokens.accept_one("TO", "AS", "=")
    return _table(tokens)


def _alter_one(tokens: Tokens, operations: list[Operation]) -> None:
    """Read one alteration that is not RENAME."""
    verb = _ALTERATIONS.get(tokens.word)
    if verb is not None:
        tokens.advance()
        verb(tokens, operations)
        return
    options = TableOptions()
    if _option(tokens, options):
        if options.versioning:
            raise NotUnderstoodError("WITH SYSTEM VERSIONING is not valid in ALTER TABLE")
        while _option(tokens, options):
            pass
        operations.append(SetOptions(options))
        return
    _other_option(tokens)


def _add(tokens: Tokens, operations: list[Operation]) -> None:
    if tokens.accept("PARTITION"):
        # PARTITIONS n or ( … ), at the end of a statement.
        _skip_to_end(tokens)
        return
    if tokens.accept("SYSTEM", "VERSIONING"):
        operations.append(AddVersioning(add=True))
        return
    periods: list[Period] = []
    if tokens.word == "PERIOD" and tokens.ahead() == "FOR":
        _is_constraint(tokens, periods)
        operations.extend(map(AddPeriod, periods))
        return
    index = _index_or_none(tokens)
    if index is not None:
        operations.append(AddIndex(index))
        return
    if _is_constraint(tokens, periods):
        return
    tokens.accept("COLUMN")
    missing = _if_not_exists(tokens)
    if tokens.accept("("):
        while True:
            index = _index_or_none(tokens)
            if index is not None:
                operations.append(AddIndex(index))
            elif not _is_constraint(tokens, periods):
                operations.append(AddColumn(_column(tokens, _column_name(tokens)), None, missing))
            if not tokens.accept(","):
                break
        tokens.expect(")")
        operations.extend(map(AddPeriod, periods))
        return
    column = _column(tokens, _column_name(tokens))
    operations.append(AddColumn(column, _place(tokens), missing))


def _change(tokens: Tokens, operations: list[Operation]) -> None:
    tokens.accept("COLUMN")
    exists = _if_exists(tokens)
    old = _column_name(tokens)
    column = _column(tokens, _column_name(tokens))
    operations.append(ChangeColumn(old, column, _place(tokens), exists))


def _modify(tokens: Tokens, operations: list[Operation]) -> None:
    tokens.accept("COLUMN")
    exists = _if_exists(tokens)
    name = _column_name(tokens)
    column = _column(tokens, name)
    operations.append(ChangeColumn(name, column, _place(tokens), exists))


def _place(tokens: Tokens) -> str | None:
    if tokens.accept("FIRST"):
        return ""
    return tokens.name() if tokens.accept("AFTER") else None


def _drop_one(tokens: Tokens, operations: list[Operation]) -> None:
    if tokens.accept("PARTITION"):
        _if_exists(tokens)
        tokens.name()
        while tokens.accept(","):
            tokens.name()
        operations.append(MovePartitions("DROP PARTITION"))
    elif tokens.accept("SYSTEM", "VERSIONING"):
        operations.append(AddVersioning(add=False))
    elif tokens.accept("PERIOD", "FOR"):
        tokens.name()
    elif tokens.accept("PRIMARY", "KEY"):
        operations.append(DropIndex("PRIMARY"))
    elif tokens.accept("FOREIGN", "KEY") or tokens.accept("CHECK"):
        _if_exists(tokens)
        _column_name(tokens)
    elif tokens.word in ("INDEX", "KEY", "CONSTRAINT"):
        constraint = tokens.advance().upper == "CONSTRAINT"
        exists = _if_exists(tokens)
        operations.append(DropIndex(_column_name(tokens), constraint, exists))
    else:
        tokens.accept("COLUMN")
        exists = _if_exists(tokens)
        operations.append(DropColumn(_column_name(tokens), exists))
        tokens.accept_one("RESTRICT", "CASCADE")


def _alter_column(tokens: Tokens, operations: list[Operation]) -> None:
    if tokens.accept_one("INDEX", "KEY"):
        _if_exists(tokens)
        _column_name(tokens)
        if not tokens.accept("NOT"):
            tokens.accept_one("VISIBLE", "INVISIBLE", "IGNORED")
        else:
            tokens.expect("IGNORED")
        return
    if tokens.accept_one("CHECK", "CONSTRAINT"):
        _column_name(tokens)
        tokens.accept("NOT")
        tokens.expect("ENFORCED")
        return
    tokens.accept("COLUMN")
    _if_exists(tokens)
    column = _column_name(tokens)
    if tokens.accept("DROP"):
        tokens.expect("DEFAULT")
        operations.append(SetDefault(column, None))
        return
    tokens.expect("SET")
    if tokens.accept("DEFAULT"):
        operations.append(SetDefault(column, _literal(tokens)[0]))
    elif word := tokens.accept_one("VISIBLE", "INVISIBLE"):
        operations.append(SetHidden(column, word == "INVISIBLE"))
    else:
        raise NotUnderstoodError(f"DEFAULT is expected {tokens.here}")


def _convert(tokens: Tokens, operations: list[Operation]) -> None:
    if tokens.accept("PARTITION"):
        tokens.name()
        tokens.expect("TO", "TABLE")
        operations.append(ConvertPartition(_table(tokens), creates=True))
        _skip_to_end(tokens)
        return
    if tokens.accept("TABLE"):
        operations.append(ConvertPartition(_table(tokens), creates=False))
        _skip_to_end(tokens)
        return
    tokens.expect("TO")
    if not (tokens.accept("CHARACTER", "SET") or tokens.accept("CHAR", "SET")):
        tokens.expect("CHARSET")
    tokens.accept("=")
    charset = None if tokens.accept("DEFAULT") else _charset(tokens)
    collation = None
    if tokens.accept("COLLATE"):
        collation = _collation(tokens)
    operations.append(ConvertTo(charset, collation))


def _order_by(tokens: Tokens, _operations: list[Operation]) -> None:
    tokens.expect("BY")
    _column_name(tokens)
    tokens.accept_one("ASC", "DESC")
    while _orders_more(tokens):
        tokens.expect(",")
        _column_name(tokens)
        tokens.accept_one("ASC", "DESC")


def _orders_more(tokens: Tokens) -> bool:
    """Return whether a comma goes on with ORDER BY, and does not begin the next alteration."""
    at = 1 + (tokens.ahead() == ".")
    if tokens.word != "," or tokens.ahead(at) == "FORCE":
        return False
    while tokens.ahead(at + 1) == ".":
        at += 2
    return tokens.ends(at + 1) or tokens.ahead(at + 1) in (",", "ASC", "DESC", "REMOVE", "PARTITION")


def _words(*following: str) -> Callable[[Tokens, list[Operation]], None]:
    """Make what takes one of some words."""

    def take(tokens: Tokens, _operations: list[Operation]) -> None:
        if following and not tokens.accept_one(*following):
            raise NotUnderstoodError(f"{following[0]} is expected {tokens.here}")

    return take


def _rest(tokens: Tokens, _operations: list[Operation]) -> None:
    """Step over work on partitions, which is the last of a statement."""
    _skip_to_end(tokens)


def _with(tokens: Tokens, operations: list[Operation]) -> None:
    if tokens.accept("SYSTEM", "VERSIONING"):
        operations.append(AddVersioning(add=True))
    else:
        tokens.expect("VALIDATION")


def _truncate(tokens: Tokens, operations: list[Operation]) -> None:
    tokens.expect("PARTITION")
    _skip_to_end(tokens)
    operations.append(MovePartitions("TRUNCATE PARTITION"))


def _exchange(tokens: Tokens, operations: list[Operation]) -> None:
    tokens.expect("PARTITION")
    tokens.name()
    tokens.expect("WITH", "TABLE")
    operations.append(MovePartitions("EXCHANGE PARTITION", _table(tokens)))
    _skip_to_end(tokens)


def _moving(what: str) -> Callable[[Tokens, list[Operation]], None]:
    """Make what takes work on partitions that moves rows, which is the last of a statement."""

    def take(tokens: Tokens, operations: list[Operation]) -> None:
        _skip_to_end(tokens)
        operations.append(MovePartitions(what))

    return take


_ALTERATIONS: Final[dict[str, Callable[[Tokens, list[Operation]], None]]] = {
    "ADD": _add,
    "ALTER": _alter_column,
    "ANALYZE": _rest,
    "CHANGE": _change,
    "CHECK": _rest,
    "COALESCE": _rest,
    "CONVERT": _convert,
    "DISABLE": _words("KEYS"),
    "DISCARD": _moving("DISCARD"),
    "DROP": _drop_one,
    "ENABLE": _words("KEYS"),
    "EXCHANGE": _exchange,
    "FORCE": _words(),
    "IMPORT": _moving("IMPORT"),
    "MODIFY": _modify,
    "NOWAIT": _words(),
    "OPTIMIZE": _rest,
    "ORDER": _order_by,
    "PARTITION": _rest,
    "REBUILD": _rest,
    "REMOVE": _words("PARTITIONING"),
    "REORGANIZE": _rest,
    "REPAIR": _rest,
    "SECONDARY_LOAD": _words(),
    "SECONDARY_UNLOAD": _words(),
    "TRUNCATE": _truncate,
    "WITH": _with,
    "WITHOUT": _words("VALIDATION"),
}


def _skip_to_end(tokens: Tokens) -> None:
    while not tokens.at_end():
        tokens.advance()


# -- columns --------------------------------------------------------------------------------------------


def _column(tokens: Tokens, name: str) -> ColumnSpec:
    """Read the definition of a column from after its name."""
    column = ColumnSpec(name)
    _type(tokens, column)
    while attribute := _ATTRIBUTES.get(tokens.word):
        token = tokens.token
        if token is not None and token.kind == "name":
            break
        tokens.advance()
        attribute(tokens, column)
        if tokens.word == "=":
            raise NotUnderstoodError(f"an attribute of a column is expected {tokens.here}")
    while tokens.is_name() and tokens.ahead() == "=":
        # MariaDB: an option of the storage engine.
        tokens.advance()
        tokens.skip_value()
    if tokens.word not in (",", ")", "", ";", "FIRST", "AFTER", "PARTITION", "REMOVE"):
        raise NotUnderstoodError(f"an attribute of a column is expected {tokens.here}")
    return column


_WORDS_OF_TYPES: Final = (
    (("DOUBLE", "PRECISION"), "double"),
    (("LONG", "VARCHAR"), "mediumtext"),
    (("LONG", "VARCHARACTER"), "mediumtext"),
    (("LONG", "CHAR", "VARYING"), "mediumtext"),
    (("LONG", "CHARACTER", "VARYING"), "mediumtext"),
    (("LONG", "VARBINARY"), "mediumblob"),
    (("LONG",), "mediumtext"),
    (("NATIONAL", "CHARACTER", "VARYING"), "nvarchar"),
    (("NATIONAL", "CHAR", "VARYING"), "nvarchar"),
    (("NATIONAL", "VARCHARACTER"), "nvarchar"),
    (("NATIONAL", "VARCHAR"), "nvarchar"),
    (("NATIONAL", "CHARACTER"), "nchar"),
    (("NATIONAL", "CHAR"), "nchar"),
    (("NCHAR", "VARCHARACTER"), "nvarchar"),
    (("NCHAR", "VARCHAR"), "nvarchar"),
    (("NCHAR", "VARYING"), "nvarchar"),
    (("CHARACTER", "VARYING"), "varchar"),
    (("CHAR", "VARYING"), "varchar"),
)
_ONE_WORD: Final = {
    "bool": "boolean",
    "character": "char",
    "dec": "decimal",
    "fixed": "decimal",
    "numeric": "decimal",
    "float4": "float",
    "float8": "double",
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "int4": "int",
    "int8": "bigint",
    "integer": "int",
    "middleint": "mediumint",
    "sql_tsi_year": "year",
    "varcharacter": "varchar",
    "geomcollection": "geometrycollection",
}


def _type(tokens: Tokens, column: ColumnSpec) -> None:
    """Read the type's name, arguments and the attributes that belong to it."""
    for words, name in _WORDS_OF_TYPES:
        if tokens.accept(*words):
            column.type = name
            break
    else:
        token = tokens.token
        if token is None or token.kind != "word":
            raise NotUnderstoodError(f"a type is expected {tokens.here}")
        lower = tokens.advance().text.lower()
        column.type = _ONE_WORD.get(lower, lower)
    if column.type in ("enum", "set"):
        column.members = _members(tokens)
    elif tokens.accept("("):
        arguments = [tokens.number()]
        if tokens.accept("."):
            tokens.number()  # DECIMAL(19.5) is DECIMAL(19)
        while tokens.accept(","):
            arguments.append(tokens.number())
        tokens.expect(")")
        column.arguments = tuple(arguments)


_BYTES: Final = ("0X", "X", "0B", "B")


def _members(tokens: Tokens) -> tuple[str | bytes, ...]:
    tokens.expect("(")
    members: list[str | bytes] = []
    while True:
        token = tokens.token
        if (
            token is not None
            and token.kind == "word"
            and token.upper in ("N", "_UTF8", "_UTF8MB3", "_UTF8MB4")
        ):
            tokens.advance()
        data = _bytes_of(tokens)
        members.append(tokens.string() if data is None else data)
        if not tokens.accept(","):
            break
    tokens.expect(")")
    return tuple(members)


def _bytes_of(tokens: Tokens) -> bytes | None:
    """Take 0x61, x'61', 0b01100001 or b'01100001', if it is next."""
    word = tokens.word
    if word in ("X", "B") and tokens.ahead_is_string():
        tokens.advance()
        digits = tokens.string()
    elif word.startswith(("0X", "0B")):
        digits = tokens.advance().text[2:]
    else:
        return None
    try:
        number = int(digits or "0", 16 if "X" in word else 2)
        return number.to_bytes(-(-len(digits) // (2 if "X" in word else 8)), "big")
    except ValueError:
        raise NotUnderstoodError(f"a member is written as {digits}") from None


def _skip_default(tokens: Tokens) -> None:
    """Step over a default: a literal, a call, or an expression in parentheses."""
    if tokens.accept("NEXT", "VALUE", "FOR"):
        _table(tokens)
        return
    tokens.accept_one("-", "+")
    if tokens.word == "(":
        tokens.skip_parentheses()
    elif tokens.accept("{"):
        while not tokens.accept("}"):  # {ts '2020-01-01 00:00:00'}
            tokens.advance()
    else:
        _skip_literal(tokens)
    if tokens.token is not None and tokens.token.kind == "other" and tokens.word not in (",", ")", ";"):
        raise NotUnderstoodError(f"a default is not understood {tokens.here}")


def _skip_literal(tokens: Tokens) -> None:
    """Step over a literal without its sign, or a call of a function."""
    tokens.accept(".")  # .5
    token = tokens.advance()
    if token.kind == "word" and token.text.startswith("_") and tokens.word.startswith(_BYTES):
        token = tokens.advance()  # _koi8r 0xC1
    while tokens.token is not None and tokens.token.kind == "string":
        tokens.advance()  # _utf8mb4'x', b'1', DATE '2020-01-01', 'a' 'b'
    while tokens.accept("."):
        if not tokens.is_name():
            break
        token = tokens.advance()
    if tokens.word in ("-", "+") and token.text[:1].isdecimal() and token.text[-1:] in "eE":
        tokens.advance()  # 1e-5
        tokens.advance()
    if tokens.word == "(":
        tokens.skip_parentheses()


_Attribute = Callable[[Tokens, ColumnSpec], None]


def _set(**values: object) -> _Attribute:
    def take(_tokens: Tokens, column: ColumnSpec) -> None:
        for name, given in values.items():
            setattr(column, name, given)

    return take


def _skip(count: int) -> _Attribute:
    def take(tokens: Tokens, _column: ColumnSpec) -> None:
        for _ in range(count):
            tokens.accept("=")
            tokens.advance()

    return take


def _not(tokens: Tokens, column: ColumnSpec) -> None:
    if tokens.accept("NULL"):
        column.nullable = False
    elif not tokens.accept_one("ENFORCED", "SECONDARY"):
        raise NotUnderstoodError(f"NULL is expected {tokens.here}")


_BITS: Final = re.compile("[01]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def is_bits(default: str | None) -> bool:
    """Return whether a default is written b'101'."""
    return default is not None and default.startswith("b'")


def _literal(tokens: Tokens) -> tuple[str | None, bool]:
    """Take a default: the text of a literal, None for NULL, and whether it is computed instead."""
    taken = tokens.taken(_skip_default)
    *signs, last = taken
    sign = "".join(token.text for token in signs)
    text = "".join(token.text for token in taken)
    if sign in ("", "+", "-") and last.kind == "word" and last.upper in ("NULL", "TRUE", "FALSE"):
        return {"NULL": None, "TRUE": "1", "FALSE": "0"}[last.upper], False
    if last.kind == "string" and not signs:
        return last.text, False
    if (
        last.kind == "string"
        and [token.kind for token in signs] == ["word"]
        and sign.upper() == "B"
        and _BITS.fullmatch(last.text)
    ):
        return f"b'{last.text}'", False
    return (text, False) if _NUMBER.fullmatch(text) else (None, True)


def _default(tokens: Tokens, column: ColumnSpec) -> None:
    column.default, column.computed = _literal(tokens)
    if is_bits(column.default) and column.type != "bit":
        column.default, column.computed = None, True  # the bytes that the bits are


def _on(tokens: Tokens, _column: ColumnSpec) -> None:
    tokens.expect("UPDATE")
    tokens.name()
    if tokens.word == "(":
        tokens.skip_parentheses()


def _primary(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.expect("KEY")
    column.primary = True


def _key(_tokens: Tokens, column: ColumnSpec) -> None:
    column.primary = True


def _unique(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.accept("KEY")
    column.unique = True


def _character(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.expect("SET")
    tokens.accept("=")
    column.charset = _charset(tokens)


def _charset_of(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.accept("=")
    column.charset = _charset(tokens)


def _collate(tokens: Tokens, column: ColumnSpec) -> None:
    column.collation = _collation(tokens)


def _binary(_tokens: Tokens, _column: ColumnSpec) -> None:
    """CHAR(10) BINARY: another collation of the same character set."""


def _generated(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.expect("ALWAYS")
    tokens.expect("AS")
    _as(tokens, column)


def _as(tokens: Tokens, column: ColumnSpec) -> None:
    if tokens.accept("ROW"):
        period = tokens.accept_one("START", "END")
        column.row_period = "START" if period == "START" else "END"
        column.generated, column.nullable = "STORED", False
        return
    tokens.skip_parentheses()
    column.generated = "STORED" if tokens.accept_one("STORED", "PERSISTENT") else "VIRTUAL"
    tokens.accept("VIRTUAL")


def _references(tokens: Tokens, _column: ColumnSpec) -> None:
    _table(tokens)
    if tokens.word == "(":
        tokens.skip_parentheses()
    while tokens.accept("MATCH"):
        tokens.advance()
    while tokens.accept("ON"):
        tokens.advance()
        if not (tokens.accept("SET") or tokens.accept("NO")):
            tokens.advance()
        else:
            tokens.advance()


def _check(tokens: Tokens, _column: ColumnSpec) -> None:
    tokens.skip_parentheses()


def _constraint(tokens: Tokens, _column: ColumnSpec) -> None:
    if tokens.word not in ("CHECK", "REFERENCES", "UNIQUE", "PRIMARY"):
        tokens.name()


def _with_versioning(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.expect("SYSTEM", "VERSIONING")
    column.versioned = True


def _without_versioning(tokens: Tokens, _column: ColumnSpec) -> None:
    tokens.expect("SYSTEM", "VERSIONING")


def _serial_default(tokens: Tokens, column: ColumnSpec) -> None:
    tokens.expect("DEFAULT", "VALUE")
    column.nullable, column.unique, column.computed = False, True, True


def _compressed(tokens: Tokens, column: ColumnSpec) -> None:
    column.compressed = True
    if tokens.accept("="):
        tokens.advance()


_ATTRIBUTES: Final[dict[str, _Attribute]] = {
    "AS": _as,
    "ASCII": _set(charset="latin1"),
    "AUTO_INCREMENT": _set(nullable=False, computed=True),
    "BINARY": _binary,
    "BYTE": _set(charset="binary"),
    "CHARACTER": _character,
    "CHAR": _character,
    "CHARSET": _charset_of,
    "CHECK": _check,
    "COLLATE": _collate,
    "COLUMN_FORMAT": _skip(1),
    "COMMENT": _skip(1),
    "COMPRESSED": _compressed,
    "CONSTRAINT": _constraint,
    "DEFAULT": _default,
    "ENFORCED": _skip(0),
    "ENGINE_ATTRIBUTE": _skip(1),
    "GENERATED": _generated,
    "INVISIBLE": _set(hidden=True),
    "KEY": _key,
    "NOT": _not,
    "NULL": _set(nullable=True),
    "ON": _on,
    "PRIMARY": _primary,
    "REFERENCES": _references,
    "REF_SYSTEM_ID": _skip(1),
    "SECONDARY_ENGINE_ATTRIBUTE": _skip(1),
    "SERIAL": _serial_default,
    "SIGNED": _skip(0),
    "SRID": _skip(1),
    "STORAGE": _skip(1),
    "UNICODE": _set(charset="ucs2"),
    "UNIQUE": _unique,
    "UNSIGNED": _set(unsigned=True),
    "VIRTUAL": _skip(0),
    "VISIBLE": _skip(0),
    "WITH": _with_versioning,
    "WITHOUT": _without_versioning,
    "ZEROFILL": _set(unsigned=True, zerofill=True),
}


# -- indexes and constraints ----------------------------------------------------------------------------


def _index_or_none(tokens: Tokens) -> IndexSpec | None:
    """Read the definition of an index, or nothing."""
    token = tokens.token
    if token is None or token.kind != "word":
        return None
    word, ahead = tokens.word, 0
    name = None
    if word == "CONSTRAINT":
        ahead = 1 + (tokens.ahead() not in _CONSTRAINTS)
        while tokens.ahead(ahead) == ".":
            ahead += 2
        word = tokens.ahead(ahead)
    if word not in _INDEX_KINDS or (word == "FOREIGN" and tokens.ahead(ahead + 1) != "KEY"):
        return None
    if word == "VECTOR" and not _is_vector_index(tokens, ahead):
        return None
    if word == "PRIMARY" and tokens.ahead(ahead + 1) != "KEY":
        return None
    if tokens.accept("CONSTRAINT") and ahead > 1:
        name = _column_name(tokens)
    tokens.advance()
    if word in ("PRIMARY", "FOREIGN"):
        tokens.expect("KEY")
    else:
        tokens.accept_one("INDEX", "KEY")
    missing = _if_not_exists(tokens)
    hashed = _index_type(tokens)
    if tokens.word != "(":
        own = _column_name(tokens)
        # A foreign key is known by its constraint's name.
        name = own if word != "FOREIGN" or name is None else name
    hashed |= _index_type(tokens)
    parts, period = _key_parts(tokens)
    if word == "FOREIGN":
        tokens.expect("REFERENCES")
        _references(tokens, ColumnSpec(""))
    else:
        hashed |= _index_options(tokens)
    kind = word if word in ("PRIMARY", "UNIQUE", "FOREIGN") else "INDEX"
    return IndexSpec(kind, "PRIMARY" if kind == "PRIMARY" else name, parts, missing, hashed, period)


def _is_vector_index(tokens: Tokens, at: int) -> bool:
    """Tell VECTOR [INDEX] [name] (column) from a column of that name, such as vector VARBINARY(20)."""
    following = tokens.ahead(at + 1)
    if following in ("INDEX", "KEY", "("):
        return True
    return tokens.ahead(at + 2) == "(" and tokens.may_be_name(at + 3)


_INDEX_KINDS: Final = frozenset(
    {"PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "VECTOR", "FOREIGN"}
)
_CONSTRAINTS: Final = frozenset({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})


def _index_type(tokens: Tokens) -> bool:
    """Step over USING; return whether it says HASH."""
    hashed = False
    while tokens.word in ("USING", "TYPE") and tokens.ahead() in ("BTREE", "HASH", "RTREE"):
        tokens.advance()
        hashed = tokens.advance().upper == "HASH"
    return hashed


def _index_options(tokens: Tokens) -> bool:
    """Step over what may follow the columns of an index; return whether it says USING HASH."""
    hashed = False
    while True:
        hashed |= _index_type(tokens)
        if tokens.accept_one("USING", "TYPE", "COMMENT"):
            tokens.accept("=")
            tokens.advance()
        elif tokens.accept("WITH", "PARSER"):
            tokens.name()
        elif tokens.accept_one("VISIBLE", "INVISIBLE", "IGNORED") or tokens.accept("NOT", "IGNORED"):
            pass
        elif tokens.word not in (",", ")", "", ";") and tokens.is_name():
            tokens.advance()
            tokens.skip_value()
        else:
            return hashed


def _key_parts(tokens: Tokens) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Read the parts of a key, and the period WITHOUT OVERLAPS that may be the last."""
    tokens.expect("(")
    parts = []
    while True:
        if tokens.word == "(":
            tokens.skip_parentheses()
            parts.append(("", 0))
        else:
            name, length = tokens.name(), 0
            if tokens.accept("("):
                length = tokens.number()
                tokens.expect(")")
            if tokens.accept("WITHOUT", "OVERLAPS"):
                tokens.expect(")")
                return tuple(parts), name
            parts.append((name, length))
        tokens.accept_one("ASC", "DESC")
        if not tokens.accept(","):
            break
    tokens.expect(")")
    return tuple(parts), None


def _is_constraint(tokens: Tokens, periods: list[Period]) -> bool:
    """Skip CHECK, PERIOD and the like, if present; add a period of an application's time to ``periods``."""
    token = tokens.token
    if token is None or token.kind != "word":
        return False
    word = tokens.word
    if word == "CONSTRAINT":
        tokens.advance()
        if tokens.word != "CHECK":
            _if_not_exists(tokens)
            _column_name(tokens)
        tokens.expect("CHECK")
        _check_constraint(tokens)
        return True
    if word == "CHECK" and tokens.ahead() == "(":
        tokens.advance()
        _check_constraint(tokens)
        return True
    if word == "PERIOD" and tokens.ahead() == "FOR":
        tokens.expect("PERIOD", "FOR")
        _if_not_exists(tokens)
        name = tokens.name()
        tokens.expect("(")
        start = tokens.name()
        tokens.expect(",")
        period = Period(name, start, tokens.name())
        tokens.expect(")")
        if name.upper() != "SYSTEM_TIME":
            periods.append(period)
        return True
    if word == "LIKE":
        raise NotUnderstoodError("LIKE among columns")
    return False


def _check_constraint(tokens: Tokens) -> None:
    tokens.skip_parentheses()
    if tokens.accept("NOT"):
        tokens.expect("ENFORCED")
    else:
        tokens.accept("ENFORCED")


# -- small parts ----------------------------------------------------------------------------------------


def _table(tokens: Tokens) -> Name:
    if tokens.accept("."):
        return Name("", tokens.name())
    first = tokens.name()
    return Name(first, tokens.name()) if tokens.accept(".") else Name("", first)


def _column_name(tokens: Tokens) -> str:
    """Take the name of a column or the like; its table and database may stand in front."""
    tokens.accept(".")
    name = tokens.name()
    while tokens.accept("."):
        name = tokens.name()
    return name


def _if_exists(tokens: Tokens) -> bool:
    return tokens.accept("IF", "EXISTS")


def _if_not_exists(tokens: Tokens) -> bool:
    return tokens.accept("IF", "NOT", "EXISTS")


def _wait(tokens: Tokens) -> None:
    if tokens.accept("WAIT"):
        tokens.number()
    else:
        tokens.accept("NOWAIT")


def _expect_end(tokens: Tokens) -> None:
    if not tokens.at_end():
        raise NotUnderstoodError(f"the end of the statement is expected {tokens.here}")
