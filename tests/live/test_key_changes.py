"""A row topic folded as Kafka compacts it, by the bytes of keys, is its table, whatever is done to the key.

Tables, changes of their keys and changes of their rows are made at random from a seed. Each row has in ``v``
a number that no other change has written, so that a row of the fold is of the table where its number is.
"""

import io
import json
import random
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from urllib.request import Request, urlopen

import fastavro
import pytest
from pymysql import MySQLError

from millrace.avro.compatibility import WrittenKey
from millrace.avro.records import deserialize
from millrace.avro.registry import key_subject, split_wire_format
from millrace.avro.row_records import RowEncoder, table_schemas
from millrace.binlog import RowImages, RowsEvent, StreamState, decode_file, resolve_columns
from millrace.binlog.columns import AvroOptions
from millrace.binlog.errors import MissingStateError, UnrepresentableError
from millrace.binlog.table import ResolvedTable
from millrace.local import MariaDB
from millrace.mysql.catalog import read_definition
from millrace.mysql.connection import MysqlConnection

from .rows_world import RowsWorld, without_column_names

TYPES = {
    "TINYINT": lambda rng: rng.randint(-5, 5),
    "SMALLINT UNSIGNED": lambda rng: rng.randint(0, 9),
    "INT": lambda rng: rng.randint(-5, 5),
    "INT UNSIGNED": lambda rng: rng.randint(0, 9),
    "BIGINT": lambda rng: rng.randint(-5, 5),
    "BIGINT UNSIGNED": lambda rng: rng.randint(0, 9),
    "DECIMAL(8,2)": lambda rng: rng.randint(-500, 500) / 100,
    "DECIMAL(12,2)": lambda rng: rng.randint(-500, 500) / 100,
    "DECIMAL(12,4)": lambda rng: rng.randint(-500, 500) / 100,
    "FLOAT": lambda rng: rng.randint(-5, 5) / 2,
    "DOUBLE": lambda rng: rng.randint(-5, 5) / 2,
    "YEAR": lambda rng: rng.randint(2001, 2009),
    "BIT(4)": lambda rng: rng.randint(0, 9),
    "BIT(12)": lambda rng: rng.randint(0, 9),
    "DATE": lambda rng: f"'2024-02-0{rng.randint(1, 9)}'",
    "TIME": lambda rng: f"'10:00:0{rng.randint(1, 9)}'",
    "DATETIME": lambda rng: f"'2024-02-29 10:00:0{rng.randint(1, 9)}'",
    "DATETIME(6)": lambda rng: f"'2024-02-29 10:00:00.{rng.randint(1, 9)}5'",
    "TIMESTAMP(3)": lambda rng: f"'2024-02-29 10:00:00.{rng.randint(1, 9)}5'",
    "CHAR(3)": lambda rng: f"'{rng.choice('abä')}'",
    "VARCHAR(20)": lambda rng: f"'{rng.choice('abcä')}'",
    "VARCHAR(30) CHARACTER SET latin1": lambda rng: f"'{rng.choice('abcä')}'",
    "BINARY(3)": lambda rng: f"'{rng.choice('abc')}'",
    "BINARY(5)": lambda rng: f"'{rng.choice('abc')}'",
    "VARBINARY(9)": lambda rng: f"'{rng.choice('abc')}'",
    "TINYTEXT": lambda rng: f"'{rng.choice(['a', 'b', 'b ', 'ä'])}'",
    "TEXT CHARACTER SET latin1": lambda rng: f"'{rng.choice('abcä')}'",
    "BLOB": lambda rng: f"'{rng.choice('abc')}'",
    "ENUM('a','b')": lambda rng: f"'{rng.choice('ab')}'",
    "ENUM('a','b','c')": lambda rng: f"'{rng.choice('abc')}'",
    "SET('a','b')": lambda rng: f"'{rng.choice(['', 'a', 'b', 'a,b'])}'",
}

SAME_KEY = [
    ("TINYINT", "MODIFY {0} BIGINT"),
    ("SMALLINT", "MODIFY {0} INT"),
    ("INT", "MODIFY {0} BIGINT"),
    ("INT", "CHANGE {0} renamed BIGINT"),
    ("INT UNSIGNED", "RENAME COLUMN {0} TO renamed"),
    ("VARCHAR(10)", "MODIFY {0} VARCHAR(20)"),
    ("CHAR(10)", "MODIFY {0} VARCHAR(20)"),
    ("VARCHAR(9) CHARACTER SET latin1", "MODIFY {0} VARCHAR(9) CHARACTER SET utf8mb4"),
    ("ENUM('1','2','3')", "MODIFY {0} ENUM('1','2','3','4')"),
    ("ENUM('1','2','3')", "MODIFY {0} VARCHAR(9)"),
    ("DATETIME(3)", "MODIFY {0} DATETIME(6)"),
    ("YEAR", "MODIFY {0} INT"),
    ("SET('1','2','3')", "MODIFY {0} SET('1','x','2','3')"),
    ("INT", "ADD COLUMN more INT FIRST, ADD UNIQUE (v)"),
]
"""Changes after which each row has the key that it had."""


OTHER = [
    ("k INT PRIMARY KEY, c DECIMAL(8,2)", "'1.25'", "MODIFY c DECIMAL(12,4)"),
    ("k INT PRIMARY KEY, c DATE", "'2024-02-29'", "MODIFY c DATETIME"),
    ("k INT PRIMARY KEY, c TIMESTAMP(6)", "'2024-02-29 10:11:12'", "MODIFY c DATETIME(6)"),
    ("k INT PRIMARY KEY, c DECIMAL(38,2)", "'1.25'", "MODIFY c DECIMAL(40,2)"),
    ("k INT, c INT, PRIMARY KEY (k, c)", "1", "DROP PRIMARY KEY, ADD PRIMARY KEY (k)"),
    ("k INT PRIMARY KEY, c INT", "1", "DROP PRIMARY KEY"),
    ("k INT, c SET('a','b') PRIMARY KEY", "'a,b'", "MODIFY c SET('b','a')"),
    ("k INT, c VARCHAR(9) PRIMARY KEY", "'b,a'", "MODIFY c SET('a','b')"),
    ("k INT, c ENUM('a','b') PRIMARY KEY", "'a'", "MODIFY c ENUM('A','b')"),
    ("k INT, c BINARY(3) PRIMARY KEY", "'a'", "MODIFY c BINARY(5)"),
]
"""Changes that registries take, after which consumers would read other values, or rows have other keys."""


class Table:
    """A table on the server, altered and written to at random."""

    def __init__(self, world, rng, number):
        self.world, self.rng, self.name, self.written = world, rng, f"t{number}", 0
        self.refused = 0
        self.cursor = world.server.connect(autocommit=True, database=world.database).cursor()
        self.cursor.execute("SET SESSION time_zone = '+00:00'")
        first, second = rng.choices(list(TYPES), k=2)
        parts = self.part("a", first), self.part("b", second)
        key = ", ".join(rng.choice([parts[:1], parts, parts[::-1]]))
        self.done = [f"CREATE TABLE {self.name} (a {first}, b {second}, v INT, PRIMARY KEY ({key}))"]
        self.cursor.execute(self.done[0])

    def run(self, statement):
        """Run what the server may refuse."""
        try:
            self.cursor.execute(statement)
        except MySQLError:
            self.refused += 1
        else:
            self.done.append(statement)

    def columns(self):
        """Names, types and whether they are of the key, of all columns but ``v``."""
        self.cursor.execute(
            "SELECT column_name, column_type, character_set_name, column_key FROM information_schema.columns "
            f"WHERE table_schema = DATABASE() AND table_name = '{self.name}' AND column_name <> 'v'"
        )
        return [(name, kind.upper(), charset, key == "PRI") for name, kind, charset, key in self.cursor]

    def step(self):
        columns = self.columns()
        if self.rng.random() < 0.15:
            self.run(f"ALTER TABLE {self.name} " + self.change(columns))
            return
        self.written += 1
        values = {name: self.value(kind) for name, kind, *_ in columns}
        old = " AND ".join(f"{name} <= {self.value(kind)}" for name, kind, *_ in columns)
        new = [f"{name} = {value}" for name, value in values.items() if self.rng.random() < 0.3]
        names, given = ", ".join([*values, "v"]), ", ".join(map(str, [*values.values(), self.written]))
        changed = ", ".join([*new, f"v = {self.written}"])
        insert = f"INSERT INTO {self.name} ({names}) VALUES ({given})"
        update = f"UPDATE {self.name} SET {changed} WHERE {old} LIMIT 1"
        self.run(self.rng.choice([insert, update, f"DELETE FROM {self.name} WHERE {old} ORDER BY v LIMIT 1"]))

    def part(self, name, kind):
        """A part of a key, of some types a prefix."""
        is_long = "TEXT" in kind or kind == "BLOB"
        return f"{name}(2)" if is_long or (self.rng.random() < 0.3 and "CHAR(" in kind) else name

    def value(self, kind):
        like = next((each for each in TYPES if each.upper() == kind), None)
        if like is None:  # MariaDB has a width, and no character set
            word = kind.split("(")[0]
            like = next(each for each in TYPES if each.startswith(word))
        return TYPES[like](self.rng)

    def change(self, columns):
        rng, (name, *_) = self.rng, self.rng.choice(columns)
        key = [each for each, *_, in_key in columns if in_key]
        parts = [self.part(each, kind) for each, kind, *_ in columns]
        others, part = ", ".join(rng.sample(parts, len(key))), rng.choice(parts)
        free = f"n{len(self.done)}"
        return rng.choice(
            [
                f"RENAME COLUMN {name} TO {free}",
                f"RENAME COLUMN {name} TO {rng.choice('ab')}",
                f"MODIFY {name} {rng.choice(list(TYPES))}",
                f"MODIFY {name} {rng.choice(list(TYPES))}",
                f"CHANGE {name} {free} {rng.choice(list(TYPES))}",
                f"DROP PRIMARY KEY, ADD PRIMARY KEY ({others})" if key else f"ADD PRIMARY KEY ({part})",
                f"DROP PRIMARY KEY, ADD PRIMARY KEY ({part})" if key else f"ADD PRIMARY KEY ({part})",
                f"ADD COLUMN {free} {rng.choice(list(TYPES))} FIRST",
                f"DROP COLUMN {name}" if len(columns) > 1 else "COMMENT 'c'",
                "DROP PRIMARY KEY" if rng.random() < 0.3 else "COMMENT 'c'",
            ]
        )


@pytest.fixture
def world(kafka, registry, mysql, source_name, tmp_path):
    made = RowsWorld(kafka, registry, mysql, source_name, tmp_path)
    with made.with_database():
        yield made


def compacted(messages):
    """Keep of each key the last record, and none where that is a tombstone or a delete."""
    last = {}
    for message in messages:
        assert message.key() is not None
        last[message.key()] = message
    return {key: message for key, message in last.items() if message.value() is not None}


def rows_by_key(world, topic):
    records = {
        key: deserialize(world.registry, message.value())
        for key, message in compacted(world.messages(topic)).items()
    }
    return {key: record["after"] for key, record in records.items() if record["after"] is not None}


def keys_by_the_newest(world, topic, keys):
    """Read keys by the newest schema of their subject, as a consumer may."""
    newest = list(world.registry.subject_schemas(key_subject(topic)).values())[-1]
    found = []
    for key in keys:
        schema_id, data = split_wire_format(key)
        written = world.registry.schema(schema_id)
        found.append(fastavro.schemaless_reader(io.BytesIO(data), written, newest))
    return found


def wait_for_done(world):
    world.server.execute(
        f"USE {world.database}", "CREATE TABLE done (id INT PRIMARY KEY)", "INSERT INTO done VALUES (1)"
    )
    world.wait_for_row("done")


def versions(world, table):
    first = world.topics.table(world.database, table)
    there = [name for name in world.table_topics() if name == first or name.startswith(first + "-v")]
    return sorted(there, key=lambda name: (len(name), name))


SETTINGS = {"MILLRACE_ROWS_ON_INCOMPATIBLE": "new-topic", "MILLRACE_ROWS_TOMBSTONES": "always"}


@pytest.mark.parametrize("metadata", ["least", pytest.param("FULL", marks=pytest.mark.slow)])
def test_a_row_keeps_its_key_where_its_value_stays_the_same(world, registry, metadata):
    with ExitStack() as stack:
        if metadata == "least":
            stack.enter_context(without_column_names(world.server))
        stack.enter_context(world.service("run", **SETTINGS))
        world.wait_for_start()
        for number, (kind, change) in enumerate(SAME_KEY):
            table = f"s{number}"
            values = [f"'2024-02-29 10:00:0{n}'" if "DATE" in kind else f"'{n}'" for n in (1, 2, 3)]
            if kind == "YEAR":
                values = ["2001", "2002", "2003"]
            world.server.execute(
                f"USE {world.database}",
                f"CREATE TABLE {table} (k {kind} PRIMARY KEY, v INT)",
                f"INSERT INTO {table} VALUES ({values[0]}, 1), ({values[1]}, 2), ({values[2]}, 3)",
                f"ALTER TABLE {table} {change.format('k')}",
                f"UPDATE {table} SET v = 4 WHERE v = 1",
                f"DELETE FROM {table} WHERE v = 2",
            )
        for number, (columns, value, change) in enumerate(OTHER):
            world.server.execute(
                f"USE {world.database}",
                f"CREATE TABLE o{number} ({columns})",
                f"INSERT INTO o{number} VALUES (1, {value})",
                f"ALTER TABLE o{number} {change}",
                f"INSERT INTO o{number} VALUES (2, {value.replace('a', 'b')})",
            )
        wait_for_done(world)
    subject = key_subject(versions(world, "s0")[0])
    assert not world.registry.accepts_any(subject)
    url = f"{registry.url}/config/{subject}"
    level = json.dumps({"compatibility": "NONE"}).encode()
    request = Request(url, level, {"Content-Type": "application/json"}, method="PUT")
    urlopen(request).close()
    assert world.registry.accepts_any(subject)
    for number, change in enumerate(OTHER):
        assert [len(world.messages(topic)) for topic in versions(world, f"o{number}")] == [1, 1], change
    for number, (kind, change) in enumerate(SAME_KEY):
        (topic,) = versions(world, f"s{number}")
        messages = world.messages(topic)
        assert len({message.key() for message in messages}) == 3, (kind, change)
        assert sorted(row["v"] for row in rows_by_key(world, topic).values()) == [3, 4], (kind, change)
        keys = keys_by_the_newest(world, topic, [message.key() for message in messages])
        names = {name for key in keys for name in key}
        assert names == {"renamed" if "renamed" in change else "k"}


KEYS = {
    "TINYINT": ["0", "24", "-5"],
    "BIGINT UNSIGNED": ["0", "24", "70000"],
    "YEAR": ["1999", "0"],
    "DECIMAL(20,0)": ["24", "7"],
    "DECIMAL(8,2)": ["1.25", "24", "-7.50"],
    "DECIMAL(40,2)": ["1.25", "24", "1.20"],
    "DECIMAL(40,4)": ["1.25", "1.2512"],
    "DOUBLE": ["1.5", "24", "1.2512"],
    "FLOAT": ["1.5", "0.1"],
    "BIT(4)": ["5", "0"],
    "BIT(12)": ["97", "0"],
    "DATE": ["'2024-02-29'"],
    "TIME": ["'10:11:12'"],
    "TIME(3)": ["'10:11:12.123'", "'10:11:12'"],
    "DATETIME": ["'2024-02-29 10:11:12'"],
    "DATETIME(3)": ["'2024-02-29 10:11:12.123'"],
    "TIMESTAMP": ["'2024-02-29 10:11:12'"],
    "TIMESTAMP(3)": ["'2024-02-29 10:11:12.123'", "'2024-02-29 10:11:12'"],
    "CHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ["'ä'", "'A'", "'a,b'", "'007'", "'1.1.1.1'"],
    "VARCHAR(50) CHARACTER SET utf8mb4": ["'a '", "'ä'", "'b'", "'1.2'", "'FE80::1'", "'b,a'"],
    "VARCHAR(60) CHARACTER SET latin1": ["'ä'", "'A'", "'24'", "'550E8400-E29B-41D4-A716-446655440000'"],
    "TINYTEXT CHARACTER SET utf8mb4": ["'b '", "'a'", "'24'", "'::ffff:1.2.3.4'"],
    "TEXT CHARACTER SET latin1": ["'ä '", "'abc'", "'A'"],
    "LONGTEXT CHARACTER SET ucs2": ["'ä'", "'1.25'"],
    "BINARY(3)": ["'a'", "'abc'", "''"],
    "BINARY(5)": ["'a'", "'abc'", "'a\\0\\0b'"],
    "VARBINARY(60)": ["'a'", "'a\\0'", "'abc'", "'1.25'"],
    "TINYBLOB": ["'a'", "'ab'", "'a '"],
    "BLOB": ["'a'", "'6162'", "'YWI='", "0xC3A4"],
    "ENUM('a','b')": ["'a'", "'b'"],
    "ENUM('b','A','c')": ["'A'", "'b'"],
    "SET('a','b')": ["'a,b'", "'b'"],
    "SET('b','a')": ["'a,b'", "'b'"],
}
"""Types of a key, each with values in SQL of which no two are one."""
KEYS_OF_MARIADB = {
    "UUID": ["'550e8400-e29b-41d4-a716-446655440000'"],
    "INET4": ["'1.2.3.4'"],
    "INET6": ["'fe80::1'", "'::ffff:1.2.3.4'"],
}
FORMS = {
    "default": AvroOptions(),
    "strings": AvroOptions(bigint_unsigned="string", decimal="string", temporal="debezium", binary="hex"),
    "others": AvroOptions(decimal="double", temporal="connect", binary="base64", bit="debezium"),
}


def logged(server, connection):
    """The rows of table t in the last file of the log, of each event: columns, and both images by form."""
    definition = read_definition(connection, "keys", "t")
    log, state = server.binlog_files[-1], StreamState()
    with log.open("rb") as stream:
        for _, decoded in decode_file(stream, log.name, state=state):
            event, table_map = decoded.event, decoded.table_map
            if isinstance(event, RowsEvent) and table_map.database == "keys":
                version = state.format.origin.server_version
                table = resolve_columns(table_map, definition, server_version=version)
                images = {
                    form: RowImages.of_event(table.columns, event, options=options).avro(event.rows)
                    for form, options in FORMS.items()
                }
                yield (
                    table.columns,
                    {
                        form: [
                            (after, each.unrepresentable.get((number, 1), {}))
                            for number, (_, after) in enumerate(each.rows)
                        ]
                        for form, each in images.items()
                    },
                )


def keys(column, ordinal, rows, options):
    """The schemas of a table whose key is one column, and the keys of rows without the schema's id."""
    part = replace(column, ordinal=0, name="k", key_position=0)
    table = ResolvedTable("keys", "t", (part,), (part,), "catalog")
    encoder = RowEncoder("s", "1", table, options, key_id=1, value_id=2, record_limit=1 << 20)
    lost = [{0: lost[ordinal]} if ordinal in lost else {} for _, lost in rows]
    found = []
    for (image, _), value in zip(rows, lost, strict=True):
        try:
            found.append(encoder.key((image[ordinal],), value))
        except (MissingStateError, UnrepresentableError):
            found.append(None)
    return table_schemas("s", table, options), found


def accepts(cursor, old, new, value):
    """Whether a strict server converts a value."""
    cursor.execute("SET sql_mode = 'STRICT_ALL_TABLES'")
    cursor.execute("DROP TABLE IF EXISTS s")
    cursor.execute(f"CREATE TABLE s (c {old})")
    cursor.execute(f"INSERT INTO s VALUES ({value})")
    try:
        return cursor.execute(f"ALTER TABLE s MODIFY c {new}") is not None
    except MySQLError:
        return False


def test_a_key_continues_only_where_the_server_keeps_each_value(database):
    """Every type of a key becomes every other one, on both servers, in three forms of row topics."""
    types = KEYS | (KEYS_OF_MARIADB if isinstance(database, MariaDB) else {})
    names = {f"c{number}": kind for number, kind in enumerate(types)}
    continued, wrong = Counter(), []
    with (
        MysqlConnection(database.root_address) as connection,
        closing(database.connect(autocommit=True)) as session,
        session.cursor() as cursor,
    ):
        for statement in (
            "CREATE DATABASE `keys`",
            "USE `keys`",
            "SET time_zone = '+02:00'",
        ):
            cursor.execute(statement)
        for old, values in types.items():
            cursor.execute("FLUSH BINARY LOGS")
            columns = "".join(f", {name} {old} NULL" for name in names)
            cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v INT{columns})")
            cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES'")
            rows = [f"({at}, 0{f', {value}' * len(names)})" for at, value in enumerate(values, 1)]
            cursor.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
            ((before, was),) = logged(database, connection)
            cursor.execute("SET sql_mode = ''")  # which refuses none
            changes = [f"MODIFY {name} {new} NULL" for name, new in names.items()]
            cursor.execute(f"ALTER TABLE t {', '.join(changes)}")
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("UPDATE t SET v = 1")
            ((after, now),) = logged(database, connection)
            cursor.execute("DROP TABLE t")
            for ordinal, new in enumerate(types, 2):
                for form, options in FORMS.items():
                    first, former = keys(before[ordinal], ordinal, was[form], options)
                    last, present = keys(after[ordinal], ordinal, now[form], options)
                    if WrittenKey(first.key, first.key).continued(last.key, last.key_types) is not None:
                        continued[form] += 1
                        changed = (
                            value
                            for value, *both in zip(values, former, present, strict=True)
                            if None not in both and len(set(both)) > 1
                        )
                        wrong += [
                            (form, old, new, each) for each in changed if accepts(cursor, old, new, each)
                        ]
        cursor.execute("DROP DATABASE `keys`")
    assert not wrong, "\n".join(map(str, wrong))
    assert min(continued[form] for form in FORMS) > 2 * len(types), continued


@pytest.mark.parametrize(
    ("tables", "steps", "metadata"),
    [
        (8, 40, "least"),
        pytest.param(60, 60, "least", marks=pytest.mark.slow),
        pytest.param(60, 60, "FULL", marks=pytest.mark.slow),
    ],
)
def test_no_row_of_a_compacted_topic_is_gone_from_its_table(world, tables, steps, metadata):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with ExitStack() as stack:
        if metadata == "least":
            stack.enter_context(without_column_names(world.server))
        stack.enter_context(world.service("run", **SETTINGS))
        world.wait_for_start()
        made = [Table(world, rng, number) for number in range(tables)]
        for _ in range(steps):
            for table in made:
                table.step()
        wait_for_done(world)
    assert "table quarantined" not in (world.folder / "run.log").read_text()
    compared = 0
    for table in made:
        there = versions(world, table.name)
        if not there:
            continue
        table.cursor.execute(f"SELECT v FROM {table.name}")
        actual = sorted(v for (v,) in table.cursor)
        if any(message.key() is None for message in world.messages(there[-1])):
            continue
        found = sorted(row["v"] for row in rows_by_key(world, there[-1]).values())
        story = "\n".join([f"seed {seed}", *table.done, f"{there} {found} {actual}"])
        assert set(found) <= set(actual), story
        assert len(found) == len(set(found)), story
        assert len(there) > 1 or found == actual, story
        compared += len(found)
    assert compared
