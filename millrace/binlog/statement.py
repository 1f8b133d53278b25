"""What kind of statement the text of a QUERY event is, and which tables a DDL statement names.

This reads just enough of SQL: it skips comments, looks into ``/*! … */`` and ``/*M! … */`` (what a server did
not execute of these it logs as plain comments), and reads names, quoted or not. It does not parse
expressions or column definitions. Grammar: the "SQL Statements" chapters of both servers' manuals.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.binlog.fields import decode_text, encode_text
from millrace.binlog.names import unquoted_name

__all__ = ["TRANSACTION_CONTROL", "Statement", "StatementKind", "TableName", "classify", "xid_text"]


class StatementKind(Enum):
    """What a statement does to its transaction, or to the schema, or to rows."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"
    RELEASE_SAVEPOINT = "release savepoint"
    XA_START = "xa start"
    XA_END = "xa end"
    XA_PREPARE = "xa prepare"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    DDL = "ddl"
    DML = "dml"
    OTHER = "other"


TRANSACTION_CONTROL: Final = frozenset(
    {
        StatementKind.BEGIN,
        StatementKind.COMMIT,
        StatementKind.ROLLBACK,
        StatementKind.SAVEPOINT,
        StatementKind.ROLLBACK_TO,
        StatementKind.RELEASE_SAVEPOINT,
        StatementKind.XA_START,
        StatementKind.XA_END,
        StatementKind.XA_PREPARE,
        StatementKind.XA_COMMIT,
        StatementKind.XA_ROLLBACK,
    }
)
"""Statements that begin, divide and end transactions, and change nothing by themselves."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as a statement names it; ``database`` is None where the statement leaves it to the session."""

    database: str | None
    table: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A classified statement.

    ``verb`` is its first keyword (``INSERT``, ``CREATE``, …; empty for a text that is all comment). ``name``
    is the savepoint's name, or the XID as :func:`xid_text` writes it. The rest is for DDL: ``object_type`` is
    what it is about (``TABLE``, ``DATABASE``, ``INDEX``, ``VIEW``, …), ``database`` the database of a DDL on
    databases, ``tables`` the tables whose definition it makes, changes or drops, in order, ``renames`` pairs
    of old and new name, ``source`` the table of CREATE TABLE … LIKE. An ALTER that renames names both.
    ``changes`` are the tables whose rows it changes by its text, for DML and CREATE TABLE … SELECT; triggers,
    functions and foreign keys may change others. DML whose text names none, such as ``SELECT f()``, has none.
    """

    kind: StatementKind
    verb: str
    name: str | None = None
    object_type: str | None = None
    database: str | None = None
    tables: tuple[TableName, ...] = ()
    renames: tuple[tuple[TableName, TableName], ...] = ()
    source: TableName | None = None
    changes: tuple[TableName, ...] = ()
    temporary: bool = False
    one_phase: bool = False


def _tokens(end: str) -> re.Pattern[str]:
    """Make the pattern of a token; ``end`` may stand for the quote that ends a string or name."""
    return re.compile(
        rf"""
          (?P<skip> \s+ | /\*M?!\d* | \*/ | /\*(?!M?!).*?(?:\*/|\Z) | --(?=\s|\Z)[^\n]* | \#[^\n]* )
        | (?P<quoted> `(?:[^`]++|``)*+(?:`{end}) )
        | (?P<string> '(?:[^'\\]++|\\(?:.{end})|'')*+(?:'{end}) | "(?:[^"\\]++|\\(?:.{end})|"")*+(?:"{end}) )
        | (?P<word> [\w$]+ | [^\x00-\x7f]+ )
        | (?P<other> . )
        """,
        re.VERBOSE | re.DOTALL,
    )


_TOKEN = _tokens("")
_TOKEN_OF_LONG = _tokens(r"|\Z")
"""For a text in which to try again after each quote without its other half would take too long."""

_LONG = 8192
_MAX_NAMES = 65_536
"""Tables that are read of a statement: more than any has."""

_HEAD = 4096
"""Bytes of a long statement that are looked at first: enough to see that it is no DDL."""

_CACHED = 64
"""Statements up to this length are remembered: BEGIN, COMMIT and the like come again and again."""


class _Tokens:
    """The tokens of a statement, one ahead; words are given in upper case by :attr:`word`."""

    __slots__ = ("_matches", "text", "token", "word")

    def __init__(self, text: str) -> None:
        self.text = text
        self._matches = self._significant(text)
        self.advance()

    @staticmethod
    def _significant(text: str) -> Iterator[re.Match[str]]:
        pattern = _TOKEN if len(text) <= _LONG else _TOKEN_OF_LONG
        return (match for match in pattern.finditer(text) if match.lastgroup != "skip")

    def advance(self) -> None:
        """Step to the next token; None and an empty word after the last."""
        self.token = next(self._matches, None)
        self.word = ""
        if self.token is not None:
            self.word = self.token.group().upper() if self.token.lastgroup != "quoted" else ""

    def accept(self, *words: str) -> bool:
        """Step over the next token if it is one of ``words``."""
        if self.word and self.word in words:
            self.advance()
            return True
        return False

    def skip_existence(self) -> None:
        """Step over IF EXISTS and IF NOT EXISTS."""
        if self.accept("IF"):
            self.accept("NOT")
            self.accept("EXISTS")

    def identifier(self) -> str | None:
        """Read a name, quoted or not; None where there is none."""
        match = self.token
        if match is None or match.lastgroup == "other":
            return None
        text = match.group()
        self.advance()
        if match.lastgroup == "quoted":
            return unquoted_name(text)
        if match.lastgroup == "string":
            return text[1:-1].replace(text[0] * 2, text[0])
        return text

    def table_name(self) -> TableName | None:
        """Read ``table`` or ``database.table``."""
        first = self.identifier()
        if first is None:
            return None
        if self.word == ".":
            self.advance()
            second = self.identifier()
            return TableName(first, second or "")
        return TableName(None, first)

    def table_names(self) -> tuple[TableName, ...]:
        """Read names with commas between them."""
        names: list[TableName] = []
        while name := self.table_name():
            names.append(name)
            if len(names) == _MAX_NAMES or not self.accept(","):
                break
        return tuple(names)

    def rest(self) -> str:
        """Return the text from the current token on, without comments at its end."""
        start = end = self.token.start() if self.token is not None else len(self.text)
        while self.token is not None:
            end = self.token.end()
            self.advance()
        return self.text[start:end].rstrip("; \n")


_TABLE_MODIFIERS = frozenset({"TEMPORARY", "ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE"})
_INDEX_MODIFIERS = frozenset({"UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
_ROUTINES = ("VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE")
_DML = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "SELECT", "CALL", "DO", "VALUES", "TABLE"})
_CHANGING = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"})
_DML_MODIFIERS = frozenset({"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "INTO", "TABLE"})
_DELETE_MODIFIERS = _DML_MODIFIERS | {"QUICK", "HISTORY"}
_QUERY = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})
_NO_ALIAS = frozenset(
    {
        *("JOIN", "INNER", "LEFT", "RIGHT", "CROSS", "NATURAL", "STRAIGHT_JOIN", "ON", "USING", "USE"),
        *("FORCE", "IGNORE", "SET", "WHERE", "ORDER", "LIMIT", "RETURNING", "FOR", ",", ")", "(", ";"),
    }
)
_AFTER_REFERENCES = frozenset({"SET", "WHERE", "ORDER", "LIMIT", "RETURNING", ";"})
_JOINING = frozenset({"UPDATE", "DELETE"})
"""Which rows they change may be said far behind their beginning."""

_DDL = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})
_ACCOUNT = frozenset({"GRANT", "REVOKE"})


def classify(sql: bytes | str) -> Statement:
    """Return what kind of statement ``sql`` is; bytes are taken as UTF-8, or what of them is ASCII.

    Never raises: a text that is not understood is OTHER with its first word as ``verb``.
    """
    if len(sql) <= _CACHED:
        return _classify_short(sql)
    if len(sql) > _HEAD:
        head = sql[:_HEAD]
        statement = _classify(decode_text(head) if isinstance(head, bytes) else head)
        if statement.kind is StatementKind.DML and statement.verb not in _JOINING:
            return statement
    return _classify(decode_text(sql) if isinstance(sql, bytes) else sql)


@functools.lru_cache(maxsize=1024)
def _classify_short(sql: bytes | str) -> Statement:
    return _classify(decode_text(sql) if isinstance(sql, bytes) else sql)


def _classify(text: str) -> Statement:
    tokens = _Tokens(text)
    while tokens.accept("(", ";"):
        pass
    if tokens.word == "SET":
        tokens = _behind_set_statement(tokens)
    verb = tokens.word if tokens.token is not None and tokens.token.lastgroup == "word" else ""
    expressions: frozenset[str] = frozenset()
    if verb == "ANALYZE":
        verb = _behind_analyze(tokens) or verb
    if verb == "WITH":
        verb, expressions = _behind_with(tokens)
    if verb in _DML:
        return Statement(StatementKind.DML, verb, changes=_changes(tokens, verb, expressions))
    control = _CONTROL.get(verb)
    if control is not None:
        tokens.advance()
        return control(tokens, verb)
    if verb in _DDL:
        tokens.advance()
        return _ddl(tokens, verb)
    if verb in _ACCOUNT:
        return Statement(StatementKind.DDL, verb, object_type="USER")
    return Statement(StatementKind.OTHER, verb)


def _behind_set_statement(tokens: _Tokens) -> _Tokens:
    """Step after MariaDB's SET STATEMENT … FOR; any other SET is left as it is."""
    ahead = _Tokens(tokens.text)
    ahead.accept("SET")
    if not ahead.accept("STATEMENT"):
        return tokens
    while ahead.token is not None and not ahead.accept("FOR"):
        ahead.advance()
    return ahead


def _behind_analyze(tokens: _Tokens) -> str | None:
    """Step to the statement that MariaDB's ANALYZE executes; None where it is another ANALYZE."""
    tokens.advance()
    if tokens.accept("FORMAT"):
        tokens.accept("=")
        tokens.advance()
    return tokens.word if tokens.word in _CHANGING | {"WITH", "SELECT"} else None


def _behind_with(tokens: _Tokens) -> tuple[str, frozenset[str]]:
    """Step to the statement that common table expressions belong to; return its verb, and their names."""
    depth, is_name = 0, True
    names: set[str] = set()
    tokens.advance()
    tokens.accept("RECURSIVE")
    while tokens.token is not None:
        if tokens.word == "(":
            depth += 1
        elif tokens.word == ")":
            depth -= 1
        elif depth == 0 and tokens.word in {"SELECT", "UPDATE", "DELETE", "INSERT", "REPLACE"}:
            return tokens.word, frozenset(names)
        elif depth == 0 and is_name:
            names.add((tokens.identifier() or "").casefold())
            is_name = False
            continue
        is_name = depth == 0 and tokens.word == ","
        tokens.advance()
    return "SELECT", frozenset(names)


def _changes(tokens: _Tokens, verb: str, expressions: frozenset[str]) -> tuple[TableName, ...]:
    """Name the tables whose rows a statement changes; ``tokens`` is at its verb.

    ``expressions`` are the names of its common table expressions.
    """
    if verb not in _CHANGING:
        return ()
    tokens.advance()
    while verb == "LOAD" and tokens.token is not None and tokens.word != "TABLE":
        tokens.advance()
    while tokens.word in (_DELETE_MODIFIERS if verb == "DELETE" else _DML_MODIFIERS):
        tokens.advance()
    if verb == "UPDATE":
        joined = _references(tokens, expressions)
        found = [each for each, _ in joined] if len(joined) < 2 else _assigned(tokens, joined)
    elif verb == "DELETE":
        found = _deleted(tokens, expressions)
    else:
        name = tokens.table_name()
        found = [] if name is None else [name]
    return tuple(dict.fromkeys(found))


_Reference = tuple[TableName, str | None]
"""A table of a join, and its alias."""


def _references(tokens: _Tokens, expressions: frozenset[str] = frozenset()) -> list[_Reference]:
    """Read the tables of a join, up to the clause after it; derived tables are left out."""
    found: list[_Reference] = []
    depth, expects = 0, True
    while tokens.token is not None and len(found) < _MAX_NAMES:
        word = tokens.word
        if depth:
            depth += (word == "(") - (word == ")")
        elif expects and word in ("(", "{", "OJ", "LATERAL"):
            tokens.advance()
            if word == "(" and tokens.word in _QUERY:
                depth, expects = 1, False
            continue
        elif expects:
            expects = False
            name = tokens.table_name()
            if name is not None and tokens.word != "(":  # JSON_TABLE(…) is none
                alias = _alias(tokens)
                if name.database is not None or name.table.casefold() not in expressions:
                    found.append((name, alias))
            if name is not None:
                continue
        elif word in _AFTER_REFERENCES:
            break
        elif word == "(":
            depth = 1
        else:
            expects = word in (",", "JOIN", "STRAIGHT_JOIN")
        tokens.advance()
    return found


def _alias(tokens: _Tokens) -> str | None:
    """Read the alias of a table, after its partitions."""
    if tokens.accept("PARTITION"):
        while tokens.token is not None and not tokens.accept(")"):
            tokens.advance()
    if not tokens.accept("AS") and tokens.word in _NO_ALIAS:
        return None
    return tokens.identifier()


def _path(tokens: _Tokens) -> list[str]:
    """Read names with dots between them, such as ``database.table.*``, without the star."""
    parts: list[str] = []
    while (name := tokens.identifier()) is not None:
        parts.append(name)
        if not tokens.accept("."):
            break
    tokens.accept("*")
    return parts


def _referred(path: Sequence[str], joined: Sequence[_Reference]) -> TableName | None:
    """Find the table of a join that an alias, a table or ``database.table`` refers to."""
    *database, name = [part.casefold() for part in path]
    of_session = None
    for table, alias in joined:
        if name == (alias or table.table).casefold():
            if not database or (table.database is not None and database == [table.database.casefold()]):
                return table
            if table.database is None:
                of_session = table
    return of_session


def _deleted(tokens: _Tokens, expressions: frozenset[str]) -> list[TableName]:
    """Read which tables DELETE names before or after FROM; they may be aliases of those of a join."""
    is_before = not tokens.accept("FROM")
    paths = [_path(tokens)]
    while tokens.accept(","):
        paths.append(_path(tokens))
    joined: Sequence[_Reference] = ()
    if tokens.accept("FROM" if is_before else "USING"):
        joined = _references(tokens, expressions)
    found = []
    for path in paths:
        if path:
            named = TableName(path[-2] if len(path) > 1 else None, path[-1])
            found.append(_referred(path, joined) or named)
    return found


def _assigned(tokens: _Tokens, joined: Sequence[_Reference]) -> list[TableName]:
    """Read which tables of a join UPDATE sets columns of: all of them where it leaves that open."""
    everything = [table for table, _ in joined]
    found = []
    tokens.accept("SET")
    while tokens.token is not None:
        path = _path(tokens)
        table = _referred(path[:-1], joined) if len(path) > 1 else None
        if table is None:
            return everything
        found.append(table)
        depth = 0
        while tokens.token is not None and (depth or tokens.word not in (*_AFTER_REFERENCES, ",")):
            depth += (tokens.word == "(") - (tokens.word == ")")
            tokens.advance()
        if not tokens.accept(","):
            break
    return found


def _begin(tokens: _Tokens, verb: str) -> Statement:
    if verb == "START" and not tokens.accept("TRANSACTION"):
        return Statement(StatementKind.OTHER, verb)
    return Statement(StatementKind.BEGIN, verb)


def _commit(_tokens: _Tokens, verb: str) -> Statement:
    return Statement(StatementKind.COMMIT, verb)


def _rollback(tokens: _Tokens, verb: str) -> Statement:
    tokens.accept("WORK")
    if not tokens.accept("TO"):
        return Statement(StatementKind.ROLLBACK, verb)
    tokens.accept("SAVEPOINT")
    return Statement(StatementKind.ROLLBACK_TO, verb, name=tokens.identifier())


def _savepoint(tokens: _Tokens, verb: str) -> Statement:
    return Statement(StatementKind.SAVEPOINT, verb, name=tokens.identifier())


def _release(tokens: _Tokens, verb: str) -> Statement:
    if not tokens.accept("SAVEPOINT"):
        return Statement(StatementKind.OTHER, verb)
    return Statement(StatementKind.RELEASE_SAVEPOINT, verb, name=tokens.identifier())


_XA = {
    "START": StatementKind.XA_START,
    "BEGIN": StatementKind.XA_START,
    "END": StatementKind.XA_END,
    "PREPARE": StatementKind.XA_PREPARE,
    "COMMIT": StatementKind.XA_COMMIT,
    "ROLLBACK": StatementKind.XA_ROLLBACK,
}
_XID_PART = r"""0x(?:[0-9a-f]{2})++ | x'(?:[0-9a-f]{2})*+' | '(?:[^']++|'')*+' | "(?:[^"]++|"")*+" """
_XID = re.compile(
    rf"(?P<gtrid>{_XID_PART}) (?:\s*,\s*(?P<bqual>{_XID_PART}))? (?:\s*,\s*(?P<format>\d+))? "
    r"(?P<one_phase>\s+ONE\s+PHASE)?",
    re.IGNORECASE | re.VERBOSE,
)


def _xa(tokens: _Tokens, verb: str) -> Statement:
    kind = _XA.get(tokens.word)
    if kind is None:
        return Statement(StatementKind.OTHER, verb)
    tokens.advance()
    text = tokens.rest()
    xid = _XID.match(text)
    if xid is None:
        return Statement(kind, verb, name=text)
    gtrid, bqual = _xid_part(xid["gtrid"]), _xid_part(xid["bqual"] or "''")
    name = xid_text(int(xid["format"] or 1), gtrid, bqual)
    return Statement(kind, verb, name=name, one_phase=xid["one_phase"] is not None)


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> str:
    """Write an XID in the one form in which it can be compared, which is that of MySQL's own logs."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


def _xid_part(literal: str) -> bytes:
    """Read one part of an XID: ``X'6162'``, ``0x6162`` or ``'ab'``."""
    if literal[:2] in {"0x", "0X"}:
        return bytes.fromhex(literal[2:])
    if literal[0] in "xX":
        return bytes.fromhex(literal[2:-1])
    return encode_text(literal[1:-1].replace(literal[0] * 2, literal[0]))


_CONTROL = {
    "BEGIN": _begin,
    "START": _begin,
    "COMMIT": _commit,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _release,
    "XA": _xa,
}


def _ddl(tokens: _Tokens, verb: str) -> Statement:
    """Read a DDL statement from after its verb."""
    if verb == "TRUNCATE":
        tokens.accept("TABLE")
        return _table_statement(verb, tokens.table_names())
    if verb == "RENAME":
        return _rename(tokens, verb)
    temporary = False
    while tokens.word in _TABLE_MODIFIERS:
        temporary = temporary or tokens.word == "TEMPORARY"
        tokens.advance()
    if tokens.accept("TABLE", "TABLES"):
        return _table_ddl(tokens, verb, temporary=temporary)
    while tokens.word in _INDEX_MODIFIERS:
        tokens.advance()
    return _schema_ddl(tokens, verb)


def _table_ddl(tokens: _Tokens, verb: str, *, temporary: bool) -> Statement:
    tokens.skip_existence()
    if verb == "CREATE":
        return _create_table(tokens, temporary=temporary)
    if verb == "ALTER":
        return _alter_table(tokens)
    return _table_statement(verb, tokens.table_names(), temporary=temporary)


def _schema_ddl(tokens: _Tokens, verb: str) -> Statement:
    """Read a DDL statement about anything but a table."""
    if tokens.accept("DATABASE", "SCHEMA"):
        tokens.skip_existence()
        return Statement(StatementKind.DDL, verb, object_type="DATABASE", database=tokens.identifier())
    if tokens.accept("SEQUENCE"):
        tokens.skip_existence()
        return Statement(StatementKind.DDL, verb, object_type="SEQUENCE", tables=tokens.table_names())
    if tokens.accept("INDEX"):
        while tokens.token is not None and not tokens.accept("ON"):
            tokens.advance()
        table = tokens.table_name()
        tables = () if table is None else (table,)
        return Statement(StatementKind.DDL, verb, object_type="INDEX", tables=tables)
    return Statement(StatementKind.DDL, verb, object_type=_other_object(tokens))


def _other_object(tokens: _Tokens) -> str | None:
    """Name what a DDL statement is about that is neither table nor database nor index."""
    first = tokens.word
    if first not in {"DEFINER", "ALGORITHM", "SQL", "AGGREGATE"}:
        return first or None
    while tokens.token is not None:
        if tokens.word in _ROUTINES:
            return tokens.word
        tokens.advance()
    return first


def _table_statement(verb: str, tables: tuple[TableName, ...], *, temporary: bool = False) -> Statement:
    return Statement(StatementKind.DDL, verb, object_type="TABLE", tables=tables, temporary=temporary)


def _rename(tokens: _Tokens, verb: str) -> Statement:
    if not tokens.accept("TABLE", "TABLES"):
        return Statement(StatementKind.DDL, verb, object_type=tokens.word or None)
    tokens.skip_existence()
    renames = []
    while old := tokens.table_name():
        while tokens.token is not None and not tokens.accept("TO"):
            tokens.advance()
        new = tokens.table_name()
        if new is None:
            break
        renames.append((old, new))
        if len(renames) == _MAX_NAMES or not tokens.accept(","):
            break
    tables = tuple(name for pair in renames for name in pair)
    return Statement(StatementKind.DDL, verb, object_type="TABLE", tables=tables, renames=tuple(renames))


def _create_table(tokens: _Tokens, *, temporary: bool) -> Statement:
    name = tokens.table_name()
    tables = () if name is None else (name,)
    depth = int(tokens.accept("("))
    source = tokens.table_name() if tokens.accept("LIKE") else None
    return Statement(
        StatementKind.DDL,
        "CREATE",
        object_type="TABLE",
        tables=tables,
        source=source,
        changes=tables if not temporary and _has_query(tokens, depth) else (),
        temporary=temporary,
    )


def _has_query(tokens: _Tokens, depth: int) -> bool:
    """Return whether a query follows the definition of a table, whose rows it gets."""
    if tokens.word in _QUERY:
        return tokens.word != "WITH" or depth > 0
    while tokens.token is not None:
        if tokens.word == "SELECT" or (depth == 0 and tokens.word in ("VALUES", "TABLE")):
            return True
        depth += (tokens.word == "(") - (tokens.word == ")")
        tokens.advance()
    return False


def _alter_table(tokens: _Tokens) -> Statement:
    name = tokens.table_name()
    if name is None:
        return _table_statement("ALTER", ())
    tables = [name]
    renames = []
    depth = 0
    while tokens.token is not None and len(tables) < _MAX_NAMES:
        word = tokens.word
        tokens.advance()
        if word in {"(", ")"}:
            depth += 1 if word == "(" else -1
        elif depth == 0 and word == "RENAME" and tokens.word not in {"COLUMN", "INDEX", "KEY", "CONSTRAINT"}:
            tokens.accept("TO", "AS", "=")
            new = tokens.table_name()
            if new is not None:
                renames.append((name, new))
                tables.append(new)
        elif depth == 0 and word == "WITH" and tokens.accept("TABLE"):
            exchanged = tokens.table_name()
            if exchanged is not None:
                tables.append(exchanged)
    return Statement(
        StatementKind.DDL, "ALTER", object_type="TABLE", tables=tuple(tables), renames=tuple(renames)
    )
