"""LOAD DATA that real servers log: its blocks are the file."""

from pathlib import Path

from millrace.binlog import ExecuteLoadQueryEvent, decode_file
from millrace.binlog.events import AppendBlockEvent, BeginLoadQueryEvent
from millrace.local import MariaDB, MySQL


def test_load_data_of_a_server(database: MySQL | MariaDB, tmp_path: Path) -> None:
    lines = [f"{number}\tline {number}\n" for number in range(20000)]
    content = "".join(lines).encode()
    file = tmp_path / "lines.txt"
    file.write_bytes(content)
    database.execute("SET GLOBAL local_infile=1", "DROP DATABASE IF EXISTS loads", "CREATE DATABASE loads")
    with database.connect(local_infile=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE loads.t (id INT PRIMARY KEY, name VARCHAR(20)) ENGINE=MyISAM")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SET binlog_format=STATEMENT")
        cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE loads.t")
        cursor.execute("SELECT COUNT(*) FROM loads.t")
        assert cursor.fetchone() == (len(lines),)
        cursor.execute("FLUSH BINARY LOGS")
    log = database.binlog_files[-2]
    with log.open("rb") as stream:
        events = [decoded.event for _, decoded in decode_file(stream, log.name)]
    blocks = [event for event in events if isinstance(event, AppendBlockEvent | BeginLoadQueryEvent)]
    assert isinstance(blocks[0], BeginLoadQueryEvent)
    assert len(blocks) > 2
    assert b"".join(block.block_data for block in blocks) == content
    (statement,) = [event for event in events if isinstance(event, ExecuteLoadQueryEvent)]
    assert statement.query.startswith(b"LOAD DATA")
    assert {statement.file_id} == {block.file_id for block in blocks}
