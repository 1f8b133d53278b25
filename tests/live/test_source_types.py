"""Types of the source in schemas, beside a Debezium with ``column.propagate.source.type`` on the same log.

Of each type there is a column in a table that was there before, whose definition both read from the server,
and in one that a statement in the log creates. What differs is in a table of ``docs/types.md``, row by row
the same as ``DIFFERENCES`` here.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace.local import Kafka, MySQL, Registry
from millrace.local.connect import Connect
from tests.service_process import wait_for
from tests.shared import PROJECT

from .debezium import debezium
from .rows_world import RowsWorld
from .test_consumers_jdbc import TYPES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = PROJECT / "docs" / "types.md"
PREFIX = "__debezium.source.column."

SPELLINGS = (
    "BOOL", "INT1", "INT2", "INT3", "INT4 UNSIGNED", "INT8", "MIDDLEINT", "INTEGER", "INTEGER(5)", "INT(5)",
    "INT(5) ZEROFILL", "SMALLINT SIGNED", "SMALLINT(3) UNSIGNED", "BIGINT(12) UNSIGNED ZEROFILL",
    "DEC", "DEC(5,1) UNSIGNED ZEROFILL", "DECIMAL", "DECIMAL(5)", "DECIMAL UNSIGNED", "NUMERIC(8,3)",
    "FIXED(7)", "REAL", "FLOAT(20)", "FLOAT(40)", "FLOAT UNSIGNED", "FLOAT4", "FLOAT8", "DOUBLE PRECISION",
    "DOUBLE(9,4)", "DOUBLE(9,4) UNSIGNED ZEROFILL", "BIT", "YEAR(4)", "TIME(0)", "DATETIME(0)",
    "TIMESTAMP(3) NULL", "CHAR", "CHAR(1)", "CHARACTER(7)", "CHARACTER VARYING(8)", "CHAR VARYING(8)",
    "VARCHARACTER(9)", "NCHAR", "NCHAR(4)", "NATIONAL CHAR(4)", "NVARCHAR(5)", "NATIONAL VARCHAR(5)",
    "NCHAR VARCHAR(6)", "NATIONAL CHARACTER VARYING(6)", "NCHAR VARYING(6)", "CHAR(5) BINARY",
    "CHAR(5) BYTE", "VARCHAR(5) BYTE",
    "VARCHAR(5) CHARACTER SET binary", "VARCHAR(0)", "VARCHAR(30) COLLATE utf8mb4_bin",
    "TINYTEXT", "TEXT", "TEXT(100)", "TEXT(1000)", "TEXT(100000)", "LONG", "LONG VARCHAR", "LONG VARBINARY",
    "TEXT CHARACTER SET binary", "BINARY", "BLOB(10)", "BLOB(70000)", "VARBINARY(1)",
    "ENUM('a')", "ENUM('x unsigned','(7)','b,c')", "ENUM('a','b') CHARACTER SET latin1", "SET('a')",
    "SET('long','longer','the longest')", "SET('a','it''s')", "POLYGON", "MULTIPOINT", "GEOMETRYCOLLECTION",
    "INT NOT NULL", "VARCHAR(20) NOT NULL DEFAULT 'x' COMMENT 'y'", "INT GENERATED ALWAYS AS (1 + 1) STORED",
)  # fmt: skip
"""Ways to write types beside those of ``TYPES``."""

DIFFERENCES = {
    "GEOMETRY and its kinds": {
        f"{table} {sql_type}"
        for table in ("known", "created")
        for sql_type in ("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "GEOMETRYCOLLECTION")
    },
    "VARCHAR(0)": {"known VARCHAR(0)", "created VARCHAR(0)"},
    "A number that a statement leaves out": {
        "created größe", "created TINYINT", "created TINYINT UNSIGNED", "created SMALLINT",
        "created SMALLINT UNSIGNED", "created MEDIUMINT", "created MEDIUMINT UNSIGNED", "created INT",
        "created INT UNSIGNED ZEROFILL", "created BIGINT", "created BIGINT UNSIGNED", "created YEAR",
        "created INT NOT NULL", "created INT GENERATED ALWAYS AS (1 + 1) STORED", "created CHAR",
        "created BINARY",
    },
    "A fraction of 0 digits": {"created TIME(0)", "created DATETIME(0)"},
    "Other names of a type": {
        "created BOOLEAN", "created BOOL", "created INT1", "created INT2", "created INT3",
        "created INT4 UNSIGNED", "created INT8", "created MIDDLEINT", "created INTEGER", "created INTEGER(5)",
        "created SMALLINT SIGNED", "created DEC", "created DEC(5,1) UNSIGNED ZEROFILL",
        "created NUMERIC(8,3)", "created FIXED(7)", "created REAL", "created FLOAT4", "created FLOAT8",
        "created DOUBLE PRECISION",
        "created CHARACTER(7)", "created CHARACTER VARYING(8)", "created CHAR VARYING(8)",
        "created VARCHARACTER(9)", "created NCHAR", "created NCHAR(4)", "created NATIONAL CHAR(4)",
        "created NVARCHAR(5)", "created NATIONAL VARCHAR(5)", "created NCHAR VARCHAR(6)",
        "created NATIONAL CHARACTER VARYING(6)", "created NCHAR VARYING(6)", "created CHAR(5) BINARY",
        "created LONG", "created LONG VARCHAR", "created LONG VARBINARY",
    },
    "A length that chooses the type": {
        "created FLOAT(20)", "created FLOAT(40)", "created TEXT(100)", "created TEXT(1000)",
        "created TEXT(100000)", "created BLOB(10)", "created BLOB(70000)",
    },
    "Text whose character set is binary": {
        "created CHAR(5) BYTE", "created VARCHAR(5) BYTE", "created VARCHAR(5) CHARACTER SET binary",
        "created TEXT CHARACTER SET binary",
    },
}  # fmt: skip
"""Tables and types whose parameters differ, by row of the table in the docs."""


def columns() -> dict[str, str]:
    """Types of columns by name; in the order of the tables."""
    return {f"c{number}": sql_type for number, sql_type in enumerate([*TYPES, *SPELLINGS])}


def definition(name: str) -> str:
    return (
        f"CREATE TABLE {name} (`größe` INT PRIMARY KEY, "
        + ", ".join(f"{column} {sql_type}" for column, sql_type in columns().items())
        + ")"
    )


def source_types(record: bytes | None) -> dict[str, dict[str, str]]:
    """The parameters of a record's columns, by type."""
    schema = json.loads(record or b"")["schema"]
    (after,) = (field for field in schema["fields"] if field["field"] == "after")
    return {
        columns().get(field["field"], field["field"]): {
            name.removeprefix(PREFIX): text
            for name, text in field.get("parameters", {}).items()
            if name.startswith(PREFIX)
        }
        for field in after["fields"]
    }


@pytest.fixture(scope="module")
def connect(kafka: Kafka) -> Iterator[Connect]:
    with Connect(kafka, "debezium") as worker:
        yield worker


def test_source_types_are_those_of_debezium(
    kafka: Kafka, registry: Registry, mysql: MySQL, connect: Connect, source_name: str, tmp_path: Path
) -> None:
    prefix = f"{source_name}-debezium"
    settings = {
        "column.propagate.source.type": ".*",
        "key.converter.schemas.enable": "true",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        world.environment["MILLRACE_ROWS_FORMAT"] = "json-schema"
        world.environment["MILLRACE_ROWS_PROPAGATE_SOURCE_TYPE"] = "true"
        mysql.execute(f"USE {world.database}", "SET sql_mode = ''", definition("known"))
        with debezium(connect, mysql, prefix, world.database, **settings), world.services("run"):
            world.wait_for_start()
            mysql.execute(
                f"USE {world.database}",
                "SET sql_mode = ''",
                "INSERT INTO known (`größe`) VALUES (1)",
                definition("created"),
                "INSERT INTO created (`größe`) VALUES (1)",
            )

            def records(topic: str) -> list[Any]:
                connect.check_task(prefix)
                return world.messages(topic)

            found = {}
            for table in ("known", "created"):
                for system in (source_name, prefix):
                    topic = f"{system}.{world.database}.{table}"
                    (message,) = wait_for(partial(records, topic), None, f"a record of {topic}")
                    found[table, system] = source_types(message.value())
                    assert PREFIX not in str(message.key())
    differences = {
        f"{table} {sql_type}": (mine, found[table, prefix][sql_type])
        for table in ("known", "created")
        for sql_type, mine in found[table, source_name].items()
        if mine != found[table, prefix][sql_type]
    }
    explained = {name for names in DIFFERENCES.values() for name in names}
    assert {name: found for name, found in differences.items() if name not in explained} == {}
    assert explained == differences.keys()


def test_the_differences_are_those_of_the_docs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Types of the source") :].split("\n## ", 1)[0]
    assert re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE) == list(DIFFERENCES)
