"""A database server as the checks see it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from millrace.avro.service_state import ReaderState
from millrace.binlog.names import quoted_name
from millrace.binlog.server_version import ServerVersion
from millrace.mysql.checks import replicas
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import ProtocolError
from millrace.mysql.status import LogFile, binary_logs
from millrace.rowmapper.settings import RowMapperSettings
from millrace.text import shortened

_TABLES = """
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, ENGINE AS engine FROM information_schema.TABLES
    WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
    AND TABLE_SCHEMA NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')
"""
_COLUMNS = """
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, COLUMN_NAME AS name, DATA_TYPE AS type
    FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')
"""
_KEYED = """
    SELECT DISTINCT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table` FROM information_schema.COLUMNS
    WHERE COLUMN_KEY = 'PRI'
"""
"""So it is of a unique key that stands in for a primary key."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a user of the server."""

    database: str
    table: str
    engine: str
    keyed: bool

    @property
    def name(self) -> str:
        """As in messages."""
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """As in statements."""
        return quoted_name(self.database, self.table)


@dataclass
class Server:
    """An open connection, what the settings say, and where the reader stands if it ever ran."""

    connection: MysqlConnection
    server_id: int
    """Ours, as a replica."""
    replica_name: str
    """By which the server's list of replicas has us."""
    allow_statements: bool = False
    include_query: bool = False
    semi_sync: bool = False
    start: str = "earliest"
    """Where the reader begins the first time."""
    one_of_several: bool = False
    """Whether the reader may read another server of the topology just as well."""
    source: str = ""
    """The source's name, the prefix of its topics."""
    topic_named: Callable[[str], tuple[str, str] | None] = lambda _name: None
    """Returns the database and table in a topic's name, if a rule renames the table."""
    rules: RowMapperSettings | None = None
    """The settings that say what row topics have; None where they are not there."""
    topics: frozenset[str] = frozenset()
    """Names of all topics of the cluster."""
    state: ReaderState | None = None

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """All global system variables."""
        return self.connection.all_variables()

    @cached_property
    def tables(self) -> list[Table]:
        """All tables that our user may see, but those of the server itself."""
        doing = "list the tables"
        keyed = {
            (row.text("database"), row.text("table")) for row in self.connection.query(_KEYED, doing=doing)
        }
        found = (
            (row.text("database"), row.text("table"), row.text("engine"))
            for row in self.connection.query(_TABLES, doing=doing)
        )
        return sorted(
            (Table(database, table, engine, (database, table) in keyed) for database, table, engine in found),
            key=lambda table: table.name,
        )

    @cached_property
    def columns(self) -> dict[tuple[str, str], dict[str, str]]:
        """The columns of these tables, with the names of their types, by database and table."""
        found: dict[tuple[str, str], dict[str, str]] = {
            (table.database, table.table): {} for table in self.tables
        }
        for row in self.connection.query(_COLUMNS, doing="list the columns"):
            of_table = found.get((row.text("database"), row.text("table")))
            if of_table is not None:
                of_table[row.text("name")] = row.text("type")
        return found

    @cached_property
    def replicas(self) -> dict[int, str]:
        """The replicas that are connected: their names by server id. Raises where we may not see them."""
        return {number: host for number, _, host in replicas(self.connection)}

    @cached_property
    def logs(self) -> list[LogFile]:
        """The binary log files, oldest first."""
        return binary_logs(self.connection)

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB."""
        return self.connection.flavour is Flavour.MARIADB

    @property
    def version(self) -> tuple[int, ...]:
        """The numbers of its version: (8, 0, 15)."""
        return ServerVersion.parse(self.connection.version).version

    def is_on(self, variable: str) -> bool:
        """Whether a variable is there and on."""
        return self.variables.get(variable) in {"ON", "1", "YES"}

    def amount(self, variable: str) -> float | None:
        """Return a variable that is a number, maybe with a fraction; None where there is no such variable."""
        value = self.variables.get(variable)
        try:
            return float(value) if value else None
        except ValueError:
            raise ProtocolError(
                f"{self.connection.address}: {variable} is {shortened(repr(value), 60)}, expected a number"
            ) from None

    def number(self, variable: str) -> int | None:
        """Return a variable that is a whole number; None where there is no such variable."""
        amount = self.amount(variable)
        if amount is None:
            return None
        return int(amount) if math.isfinite(amount) else 0
