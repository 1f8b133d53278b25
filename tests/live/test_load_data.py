"""LOAD DATA that real servers log: the file is put together from its blocks."""

from collections import Counter
from pathlib import Path

from millrace.binlog import ExecuteLoadQueryEvent, LoadData, LoadDataAssembler, decode_file
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
    types: Counter[int] = Counter()
    loads: list[LoadData] = []
    assembler = LoadDataAssembler()
    with log.open("rb") as stream:
        for _, decoded in decode_file(stream, log.name):
            types[decoded.header.type_code] += 1
            load = assembler.feed(decoded.event)
            if load is not None:
                loads.append(load)
    assert (types[17], types[18]) == (1, 1)
    assert types[9] > 1
    assert [load.content for load in loads] == [content]
    assert isinstance(loads[0].statement, ExecuteLoadQueryEvent)
    assert loads[0].statement.query.startswith(b"LOAD DATA")
    assert assembler.open_files == ()
