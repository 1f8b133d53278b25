"""The SQL that logs are printed as, loaded into real servers: the same tables, or those from before."""

import io
import re
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest

from millrace.binlog.file import iter_events
from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput
from millrace.binlog_command.records import LogDecoder, LogRecord, RawEvent
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.local import MariaDB, MissingLibraryError, MySQL
from millrace.local.artifacts import untar
from millrace.local.database import DatabaseServer
from millrace.runtime.errors import UserError
from tests.shared import SHARED

_TYPES = """CREATE TABLE everything (
  id INT PRIMARY KEY AUTO_INCREMENT, ti TINYINT, tiu TINYINT UNSIGNED, si SMALLINT, mi MEDIUMINT UNSIGNED,
  bi BIGINT, biu BIGINT UNSIGNED, fl FLOAT, db DOUBLE, de DECIMAL(65,30), bt BIT(17), ye YEAR, da DATE,
  tm TIME(3), dt DATETIME(6), ts TIMESTAMP(2) NULL, ch CHAR(200) CHARACTER SET utf8mb4,
  vl VARCHAR(60) CHARACTER SET latin1, bn BINARY(12), vb VARBINARY(300), tx MEDIUMTEXT, bl BLOB,
  en ENUM('a','b','ü'), st SET('x','y','z'), ge GEOMETRY, js JSON
)"""
_VALUES = (
    "1, -128, 255, -32768, 16777215, -9223372036854775808, 18446744073709551615, 1.5e-20, -2.5e300, "
    "-12345678901234567890.000000000000000000000000000001, b'10000000000000001', 2155, '1000-01-01', "
    "'-838:59:59.000', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07.99', 'é😀', 'naïve', x'00ff00', "
    "x'00010203275c0a0d1a', 'quote \\' backslash \\\\ newline \\n', x'deadbeef', 'ü', 'x,z', "
    'ST_GeomFromText(\'POINT(1 -2.5)\'), \'{"k": [1, 2.5, null, true, "é"], "big": 18446744073709551615}\''
)
_ROWS = (
    _TYPES,
    f"INSERT INTO everything VALUES ({_VALUES})",
    "INSERT INTO everything (id) VALUES (2), (3)",
    "INSERT INTO everything (ti, tx) VALUES (7, REPEAT('long ', 30000)), (8, '')",
    "UPDATE everything SET ti = -1, bn = x'010000', ge = NULL, js = '[1]' WHERE id < 3",
    "UPDATE everything SET id = id + 100 WHERE id > 3 ORDER BY id DESC",
    "DELETE FROM everything WHERE id = 3",
    "CREATE TABLE keyless (a INT, b VARCHAR(20))",
    "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL), (2, 'y')",
    "UPDATE keyless SET b = 'z' WHERE a = 1 LIMIT 1",
    "DELETE FROM keyless WHERE a = 2",
    "BEGIN",
    "INSERT INTO keyless VALUES (10, 'kept')",
    "SAVEPOINT sp",
    "INSERT INTO keyless VALUES (11, 'undone')",
    "ROLLBACK TO SAVEPOINT sp",
    "UPDATE keyless SET b = 'both' WHERE a = 10",
    "COMMIT",
    "BEGIN",
    "INSERT INTO keyless VALUES (12, 'never')",
    "ROLLBACK",
    "XA START 'gtrid', x'00ff', 7",
    "INSERT INTO keyless VALUES (20, 'xa')",
    "XA END 'gtrid', x'00ff', 7",
    "XA PREPARE 'gtrid', x'00ff', 7",
    "XA COMMIT 'gtrid', x'00ff', 7",
)
_STATEMENTS = (
    "SET SESSION binlog_format = 'STATEMENT'",
    """CREATE TABLE st (id INT PRIMARY KEY AUTO_INCREMENT, a VARCHAR(300), r DOUBLE, n DECIMAL(60,20),
    b VARBINARY(50), t DATETIME(6)) ENGINE=InnoDB""",
    "CREATE TABLE lastid (id INT PRIMARY KEY AUTO_INCREMENT, s INT)",
    "INSERT INTO st (a) VALUES ('first')",
    "INSERT INTO lastid (s) VALUES (LAST_INSERT_ID())",
    "SET INSERT_ID = 70",
    "INSERT INTO st (a, r) VALUES ('forced', RAND())",
    """SET @i = -7, @u = 18446744073709551615, @r = 0.1e0 + 0.2e0, @d = 123456789012345678901234.5678,
    @s = 'é\\'\\\\😀', @b = x'00ff', @n = NULL, @`odd name` = _latin1 x'e9'""",
    "INSERT INTO st (a, r) VALUES (CONCAT(@i, ' ', @u), @r)",
    "INSERT INTO st (a, n, b) VALUES (@s, @d, @b), (@n, NULL, @`odd name`)",
    "SET time_zone = '+05:30', lc_time_names = 'en_GB'",
    "INSERT INTO st (a, t) VALUES (DATE_FORMAT('2024-03-05', '%W %M'), NOW(6))",
    "SET time_zone = '+00:00', lc_time_names = 'en_US', TIMESTAMP = 1700000000.123456",
    "INSERT INTO st (a, t) VALUES ('then', NOW(6))",
    "SET TIMESTAMP = DEFAULT",
    "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'",
    "UPDATE \"st\" SET a = a || '!' WHERE id = 1",
    "SET sql_mode = DEFAULT, auto_increment_increment = 10, auto_increment_offset = 3",
    "INSERT INTO st (a) VALUES ('tenth'), ('twentieth')",
    "SET auto_increment_increment = 1, auto_increment_offset = 1",
    "CREATE TABLE parent (id INT PRIMARY KEY)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
    "SET foreign_key_checks = 0, unique_checks = 0",
    "INSERT INTO child VALUES (1, 99)",
    "SET foreign_key_checks = 1, unique_checks = 1",
    "CREATE TRIGGER tr BEFORE INSERT ON lastid FOR EACH ROW BEGIN SET NEW.s = NEW.s + 1; SET @x = 1; END",
    "INSERT INTO lastid (s) VALUES (5)",
    "SET NAMES latin1",
    b"INSERT INTO st (a) VALUES ('latin \xe9\xfc')",
    "SET NAMES utf8mb4",
)
_LOAD = (
    "LOAD DATA LOCAL INFILE '{}' INTO TABLE st CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' "
    "(a, @v, b) SET r = @v * 2"
)
_CLIENT_COMMAND = re.compile(rb"/\*!\\C \w+ \*/")


def _run(connection: "pymysql.connections.Connection[Any]", statement: str | bytes) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _split(text: bytes) -> Iterator[bytes]:
    """Cut SQL text into statements as a client does, by the DELIMITER in force."""
    delimiter = b";"
    pending: list[bytes] = []
    for line in text.split(b"\n"):
        if not pending and (line.startswith(b"#") or not line.strip()):
            continue
        if line.startswith(b"DELIMITER "):
            delimiter = line[10:]
            continue
        pending.append(line)
        if line.endswith(delimiter):
            statement = b"\n".join(pending)[: -len(delimiter)]
            pending = []
            # A command to the client; without it nothing is left of the statement.
            if statement.strip() and not _CLIENT_COMMAND.fullmatch(statement.strip()):
                yield statement
    assert not pending, pending


def _load(server: DatabaseServer, text: bytes, *, expected: tuple[bytes, ...] = ()) -> None:
    """Run SQL text; ``expected`` are the statements that fail, as they did where they were logged."""
    failed = []
    with server.connect(local_infile=True) as connection:
        for statement in _split(text):
            try:
                _run(connection, statement)
            except pymysql.MySQLError as error:
                if statement.strip() not in expected:
                    raise AssertionError(statement[:2000]) from error
                failed.append(statement.strip())
    assert tuple(failed) == expected


def _records(files: list[Path]) -> Iterator[LogRecord]:
    decoder = LogDecoder()
    for path in files:
        with path.open("rb") as stream:
            raw = [RawEvent(str(path), path.name, *event) for event in iter_events(stream, str(path))]
            yield from decoder.records([raw])


def _text(files: list[Path], options: Any, make: Any = TextOutput) -> bytes:
    stream = io.BytesIO()
    output = make(stream, options)
    for record in _records(files):
        output.write(record)
    output.close()
    return stream.getvalue()


def _flashback(files: list[Path], options: FlashbackOptions | None = None) -> bytes:
    return _text(files, options, FlashbackOutput)


def _tables(server: DatabaseServer, database: str) -> dict[str, Any]:
    """Definition and rows of all tables of a database."""
    found = {}
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"SHOW CREATE TABLE `{table}`")
            create = re.sub(r" AUTO_INCREMENT=\d+", "", cursor.fetchone()[1])
            cursor.execute(f"SELECT * FROM `{table}`")
            found[table] = create, sorted(map(repr, cursor.fetchall()))
    return found


def _logged(server: DatabaseServer, database: str, statements: tuple[str | bytes, ...]) -> list[Path]:
    """Run statements in a database and give the log files that hold them and nothing else."""
    server.execute("FLUSH BINARY LOGS")
    first = len(server.binlog_files) - 1
    with server.connect(database=database, local_infile=True) as connection:
        for statement in statements:
            _run(connection, statement)
    server.execute("FLUSH BINARY LOGS")
    return server.binlog_files[first:-1]


@pytest.fixture
def schema(database: MySQL | MariaDB) -> str:
    """An empty database of the test's own."""
    name = f"sql_{uuid.uuid4().hex[:8]}"
    database.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4", "SET GLOBAL local_infile = 1")
    return name


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """A file for LOAD DATA."""
    path = tmp_path / "rows.csv"
    path.write_text("one,1,x\né,2.5,y\n" + "".join(f"many,{number},z\n" for number in range(3000)))
    return path


def test_rows_and_statements_under_another_name(
    database: MySQL | MariaDB, schema: str, csv: Path, tmp_path: Path
) -> None:
    statements = (*_ROWS, *_STATEMENTS, _LOAD.format(csv))
    files = _logged(database, schema, statements)
    options = TextOptions(
        verbose=2,
        skip_gtids=True,
        local_load=tmp_path,
        rewrite_db=DatabaseRewrite({schema: f"{schema}_copy"}),
    )
    text = _text(files, options)
    database.execute(f"CREATE DATABASE {schema}_copy CHARACTER SET utf8mb4")

    _load(database, text)

    assert _tables(database, f"{schema}_copy") == _tables(database, schema)
    database.execute(f"DROP DATABASE {schema}_copy", f"DROP DATABASE {schema}")


def test_a_log_with_its_gtids_makes_the_same_server(
    database: MySQL | MariaDB, schema: str, csv: Path, tmp_path: Path
) -> None:
    files = _logged(database, schema, (*_ROWS, *_STATEMENTS, _LOAD.format(csv)))
    text = _text(files, TextOptions(local_load=tmp_path))
    with type(database)(server_id=9, options={"local-infile": 1}) as copy:
        copy.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")

        _load(copy, text)

        assert _tables(copy, schema) == _tables(database, schema)
        assert _gtids(copy.binlog_files) >= _gtids(files)
    database.execute(f"DROP DATABASE {schema}")


def _gtids(files: list[Path]) -> set[str]:
    return {record.gtid for record in _records(files) if record.gtid is not None}


_BATCH = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\0": "\\0"})
_FAILED_ON_THE_ORIGIN = (b"INSERT INTO mi VALUES (1,'a'),(2,'b'),(1,'dup')",)


@pytest.mark.parametrize(("sample", "kind"), [("mysql8015", MySQL), ("mariadb1011", MariaDB)])
def test_the_logs_of_a_sample_make_its_tables(
    sample: str, kind: type[MySQL | MariaDB], tmp_path: Path
) -> None:
    """All logs of a server, statements and rows of every topic, loaded into an empty one of its kind."""
    archive = SHARED / "samples" / f"{sample}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is absent: set MILLRACE_SHARED to the folder that holds samples/")
    with tarfile.open(archive) as tar:
        untar(tar, tmp_path)
    folder = tmp_path / sample
    files = [path for path in sorted(folder.glob("mysql-bin.*")) if path.suffix[1:].isdecimal()]
    text = _text(files, TextOptions(local_load=tmp_path))
    with ExitStack() as stack:
        try:
            server = stack.enter_context(kind(server_id=9, options={"local-infile": 1}))
        except MissingLibraryError as error:
            pytest.skip(str(error))
        _load(server, text, expected=_FAILED_ON_THE_ORIGIN)

        different = [
            path.name
            for path in sorted((folder / "tables").glob("*.tsv"))
            if _rows(path.read_bytes()) != _rows(_batch(server, *path.stem.split(".", 1)))
        ]

    # The statement that wrote it says SYSDATE(), which is the time of whoever runs it.
    assert different == ["t09.ai.tsv"]


def _rows(batch: bytes) -> list[bytes]:
    return sorted(batch.split(b"\n"))


def _batch(server: DatabaseServer, database: str, table: str) -> bytes:
    """``SELECT *`` as a client in batch mode prints it."""
    with (
        server.connect(database=database, conv={}, use_unicode=False) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT * FROM `{table}`")
        rows = cursor.fetchall()
        lines = [[name for name, *_ in cursor.description], *rows] if rows else []
    return b"".join(b"\t".join(map(_field, line)) + b"\n" for line in lines)


def _field(value: str | bytes | None) -> bytes:
    if value is None:
        return b"NULL"
    text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
    return text.translate(_BATCH).encode("utf-8", "surrogateescape")


def test_flashback_gives_the_tables_of_before(database: MySQL | MariaDB, schema: str) -> None:
    _logged(database, schema, _ROWS)
    before = _tables(database, schema)
    statements = [statement for statement in _ROWS if not statement.startswith("CREATE")]
    files = _logged(database, schema, ("DELETE FROM everything WHERE id < 3", *statements))
    assert _tables(database, schema) != before

    _load(database, _flashback(files, FlashbackOptions(verbose=2)))

    assert _tables(database, schema) == before
    database.execute(f"DROP DATABASE {schema}")


def test_flashback_refuses_ddl_and_partial_images(database: MySQL | MariaDB, schema: str) -> None:
    files = _logged(database, schema, ("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",))
    with pytest.raises(UserError, match="CREATE TABLE t"):
        _flashback(files)
    database.execute(f"INSERT INTO {schema}.t VALUES (1, 2, 3)")
    files = _logged(
        database, schema, ("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET a = 5 WHERE id = 1")
    )

    with pytest.raises(UserError, match=rf"{schema}\.t: the before image is partial: columns 2, 3 missing"):
        _flashback(files)

    text = _flashback(files, FlashbackOptions(force=True))
    assert b"# NOT undone: " in text
    database.execute(f"DROP DATABASE {schema}")
