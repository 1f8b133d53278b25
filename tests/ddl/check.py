"""Executes statements, reads them from the log, and compares what they make with the server's catalogue."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

import pymysql

from millrace.binlog import StreamState, decode_file
from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.events import FormatDescriptionEvent, QueryCompressedEvent, QueryEvent
from millrace.binlog.statement import classify
from millrace.binlog.table import IndexDefinition, TableDefinition
from millrace.ddl import MISSING, Server, State, Unknown, apply
from millrace.local import MariaDB, MySQL
from millrace.mysql.catalog import read_definition
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.status import log_status
from millrace.rowmapper.session import DEFINING, defining_statement, is_on_temporary_table
from tests.ddl.grammar import DATABASE, Grammar, Made
from tests.ddl.tables import Tables
from tests.ddl_text import brief

MODES = (
    "",
    "ANSI_QUOTES",
    "NO_BACKSLASH_ESCAPES",
    "REAL_AS_FLOAT",
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
    "STRICT_TRANS_TABLES",
)
_TRIES = 200
_ENDED = (0, 2006, 2013)
NAMES = ("utf8mb4", "utf8mb4", "latin1", "gbk")


@dataclass
class Executed:
    """A statement that the server took: where the log ends after it, and the tables that it names, then."""

    made: Made
    session: str
    position: int
    truth: dict[str, TableDefinition | None]


@dataclass
class Figures:
    """What came of statements."""

    refused: int = 0
    equal: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return self.equal + self.unknown.total() + len(self.wrong)

    def __str__(self) -> str:
        return (
            f"{self.accepted + self.refused} statements, {self.accepted} accepted, {self.equal} equal, "
            f"{self.unknown.total()} not understood, {len(self.wrong)} wrong"
        )


def run(server: MySQL | MariaDB, count: int, seed: int) -> Figures:
    """Execute statements until the server has taken ``count``, and compare."""
    figures = Figures()
    chance = random.Random(seed)
    server.execute(
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE} CHARSET utf8mb4",
        "FLUSH BINARY LOGS",
    )
    with MysqlConnection(server.root_address) as catalog:
        begin = log_status(catalog)
        executed = list(_execute(server, catalog, chance, count, figures))
        end = log_status(catalog)
    assert begin.log_file == end.log_file, "the log was rotated"
    _compare(server, begin.log_file, begin.position, executed, figures)
    server.execute(f"DROP DATABASE {DATABASE}")
    return figures


def run_one_by_one(server: MySQL | MariaDB, statements: Sequence[Sequence[str]]) -> tuple[Figures, list[str]]:
    """Execute groups of statements, each in a new database, and compare table t after each that is taken.

    A group ends with the first that is refused; those are returned as well.
    """
    figures, refused = Figures(), []
    for group in statements:
        server.execute(
            f"DROP DATABASE IF EXISTS {DATABASE}",
            f"CREATE DATABASE {DATABASE} CHARSET utf8mb4",
            "FLUSH BINARY LOGS",
        )
        with (
            MysqlConnection(server.root_address) as catalog,
            closing(server.connect(database=DATABASE, charset="utf8mb4")) as session,
            session.cursor() as cursor,
        ):
            begin = log_status(catalog)
            cursor.execute("SET sql_mode = ''")
            executed = []
            for statement in group:
                try:
                    cursor.execute(statement)
                except pymysql.MySQLError as error:
                    refused.append(f"{statement}: {error}")
                    break
                truth = {"t": read_definition(catalog, DATABASE, "t")}
                executed.append(Executed(Made(statement, ("t",)), "", log_status(catalog).position, truth))
            _compare(server, begin.log_file, begin.position, executed, figures)
    server.execute(f"DROP DATABASE {DATABASE}")
    return figures, refused


def _execute(
    server: MySQL | MariaDB, catalog: MysqlConnection, chance: random.Random, count: int, figures: Figures
) -> Iterator[Executed]:
    ((version,),) = server.query("SELECT VERSION()")
    parsed = Server.parse(version)
    grammar = Grammar(chance, parsed.mariadb, parsed.version)
    left = count
    while left:
        mode, names = chance.choice(MODES), chance.choice(NAMES)
        timestamps = chance.randrange(2)
        grammar.ansi, grammar.plain_backslash = "ANSI" in mode, "NO_BACK" in mode
        grammar.ascii_only, grammar.temporary = names != "utf8mb4", None
        with closing(server.connect(database=DATABASE, charset=names)) as session, session.cursor() as cursor:
            cursor.execute(f"SET sql_mode = '{mode}'")
            with suppress(pymysql.MySQLError):
                cursor.execute(f"SET explicit_defaults_for_timestamp = {timestamps}")
            if parsed.mariadb:
                cursor.execute("SET binlog_format = 'MIXED'")
            for _ in range(min(left, chance.randrange(5, 40))):
                made = _take(cursor, grammar, figures)
                if made is None:
                    break
                truth = {name: read_definition(catalog, DATABASE, name) for name in made.tables}
                for name, definition in truth.items():
                    grammar.tables.pop(name, None)
                    if definition is not None:
                        grammar.tables[name] = definition
                yield Executed(made, f"{names}, {mode}, {timestamps}", log_status(catalog).position, truth)
                left -= 1


def _take(cursor: "pymysql.cursors.Cursor", grammar: Grammar, figures: Figures) -> Made | None:
    """Make statements until the server takes one; None where the server has ended the session."""
    for _ in range(_TRIES):
        made = grammar.one()
        try:
            cursor.execute(made.text)
        except (pymysql.err.InterfaceError, pymysql.err.OperationalError) as error:
            figures.refused += 1
            if error.args[0] in _ENDED:
                return None
        except (pymysql.MySQLError, UnicodeEncodeError):
            figures.refused += 1
        else:
            return made
    return None


def _compare(
    server: MySQL | MariaDB, log_file: str, position: int, executed: list[Executed], figures: Figures
) -> None:
    known = Tables()
    known[DATABASE, ""] = TableDefinition(DATABASE, "", (), charset="utf8mb4")
    path = server.data_folder / log_file
    waiting = iter(executed)
    current = next(waiting, None)
    version = None
    with path.open("rb") as stream:
        for at, decoded in decode_file(stream, log_file, state=StreamState()):
            while current is not None and at >= current.position:
                _settle(known, current, figures)
                current = next(waiting, None)
            event = decoded.event
            if isinstance(event, FormatDescriptionEvent):
                version = event.server_version
            elif (
                at >= position
                and isinstance(event, QueryEvent | QueryCompressedEvent)
                and classify(event.query).verb in DEFINING
            ):
                if is_on_temporary_table(classify(event.query), decoded.header.flags):
                    continue
                text, session, whole = defining_statement(event, version, None, decoded.header.flags)
                known.put(apply(text, session, known, whole=whole))
    while current is not None:
        _settle(known, current, figures)
        current = next(waiting, None)


def _comparable(state: State) -> str:
    """Describe a table, without prefixes that MariaDB does not show as they are.

    In unique keys it shows one of 8 for a hash of all of a text or geometry. In a primary key it shows none
    for 4 bytes of a geometry.
    """
    if not isinstance(state, TableDefinition):
        return brief(state)
    short = {one.name for one in state.columns if one.column_type.startswith(("char", "var", "bin"))}

    def whole(index: IndexDefinition) -> IndexDefinition:
        return replace(index, parts=tuple((name, prefix * (name in short)) for name, prefix in index.parts))

    columns = tuple(
        replace(one, key_prefix=0) if one.column_type in GEOMETRY_TYPES and one.key_prefix == 4 else one
        for one in state.columns
    )
    return brief(replace(state, columns=columns, indexes=tuple(map(whole, state.indexes))))


def _settle(known: Tables, current: Executed, figures: Figures) -> None:
    """Compare what is known of the tables of a statement with the server's, and go on from the server's."""
    different = []
    for name, truth in current.truth.items():
        state = known.get((DATABASE, name), MISSING)
        wanted: State = MISSING if truth is None else truth
        if isinstance(state, Unknown):
            figures.unknown[f"{state.reason}: {current.made.text}"] += 1
            break
        if _comparable(state) != _comparable(wanted):
            different.append(f"  {name}\n    ours   {brief(state)}\n    theirs {brief(wanted)}")
    else:
        if different:
            figures.wrong.append("\n".join([f"{current.made.text}   [{current.session}]", *different]))
        else:
            figures.equal += 1
    known.put(
        {(DATABASE, name): MISSING if truth is None else truth for name, truth in current.truth.items()}
    )
