"""Rows that SELECT gives, encoded as images: the values that the binary log has of the same rows."""

import re
import struct
from dataclasses import replace
from typing import Any

import pytest

from millrace.avro.row_records import table_schemas
from millrace.binlog import RowImages, RowsEvent, StreamState, decode_file, resolve_columns
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.declaration import ColumnCodec
from millrace.local import MariaDB, MySQL
from millrace.mysql.catalog import read_definition
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.snapshot.images import SESSION, SelectedTable, quoted_name
from millrace.snapshot.tables import _Cutter
from tests.column_images import COLUMNS, some_images
from tests.columns import column

T = ColumnType

NUMBERS = """
CREATE TABLE numbers (id INT PRIMARY KEY, a TINYINT, b TINYINT UNSIGNED, c SMALLINT, d SMALLINT UNSIGNED,
  e MEDIUMINT, f MEDIUMINT UNSIGNED, g INT, h INT UNSIGNED ZEROFILL, i BIGINT, j BIGINT UNSIGNED, k FLOAT,
  l DOUBLE, m FLOAT(7,3), n DOUBLE(9,4), o DECIMAL(65,30), p DECIMAL(5), q DECIMAL(10,10) UNSIGNED, r BIT(1),
  s BIT(9), t BIT(64), u YEAR, v BOOL);
INSERT INTO numbers VALUES (1,-128,255,-32768,65535,-8388608,16777215,-2147483648,4294967295,
  -9223372036854775808,18446744073709551615,1.17549e-38,-1.7976931348623157e308,1234.567,12345.6789,
  -12345678901234567890123456789012345.123456789012345678901234567891,-99999,0.9999999999,b'1',b'100000001',
  0xFFFFFFFFFFFFFFFF,2155,1);
INSERT INTO numbers VALUES (2,127,0,32767,0,8388607,0,2147483647,7,9223372036854775807,0,0.1,0.1,-0.001,
  -0.0001,
  0,0,0,b'0',0,0,'0000',0);
INSERT INTO numbers (id, k, l) VALUES (3, 16777217, 1e15), (4, -0e0, -0e0), (5, 3.4028234e38, 5e-324);
"""

TIMES = """
CREATE TABLE times (id INT PRIMARY KEY, a DATE, b DATETIME, c DATETIME(1), d DATETIME(6), e TIMESTAMP NULL,
  f TIMESTAMP(2) NULL, g TIMESTAMP(6) NULL, h TIME, i TIME(3), j TIME(6));
INSERT INTO times VALUES (1,'1000-01-01','9999-12-31 23:59:59','2024-02-29 01:02:03.4',
  '1970-01-01 00:00:00.000001',
  '1970-01-01 00:00:01','2038-01-19 03:14:07.99','2001-09-09 01:46:40.123456','-838:59:59','838:59:59.000',
  '-00:00:00.000001');
INSERT INTO times VALUES (2,'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00.0','0000-00-00 00:00:00',
  '0000-00-00 00:00:00','0000-00-00 00:00:00','0000-00-00 00:00:00','00:00:00','-10:11:12.5','100:00:00');
INSERT INTO times (id, a, b) VALUES (3,'2024-00-00','2024-02-00 10:00:00'), (4,'2023-02-31',
  '0000-01-01 00:00:00');
"""

TEXTS = """
CREATE TABLE texts (id VARBINARY(20) PRIMARY KEY, a CHAR(10) CHARACTER SET utf8mb4,
  b CHAR(255) CHARACTER SET utf8mb4,
  c VARCHAR(20) CHARACTER SET latin1, d VARCHAR(300) CHARACTER SET utf8mb4, e TINYTEXT CHARACTER SET ucs2,
  f TEXT CHARACTER SET sjis, g MEDIUMTEXT CHARACTER SET utf16, h LONGTEXT CHARACTER SET gbk, i BINARY(8),
  j VARBINARY(8),
  k TINYBLOB, l BLOB, m MEDIUMBLOB, n LONGBLOB, o ENUM('a','b,c','ü','') CHARACTER SET latin1,
  p SET('x','y','ö') CHARACTER SET utf8mb4, q VARCHAR(10) CHARACTER SET cp1251,
  w CHAR(10) CHARACTER SET ucs2, x ENUM('я','a') CHARACTER SET ucs2);
INSERT INTO texts VALUES (0x00FF20, 'größe', '€ ', 'Ünïcode', '日本語', 'ä', 'テスト', '🙂', '中文', 0x0100,
  0x0100, 0x00, 'b', 'm',
  REPEAT('n', 70000), 'ü', 'x,ö', 'привет', 'ab ', 'я');
INSERT INTO texts VALUES ('', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', 'a');
INSERT INTO texts (id) VALUES ('n');
INSERT INTO texts (id, c, o) VALUES ('\\\\', 0x8081FF, 'b,c');
INSERT IGNORE INTO texts (id, o) VALUES ('invalid', 'nothing');
CREATE TABLE many (id INT PRIMARY KEY, s SET({set_members}), e ENUM({enum_members}));
INSERT INTO many VALUES (1, 'm63', 'e299'), (2, 'm0,m31,m32,m63', 'e0'), (3, '', 'e255');
"""

OTHERS = """
CREATE TABLE shapes (id INT PRIMARY KEY, g GEOMETRY, p POINT, l LINESTRING,
  v INT GENERATED ALWAYS AS (id + 1) STORED);
INSERT INTO shapes (id, g, p, l) VALUES (1, ST_GeomFromText('POINT(1 2)', 4326),
  ST_GeomFromText('POINT(3 4)'),
  ST_GeomFromText('LINESTRING(0 0,1 1,2 3)')), (2, NULL, NULL, NULL),
  (3, ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))'), NULL, NULL);
CREATE TABLE `odd.näme` (`1st` INT, `größe ``x` VARCHAR(20), PRIMARY KEY (`größe ``x`, `1st`));
INSERT INTO `odd.näme` VALUES (1, '%s');
"""

MYSQL = """
CREATE TABLE documents (id INT PRIMARY KEY, j JSON, v INT GENERATED ALWAYS AS (id * 2) VIRTUAL);
INSERT INTO documents (id, j) VALUES (1, '{"b": [1, -5, 2.50, 1e30, true, null, "text"],
  "a": {"größe": 18446744073709551615}}'),
  (2, 'null'), (3, NULL), (4, JSON_OBJECT('d', CAST(1.10 AS DECIMAL(5,2)), 't',
  CAST('2020-01-02 03:04:05' AS DATETIME),
  'b', CAST(x'00FF' AS BINARY), 'z', TIME'-10:00:00.5')), (5, '[1.0, -0.0, 0.1, 100000000000000000000,
  123456]'), (6, '""');
"""

MARIADB = """
CREATE TABLE documents (id INT PRIMARY KEY, j JSON, u UUID, four INET4, six INET6,
  t TEXT COMPRESSED, v VARCHAR(300) COMPRESSED CHARACTER SET latin1);
INSERT INTO documents VALUES (1, '{"a": 1}', '123e4567-e89b-12d3-a456-426655440000', '10.0.0.0', '::1',
  REPEAT('größe', 1000), 'käse'), (2, NULL, '00000000-0000-0000-0000-000000000000', '0.0.0.0', '::', '', ''),
  (3, NULL, NULL, NULL, NULL, NULL, NULL);
"""

VECTORS = """
CREATE TABLE vectors (id INT PRIMARY KEY, v VECTOR(3));
INSERT INTO vectors VALUES (1, {of}('[1.5, -2, 3e-38]')), (2, NULL), (3, {of}('[0.1, 16777217, -0.0]'));
"""
"""Of MySQL from 9.0 on, and of MariaDB from 11.7 on."""


def of_vectors(version: str) -> str:
    """Return the statements in the words of a server, nothing for one without the type."""
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    mariadb = "MariaDB" in version
    if number < ((11, 7) if mariadb else (9, 0)):
        return ""
    return VECTORS.format(of="VEC_FromText" if mariadb else "STRING_TO_VECTOR")


def statements(text: str) -> list[str]:
    return [statement.strip() for statement in text.split(";\n") if statement.strip()]


TYPES_SESSION = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"
"""What the statements of :func:`every_type` need."""


def every_type(version: str) -> list[str]:
    """Return statements that make tables of every type that a server has, with rows."""
    lists = {
        "set_members": ",".join(f"'m{number}'" for number in range(64)),
        "enum_members": ",".join(f"'e{number}'" for number in range(300)),
    }
    own = MARIADB if "MariaDB" in version else MYSQL
    texts = (NUMBERS, TIMES, TEXTS.format(**lists), OTHERS, own, of_vectors(version))
    return [statement for text in texts for statement in statements(text)]


def logged(server: MySQL | MariaDB, connection: MysqlConnection, tables: list[str]) -> dict[str, Any]:
    """The values of the log by table, as Avro has them, and what Avro cannot hold."""
    found: dict[str, Any] = {}
    log, state = server.binlog_files[-1], StreamState()
    with log.open("rb") as stream:
        for _, decoded in decode_file(stream, log.name, state=state):
            event, table_map = decoded.event, decoded.table_map
            if not isinstance(event, RowsEvent) or table_map is None or table_map.database != "images":
                continue
            definition = read_definition(connection, "images", table_map.table)
            assert state.format is not None
            version = state.format.origin.server_version
            resolved = resolve_columns(table_map, definition, server_version=version)
            images = RowImages.of_event(resolved.columns, event, options=AvroOptions()).avro(event.rows)
            schemas = table_schemas("shop", resolved, AvroOptions())
            known, rows, lost = found.setdefault(table_map.table, (schemas, [], []))
            assert known == schemas
            lost += [images.unrepresentable.get((number, 1), {}) for number in range(len(images.rows))]
            rows += [after for _, after in images.rows]
    assert sorted(found) == sorted(tables)
    return found


def selected(connection: MysqlConnection, table: str) -> Any:
    """The same of SELECT."""
    definition = read_definition(connection, "images", table)
    assert definition is not None
    chosen = SelectedTable(definition, mariadb=connection.flavour is Flavour.MARIADB)
    query = f"SELECT {chosen.columns} FROM {quoted_name('images', table)}"
    cutter = _Cutter(chosen, 1 << 20)
    pieces = list(cutter.pieces(connection.rows(query, doing="read", binary=True, take=cutter.take)))
    resolved = resolve_columns(chosen.table_map, definition, server_version=chosen.server_version)
    assert resolved.schema_source == "table_map"
    images = RowImages(resolved.columns, None, chosen.present, options=AvroOptions()).avro(
        b"".join(images for _, images in pieces)
    )
    lost = [images.unrepresentable.get((number, 1), {}) for number in range(len(images.rows))]
    schemas = table_schemas("shop", resolved, AvroOptions())
    return schemas, [after for _, after in images.rows], lost


@pytest.mark.parametrize("metadata", ["FULL", "least"])
def test_values_are_those_of_the_log(database: MySQL | MariaDB, metadata: str) -> None:
    least = "NO_LOG" if isinstance(database, MariaDB) else "MINIMAL"
    ((version,),) = database.query("SELECT VERSION()")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.binlog_row_metadata")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {least if metadata == 'least' else metadata}")
        cursor.execute("DROP DATABASE IF EXISTS images")
        cursor.execute("CREATE DATABASE images")
        cursor.execute("USE images")
        cursor.execute("FLUSH BINARY LOGS")
        for statement in (TYPES_SESSION, *every_type(version)):
            cursor.execute(statement)
        cursor.execute("SHOW TABLES")
        tables = [name for (name,) in cursor.fetchall()]
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {before}")
    with MysqlConnection(database.root_address) as reader:
        expected = logged(database, reader, tables)
        for statement in SESSION:
            reader.query(statement)
        for table in tables:
            schemas, rows, lost = selected(reader, table)
            assert schemas == expected[table][0], table
            # A table is read in the order of its key, the log in that of the inserts.
            ours = sorted(map(repr, zip(rows, lost, strict=True)))
            theirs = sorted(map(repr, zip(*expected[table][1:], strict=True)))
            assert ours == theirs, table


_NOW = (T.TIME2, T.DATETIME2, T.TIMESTAMP2)
_FORMERLY = (T.TIME, T.DATETIME, T.TIMESTAMP)


@pytest.mark.parametrize("formerly", [False, True])
def test_valid_images_are_those_that_servers_write(database: MySQL | MariaDB, *, formerly: bool) -> None:
    """Of each type the values at the limits and some between; MariaDB's as it wrote them before 10.1, too."""
    if formerly and not isinstance(database, MariaDB):
        pytest.skip("MySQL has no such setting")
    others = _NOW if formerly else _FORMERLY
    columns = [one for one in COLUMNS if one.type not in others]
    made = [
        [
            image
            for image in some_images(3, one, 400)
            if image.text is not None and _has(database, one, image.text)
        ][:60]
        for one in columns
    ]
    codecs = [codec_of(one) for one in columns]
    names = ", ".join(f"c{at} {codec.sql_type()} NULL" for at, codec in enumerate(codecs))
    with database.connect() as connection, connection.cursor() as cursor:
        if formerly:
            cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        for statement in (
            "DROP DATABASE IF EXISTS images", "CREATE DATABASE images", "USE images", TYPES_SESSION,
            f"CREATE TABLE limits (id INT PRIMARY KEY, {names})", "FLUSH BINARY LOGS",
        ):  # fmt: skip
            cursor.execute(statement)
        if formerly:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        for number, row in enumerate(zip(*made, strict=True)):
            literals = (
                codec.sql_literal(codec.decode(_payload(codec, image.payload)))
                for codec, image in zip(codecs, row, strict=True)
            )
            cursor.execute(f"INSERT INTO limits VALUES ({number}, {', '.join(literals)})")
        shown = ", ".join(
            _SHOWN.get(one.type, "CAST({} AS CHAR)").format(f"c{at}") for at, one in enumerate(columns)
        )
        cursor.execute(f"SELECT {shown} FROM limits ORDER BY id")
        texts = cursor.fetchall()
    rows = [row[1:] for row in payloads_logged(database, [column(T.LONG), *columns])]
    assert len(rows) == len(texts) == 60
    for at, (one, codec) in enumerate(zip(columns, codecs, strict=True)):
        for image, row, text in zip(made[at], rows, texts, strict=True):
            assert (str(text[at]), row[at]) == (image.text, _payload(codec, image.payload)), one


_SHOWN = {
    T.BIT: "{} + 0",
    T.FLOAT: "{} * 1e0",
    T.DOUBLE: "{}",
    **dict.fromkeys((T.TIMESTAMP, T.TIMESTAMP2), "UNIX_TIMESTAMP({})"),
}


def _has(server: MySQL | MariaDB, one: Column, text: str) -> bool:
    """Whether a server has a value: TIMESTAMP ended in 2038, in MySQL TIME ends at 838:59:59."""
    if one.type in (T.TIMESTAMP, T.TIMESTAMP2):
        return float(text) < 1 << 31
    last, _, fraction = text.removeprefix("-").partition(".")
    return last != "838:59:59" or isinstance(server, MariaDB) or not fraction.strip("0")


def _payload(codec: ColumnCodec, stored: bytes) -> Any:
    return struct.unpack(f"<{codec.struct_code}", stored)[0]


def payloads_logged(server: MySQL | MariaDB, columns: list[Column]) -> list[list[Any]]:
    """Return the payloads of the rows of a table that were inserted since the last file of the log began."""
    numbered = tuple(replace(one, ordinal=at) for at, one in enumerate(columns))
    log, state, found = server.binlog_files[-1], StreamState(), []
    with log.open("rb") as stream:
        for _, decoded in decode_file(stream, log.name, state=state):
            event, table_map = decoded.event, decoded.table_map
            if isinstance(event, RowsEvent) and table_map is not None and table_map.database == "images":
                for _, after in RowImages.of_event(numbered, event).payloads(event.rows):
                    assert after is not None
                    found.append(after)
    return found
