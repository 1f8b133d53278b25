"""Statements as people write them, and as servers take them: a weighted grammar of both servers' DDL.

What a statement says of tables that exist fits them, so that most are accepted. Names and quotes vary.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.binlog.table import ColumnDefinition, TableDefinition

DATABASE = "ddl_random"

PLAIN = ("a", "b", "c", "id", "name", "amount", "created_at", "note", "qty", "ref")
ODD = (
    *(
        "status",
        "type",
        "position",
        "vector",
        "value",
        "date",
        "comment",
        "first",
        "key",
        "select",
        "Name",
        "ID",
    ),
    *(
        "straße",
        "strasse",
        "é",
        "e",
        "Ünder",
        "a b",
        "back`tick",
        "a,b",
        "ends\\",
        "x)",
        "it's",
        "日本",
        "$d",
    ),
)
TABLES = ("t1", "t2", "t3", "T_Four", "order", "tab`le")
CHARSETS = (
    *("utf8mb4",) * 8,
    *("utf8mb3",) * 4,
    *("latin1",) * 4,
    *("ascii", "binary", "ucs2", "gbk", "cp1251"),
)
"""Those that people write, and then more often."""
COLLATIONS = (
    "utf8mb4_bin",
    "utf8mb4_general_ci",
    "latin1_bin",
    "latin1_swedish_ci",
    "binary",
    "utf8mb4_unicode_ci",
)
INTEGERS = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "INT8", "MIDDLEINT")


@dataclass
class Made:
    """A statement, and the tables whose definition it may change."""

    text: str
    tables: tuple[str, ...] = ()


@dataclass
class Grammar:
    """Makes statements from chance; ``tables`` are those that exist, as the server has them."""

    chance: random.Random
    mariadb: bool
    version: tuple[int, ...]
    ansi: bool = False
    plain_backslash: bool = False
    ascii_only: bool = False
    tables: dict[str, TableDefinition] = field(default_factory=dict)
    temporary: str | None = None

    def one(self) -> Made:
        """Make a statement."""
        if not self.tables:
            return self.create()
        makers: list[tuple[int, Callable[[], Made]]] = [
            (60, self.alter),
            (18, self.create),
            (3, self.create_like),
            (5, self.create_index),
            (3, self.drop_index),
            (3, self.rename),
            (4, self.drop),
            (3, self.temporary_table),
            (1, self.truncate),
        ]
        return self.pick(makers)()

    # -- chance

    def pick(self, weighted: Sequence[tuple[int, Callable[[], Made]]]) -> Callable[[], Made]:
        weights, makers = zip(*weighted, strict=True)
        return self.chance.choices(makers, weights)[0]

    def maybe(self, text: str, probability: float = 0.3) -> str:
        return text if self.chance.random() < probability else ""

    def any_of(self, *texts: str) -> str:
        return self.chance.choice(texts)

    # -- names and spaces

    def quoted(self, name: str) -> str:
        """Write a name; without quotes only where that is the same."""
        simple = name in (
            *PLAIN,
            *TABLES[:4],
            "status",
            "Name",
            "ID",
            "comment",
            "date",
            "type",
            "value",
            "position",
        )
        if simple and self.chance.random() < 0.6:
            return name
        if self.ansi and self.chance.random() < 0.6:
            return '"' + name.replace('"', '""') + '"'
        return "`" + name.replace("`", "``") + "`"

    def string(self, text: str) -> str:
        if not self.plain_backslash:
            text = text.replace("\\", "\\\\")
        if not self.ansi and '"' not in text and self.chance.random() < 0.2:
            return f'"{text}"'
        return "'" + text.replace("'", "''") + "'"

    def dressed(self, text: str) -> str:
        """Vary case and add comments between the words of a statement that has neither."""
        gap = self.chance.random()
        if gap < 0.06:
            text = "/* it's */ " + text
        elif gap < 0.10:
            text = text + self.any_of(" -- it's", " # `", ' /* " */')
        elif gap < 0.13:
            text = text.replace(" ", "\n\t", 2)
        elif gap < 0.16:
            text = text.replace(" ", "/**/ ", 1)
        return text

    def table(self) -> str:
        return self.chance.choice(sorted(self.tables))

    def table_name(self, name: str) -> str:
        return self.maybe(f"{DATABASE}.", 0.15) + self.quoted(name)

    def new_table(self) -> str:
        free = [name for name in TABLES if name not in self.tables]
        return self.chance.choice(free or list(TABLES))

    def new_column(self, taken: set[str]) -> str:
        names = PLAIN if self.chance.random() < 0.6 else ODD
        if self.ascii_only:
            names = tuple(name for name in names if name.isascii())
        free = [name for name in names if name not in taken]
        return self.chance.choice(free) if free else f"c{self.chance.randrange(1000)}"

    def column_of(self, table: str) -> ColumnDefinition:
        return self.chance.choice(
            [one for one in self.tables[table].columns if not one.name.startswith("row_")]
        )

    # -- types

    def type(self) -> str:
        """Write a type with its attributes."""
        makers = (
            (20, self._integer),
            (6, self._decimal),
            (4, self._real),
            (22, self._text),
            (8, self._bytes),
            (14, self._time),
            (10, self._list),
            (3, self._other),
        )
        weights, chosen = zip(*makers, strict=True)
        return self.chance.choices(chosen, weights)[0]()

    def _integer(self) -> str:
        width = self.maybe(f"({self.chance.randrange(0, 20)})", 0.2)
        name = self.any_of(*INTEGERS) + width
        return self.any_of(name, name, name, "BOOL", "BOOLEAN") if not width else self._signed(name)

    def _signed(self, name: str) -> str:
        return name + self.maybe(" UNSIGNED") + self.maybe(" ZEROFILL", 0.05)

    def _decimal(self) -> str:
        name = self.any_of("DECIMAL", "DEC", "NUMERIC", "FIXED")
        precision = self.chance.randrange(1, 66)
        scale = self.chance.randrange(0, min(precision, 30) + 1)
        return self._signed(name + self.any_of("", f"({precision})", f"({precision},{scale})"))

    def _real(self) -> str:
        return self._signed(
            self.any_of(
                "FLOAT",
                "DOUBLE",
                "REAL",
                "DOUBLE PRECISION",
                "FLOAT(24)",
                "FLOAT(25)",
                "FLOAT(7,3)",
                "DOUBLE(9,2)",
            )
        )

    def _charset(self) -> str:
        kind = self.chance.random()
        if kind < 0.7:
            return ""
        if kind < 0.85:
            return self.any_of(" CHARACTER SET ", " CHARSET ") + self.any_of(*CHARSETS)
        return " COLLATE " + self.any_of(*COLLATIONS)

    def _text(self) -> str:
        length = self.any_of("1", "10", "20", "255", "300")
        name = self.any_of(
            f"VARCHAR({length})",
            f"VARCHAR({length})",
            f"VARCHAR({length})",
            "CHAR",
            f"CHAR({self.chance.randrange(0, 30)})",
            "TEXT",
            "TEXT",
            f"TEXT({self.any_of('0', '10', '300', '70000')})",
            "TINYTEXT",
            "MEDIUMTEXT",
            "LONGTEXT",
            "LONG",
            "LONG VARCHAR",
            "LONG VARCHARACTER",
            f"CHARACTER VARYING({length})",
            f"VARCHARACTER({length})",
            f"CHAR VARYING({length})",
        )
        if self.chance.random() < 0.04:
            return self.any_of(
                "NCHAR(5)", "NATIONAL CHAR(6)", "NVARCHAR(7)", "NATIONAL VARCHAR(8)", "NCHAR VARYING(5)"
            )
        return name + self._charset()

    def _bytes(self) -> str:
        return self.any_of(
            "BINARY",
            "BINARY(4)",
            "BINARY(0)",
            "VARBINARY(20)",
            "VARBINARY(300)",
            "BLOB",
            "BLOB(10)",
            "BLOB(70000)",
            "TINYBLOB",
            "MEDIUMBLOB",
            "LONGBLOB",
            "LONG VARBINARY",
            "BIT",
            "BIT(1)",
            "BIT(17)",
            "CHAR(4) BYTE",
        )

    def _time(self) -> str:
        digits = self.any_of("", "", "(0)", "(1)", "(3)", "(6)")
        return self.any_of(
            "DATE", "YEAR", "YEAR(4)", f"TIME{digits}", f"DATETIME{digits}", f"TIMESTAMP{digits}"
        )

    def _list(self) -> str:
        pool = ["x", "y", "zed", "it's", "a b", "B"] + ([] if self.ascii_only else ["ä", "日"])
        members = self.chance.sample(pool, self.chance.randrange(1, 4))
        written = [self.string(member) for member in members]
        if self.chance.random() < 0.05:
            written[0] = self.any_of("0x61", "x'78'", "_utf8mb4'q'")
        return f"{self.any_of('ENUM', 'SET')}({','.join(written)})" + self._charset()

    def _other(self) -> str:
        both = ["JSON", "GEOMETRY", "POINT", "LINESTRING", "GEOMETRYCOLLECTION"]
        if self.mariadb:
            both += ["INET6", "UUID"]
        return self.chance.choice(both)

    # -- columns

    def attributes(self, written: str) -> str:
        """Write what follows a type."""
        upper = written.upper()
        parts = [self.maybe(self.any_of(" NOT NULL", " NULL"), 0.45)]
        timed = upper.startswith(("DATETIME", "TIMESTAMP"))
        kind = self.chance.random()
        if kind < 0.25:
            parts.append(" DEFAULT " + self._default(upper))
        elif kind < 0.3 and timed:
            digits = upper.partition("(")[2].partition(")")[0]
            parts.append(f" DEFAULT CURRENT_TIMESTAMP({digits})" if digits else " DEFAULT CURRENT_TIMESTAMP")
        if self.chance.random() < 0.1:
            parts.append(" COMMENT " + self.string("it's (a) comment, with `all`"))
        if self.mariadb and self.version >= (10, 3):
            parts.append(self.maybe(" INVISIBLE", 0.03))
        if not self.mariadb and self.version >= (8, 0, 23):
            parts.append(self.maybe(" INVISIBLE", 0.03))
        parts.append(self.maybe(self.any_of(" UNIQUE", " UNIQUE KEY"), 0.05))
        return "".join(parts)

    def _default(self, upper: str) -> str:
        if upper.startswith(
            ("INT", "TINY", "SMALL", "MED", "BIG", "DEC", "NUM", "FIXED", "FLOAT", "DOUBLE", "REAL")
        ):
            return self.any_of(
                "0", "1", "NULL", "'1'", ".5", "-.25" if "UNSIGNED" not in upper else "2", "1e1", "0x10"
            )
        if upper.startswith(("BOOL", "BIT")):
            return self.any_of("0", "1", "b'1'", "NULL")
        if upper.startswith(("VAR", "CHAR", "NCHAR", "NATIONAL")):
            return self.any_of(self.string("x"), self.string(""), "NULL", "_latin1'q'", "_utf8mb4'0'", "7")
        if upper.startswith("DATE"):
            return self.any_of("'2024-02-29'", "NULL", "20240229")
        if upper.startswith("YEAR"):
            return self.any_of("2000", "'70'", "NULL")
        return "NULL"

    def column(self, name: str, *, keys: bool = True) -> str:
        """Write a column."""
        kind = self.chance.random()
        if keys and kind < 0.03:
            return f"{self.quoted(name)} SERIAL"
        if keys and kind < 0.07:
            return f"{self.quoted(name)} INT" + self.any_of(
                " PRIMARY KEY", " AUTO_INCREMENT PRIMARY KEY", " KEY", " UNIQUE PRIMARY KEY"
            )
        if kind < 0.09:
            how = self.any_of(" STORED", " VIRTUAL", "")
            return f"{self.quoted(name)} INT {self.any_of('GENERATED ALWAYS AS', 'AS')} (1 + 1){how}"
        written = self.type()
        return f"{self.quoted(name)} {written}{self.attributes(written)}"

    def index(self, names: Sequence[str], kinds: Sequence[str] = ()) -> str:
        """Write an index over some of these columns."""
        kind = self.any_of(
            *(kinds or ("PRIMARY KEY", "UNIQUE", "UNIQUE KEY", "UNIQUE INDEX", "INDEX", "KEY", "KEY"))
        )
        chosen = self.chance.sample(list(names), min(len(names), self.chance.randrange(1, 3)))
        parts = [
            self.quoted(name)
            + self.maybe(f"({self.chance.randrange(1, 6)})", 0.15)
            + self.maybe(" DESC", 0.1)
            for name in chosen
        ]
        constraint = ""
        named = (
            ""
            if kind == "PRIMARY KEY"
            else self.maybe(" " + self.quoted(self.any_of("ix", "uq", "type", "k_1")), 0.4)
        )
        if kind.startswith(("PRIMARY", "UNIQUE")):
            constraint = self.maybe("CONSTRAINT " + self.maybe("con ", 0.5), 0.15)
        using = self.maybe(self.any_of(" USING HASH", " USING BTREE"), 0.08)
        return f"{constraint}{kind}{named} ({', '.join(parts)}){using}"

    def options(self) -> str:
        kind = self.chance.random()
        engine = self.maybe(" ENGINE=" + self.any_of("InnoDB", "MyISAM", "innodb"), 0.2)
        if kind < 0.65:
            return engine
        if kind < 0.85:
            return (
                engine
                + self.any_of(" DEFAULT CHARSET=", " CHARACTER SET ", " CHARSET ")
                + self.any_of(*CHARSETS)
            )
        return engine + " COLLATE " + self.any_of(*COLLATIONS)

    # -- statements

    def create(self) -> Made:
        name = self.new_table()
        taken: set[str] = set()
        for _ in range(self.chance.choice((1, 2, 3, 3, 4, 6))):
            taken.add(self.new_column(taken))
        columns = [self.column(one) for one in self.chance.sample(sorted(taken), len(taken))]
        columns += [self.index(sorted(taken)) for _ in range(self.chance.choice((0, 0, 1, 1, 2)))]
        verb = "CREATE TABLE"
        if self.mariadb and self.chance.random() < 0.15:
            name = self.any_of(name, *self.tables) if self.tables else name
            verb = "CREATE OR REPLACE TABLE"
        versioned = self.maybe(" WITH SYSTEM VERSIONING", 0.04) if self.mariadb else ""
        text = f"{verb} {self.table_name(name)} ({', '.join(columns)}){self.options()}{versioned}"
        return Made(self.dressed(text), (name,))

    def create_like(self) -> Made:
        name = self.new_table()
        return Made(f"CREATE TABLE {self.table_name(name)} LIKE {self.table_name(self.table())}", (name,))

    def create_index(self) -> Made:
        name = self.table()
        column = self.quoted(self.column_of(name).name) + self.maybe("(3)", 0.2)
        kind = self.any_of("UNIQUE ", "", "")
        index = self.quoted(self.any_of("ix", "uq", "type"))
        return Made(f"CREATE {kind}INDEX {index} ON {self.table_name(name)} ({column})", (name,))

    def drop_index(self) -> Made:
        name = self.table()
        indexes = [index.name for index in self.tables[name].indexes] or ["ix"]
        return Made(
            f"DROP INDEX {self.quoted(self.chance.choice(indexes))} ON {self.table_name(name)}", (name,)
        )

    def rename(self) -> Made:
        old, new = self.table(), self.new_table()
        if self.temporary is not None:  # no flag of the log tells that MariaDB renames the temporary one
            return self.alter()
        if self.chance.random() < 0.4 and len(self.tables) > 1:
            first, second = self.chance.sample(sorted(self.tables), 2)
            names = [(first, "swapped"), (second, first), ("swapped", second)]
            pairs = ", ".join(f"{self.table_name(a)} TO {self.table_name(b)}" for a, b in names)
            return Made(f"RENAME TABLE {pairs}", (first, second))
        return Made(f"RENAME TABLE {self.table_name(old)} TO {self.table_name(new)}", (old, new))

    def drop(self) -> Made:
        name = self.table()
        return Made(f"DROP TABLE {self.maybe('IF EXISTS ')}{self.table_name(name)}", (name,))

    def truncate(self) -> Made:
        name = self.table()
        return Made(f"TRUNCATE {self.maybe('TABLE ')}{self.table_name(name)}", (name,))

    def temporary_table(self) -> Made:
        """Make, alter or drop a temporary table that has the name of a permanent one."""
        name = self.temporary
        if name is None or self.chance.random() < 0.2:
            self.temporary = None
            if name is not None:
                return Made(f"DROP TEMPORARY TABLE {self.table_name(name)}", (name,))
            self.temporary = name = self.table()
            return Made(f"CREATE TEMPORARY TABLE {self.table_name(name)} (a INT, b VARCHAR(10))", (name,))
        how = self.any_of("ADD c INT", "CHANGE a z BIGINT", "DROP b", "CONVERT TO CHARACTER SET latin1")
        return Made(f"ALTER TABLE {self.table_name(name)} {how}", (name,))

    def alter(self) -> Made:
        name = self.table()
        if name == self.temporary:
            return self.temporary_table()
        count = self.chance.choice((1, 1, 1, 2, 2, 3, 4))
        taken = {column.name for column in self.tables[name].columns}
        operations: list[str] = []
        touched: set[str] = set()
        for _ in range(count):
            operations += self._operation(name, taken, touched)
        converts = [one for one in operations if one.startswith("CONVERT")]
        if converts and not self.mariadb and self.version < (8, 0, 20):
            operations = converts  # with other alterations it may crash these versions
        moved: tuple[str, ...] = ()
        # MariaDB 11.4 leaves a table with a backtick in its name where it was.
        if self.chance.random() < 0.04 and "`" not in name:
            new = self.new_table()
            operations.append(f"RENAME {self.any_of('TO ', 'AS ', '')}{self.table_name(new)}")
            moved = (new,)
        text = f"ALTER TABLE {self.table_name(name)} {', '.join(operations)}"
        return Made(self.dressed(text), (name, *moved))

    def _place(self, name: str) -> str:
        kind = self.chance.random()
        if kind < 0.6:
            return ""
        return " FIRST" if kind < 0.75 else f" AFTER {self.quoted(self.column_of(name).name)}"

    def _operation(self, name: str, taken: set[str], touched: set[str]) -> list[str]:
        kind = self.chance.random()
        column = self.column_of(name).name
        written = self.quoted(column)
        word = self.maybe(" COLUMN", 0.5)
        if kind < 0.24:
            new = self.new_column(taken)
            taken.add(new)
            if self.chance.random() < 0.15:
                return [f"ADD{word} ({self.column(new)})"]
            return [f"ADD{word} {self.column(new)}{self._place(name)}"]
        if kind < 0.52 and column in touched:
            return []
        touched.add(column)
        if kind < 0.32:
            return [f"DROP{word} {written}"]
        if kind < 0.36:
            return [f"DROP{word} {written}", f"ADD{word} {self.column(column)}"]
        if kind < 0.45:
            return [f"MODIFY{word} {self.column(column, keys=False)}{self._place(name)}"]
        if kind < 0.52:
            new = self.new_column(taken)
            taken.add(new)
            if self._renames_columns and self.chance.random() < 0.5:
                return [f"RENAME COLUMN {written} TO {self.quoted(new)}"]
            return [f"CHANGE{word} {written} {self.column(new, keys=False)}{self._place(name)}"]
        if kind < 0.57:
            return [
                f"ALTER{word} {written} {self.any_of('DROP DEFAULT', 'SET DEFAULT 1', 'SET DEFAULT NULL')}"
            ]
        if kind < 0.68:
            return [f"ADD {self.index([one.name for one in self.tables[name].columns])}"]
        if kind < 0.73:
            return ["DROP PRIMARY KEY"]
        if kind < 0.79:
            indexes = [index.name for index in self.tables[name].indexes]
            return (
                [f"DROP {self.any_of('INDEX', 'KEY')} {self.quoted(self.chance.choice(indexes))}"]
                if indexes
                else []
            )
        if kind < 0.84:
            return [f"CONVERT TO CHARACTER SET {self.any_of(*CHARSETS)}" + self.maybe("", 0.1)]
        if kind < 0.89:
            return [
                self.any_of("DEFAULT CHARACTER SET ", "CHARSET=", "CHARACTER SET ") + self.any_of(*CHARSETS)
            ]
        if kind < 0.92:
            return [f"ENGINE={self.any_of('InnoDB', 'MyISAM')}"]
        if kind < 0.94:
            return [f"COMMENT={self.string('it is')}"]
        if kind < 0.96:
            return [f"ADD {self.maybe('CONSTRAINT chk ', 0.3)}CHECK (1 = 1)"]
        if kind < 0.98:
            return [self.any_of("ALGORITHM=COPY", "LOCK=DEFAULT", "FORCE", "ALGORITHM=DEFAULT")]
        return [f"ORDER BY {written}"]

    @property
    def _renames_columns(self) -> bool:
        return self.version >= ((10, 5) if self.mariadb else (8,))
