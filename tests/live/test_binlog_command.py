"""``millrace binlog`` on logs of real servers: read live, followed, copied, and out of Kafka."""

import json
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner, Result
from pymysql.constants import ER

from millrace.binlog import ChangeReader
from millrace.cli import main
from millrace.local import Kafka, MariaDB, MySQL
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.server_log import follow_changes
from millrace.mysql.status import log_status
from tests.live.reader_world import TRUST, ReaderWorld, settle
from tests.live.test_binlog_sql import _load
from tests.service_process import ServiceProcess, wait_for

Server = MySQL | MariaDB
PATIENCE_S = 240.0
FLAGS_OF_HEAD = 21
"""Where the IN_USE flag of a log file stands, which a dump clears."""


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["binlog", *arguments], env=environment, catch_exceptions=False)


def url(server: Server, log_file: str = "") -> str:
    return f"mysql://{server.user}:{server.password}@{server.host}:{server.port}/{log_file}?{TRUST}"


def lines_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def write(server: Server, database: str, rounds: int = 3) -> None:
    server.execute(
        f"CREATE DATABASE IF NOT EXISTS {database}",
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
        *(f"INSERT INTO {database}.t (v) VALUES ('{number}')" for number in range(rounds)),
        f"UPDATE {database}.t SET v = 'ü' ORDER BY id LIMIT 1",
        f"DELETE FROM {database}.t ORDER BY id LIMIT 1",
    )


def cut_dumps(server: Server) -> None:
    """End all replication connections of a server."""
    for row in server.query("SHOW PROCESSLIST"):
        if str(row[4]).startswith("Binlog Dump"):
            try:
                server.execute(f"KILL {row[0]}")
            except pymysql.err.OperationalError as error:
                # That of a test before this one may end by itself meanwhile.
                if error.args[0] != ER.NO_SUCH_THREAD:
                    raise


class Process(ServiceProcess):
    """The command as a process, and what it has written so far."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(
            [sys.executable, "-m", "millrace.cli", "binlog", *arguments], {"PYTHONUNBUFFERED": "1"}
        )

    @property
    def lines(self) -> list[str]:
        """All whole lines."""
        return self.output.split("\n")[:-1]

    def wait_for(self, seen: Callable[[list[str]], bool]) -> None:
        wait_for(lambda: seen(self.lines), self, "the lines", PATIENCE_S)

    def stop(self, number: signal.Signals) -> int:
        self.send_signal(number)
        return self.wait(PATIENCE_S)


def process(*arguments: str) -> AbstractContextManager[Process]:
    return closing(Process(*arguments))


def wait_until(true: Callable[[], bool]) -> None:
    wait_for(true, timeout_s=PATIENCE_S)


# -- a server's log ---------------------------------------------------------------------------------------


def test_a_server_gives_what_its_files_hold(database: Server) -> None:
    write(database, "command_live")
    database.execute("FLUSH BINARY LOGS")
    write(database, "command_live")
    settle(database)
    live = lines_of(run("--json", url(database)))
    files = lines_of(run("--json", *map(str, database.binlog_files)))
    for line in files:
        if line["type"] == "FORMAT_DESCRIPTION_EVENT":
            line["flags"] = 0
    assert live == files
    assert run("--verify", url(database)).stdout.startswith("sound: ")


def test_a_script_for_mysqlbinlog_reads_a_server(database: Server, tmp_path: Path) -> None:
    """With the options of the programs, from the command line or an option file, the logs are the same."""
    write(database, "command_options")
    database.execute("FLUSH BINARY LOGS")
    settle(database)
    *closed, last = (path.name for path in database.binlog_files)
    place = ("-h", database.host, f"-P{database.port}", "--protocol=tcp", "--get-server-public-key")
    login = (f"-u{database.user}", f"--password={database.password}")
    by_url = [run("--json", url(database, name)) for name in (*closed, last)]
    expected = [line for result in by_url for line in lines_of(result)]
    remote = ("--no-defaults", "-R", *place, *login, "--connection-server-id=4321")
    assert lines_of(run("--json", *remote, *closed, last)) == expected
    assert lines_of(run("--json", *remote, "--to-last-log", (*closed, last)[0])) == expected
    assert lines_of(run("--json", *remote, last)) == lines_of(by_url[-1])
    options = tmp_path / "login.cnf"
    options.write_text(f"[client]\nuser={database.user}\npassword='{database.password}'\nhost=nowhere\n")
    source = "--read-from-remote-source=BINLOG-DUMP-GTIDS"
    assert lines_of(run(f"--defaults-file={options}", "--json", source, *place, *closed, last)) == expected
    copies = tmp_path / "copies"
    copies.mkdir()
    assert run(*remote, "--raw", f"--result-file={copies}/", *closed).exit_code == 0
    files = {path.name: path.read_bytes() for path in database.binlog_files}
    assert {path.name: path.read_bytes() for path in copies.iterdir()} == {
        name: files[name] for name in closed
    }
    refused = run(*remote[:-3], "-unobody", "--password=wrong", last)
    assert refused.exit_code == 3
    assert refused.stderr.count("\n") == 1


def test_changes_of_rows_come_from_a_server(database: Server) -> None:
    """As docs/library.md shows it: the server gives what its files hold."""
    write(database, "command_changes")
    settle(database)
    names: list[str] = []
    reader = ChangeReader(lambda *table: names.append(".".join(table)))
    found = [
        (event.operation, list(event.rows))
        for event in follow_changes(url(database), follow=False, reader=reader)
        if event.database == "command_changes"
    ]
    expected = [*[("insert", 1)] * 3, ("update", 1), ("delete", 1)]
    assert [(operation, len(rows)) for operation, rows in found] == expected
    assert found[3][1][0].before != found[3][1][0].after
    assert "command_changes.t" in names


def test_one_log_is_read_or_all_from_it_on(database: Server) -> None:
    write(database, "command_one")
    database.execute("FLUSH BINARY LOGS")
    write(database, "command_one")
    *_, one, last = (path.name for path in database.binlog_files)
    assert {line["file"] for line in lines_of(run("--json", url(database, one)))} == {one}
    lines = lines_of(run("--json", "--to-last-log", url(database, one)))
    assert {line["file"] for line in lines} == {one, last}
    stop = lines_of(run("--json", "--stop-position", "200", url(database, one)))
    assert max(line["position"] for line in stop) < 200


def test_a_server_sends_what_comes_behind_a_gtid_set(database: Server) -> None:
    write(database, "command_gtids")
    address = database.address
    with MysqlConnection(address) as connection:
        gtids = log_status(connection).gtid_set
    database.execute("INSERT INTO command_gtids.t (v) VALUES ('behind')")
    lines = lines_of(run("--json", "--after-gtids", gtids, url(database)))
    assert next(line["rows"] for line in lines if line["type"].startswith("WRITE_ROWS"))[0]["after"]
    transactions = {line["gtid"] for line in lines if line["gtid"]}
    assert len(transactions) == 1
    rows = [line for line in lines if line["type"].startswith("WRITE_ROWS")]
    path = next(path for path in database.binlog_files if path.name == rows[0]["file"])
    same = lines_of(run("--json", str(path), "--start-position", str(rows[0]["position"])))
    assert same[0] == rows[0]


def test_a_server_is_followed_over_a_rotation_and_a_lost_connection(database: Server) -> None:
    write(database, "command_follow")
    last = database.binlog_files[-1].name
    with process("--json", "--follow", url(database, last)) as following:
        following.wait_for(lambda lines: any('"command_follow"' in line for line in lines))
        database.execute("INSERT INTO command_follow.t (v) VALUES ('first')", "FLUSH BINARY LOGS")
        new = f'"file":"{database.binlog_files[-1].name}"'
        following.wait_for(lambda lines: any(new in line for line in lines))
        cut_dumps(database)
        database.execute("INSERT INTO command_follow.t (v) VALUES ('second')")
        following.wait_for(lambda lines: any(new in line and "WRITE_ROWS" in line for line in lines))
        assert following.stop(signal.SIGINT) == 130
        assert following.error_output.endswith("; connecting again\n")
        places = [(line["file"], line["position"]) for line in map(json.loads, following.lines)]
    assert len(set(places)) == len(places), "nothing comes twice"
    files = lines_of(run("--json", *map(str, database.binlog_files)))
    known = [(line["file"], line["position"]) for line in files]
    start = known.index(places[0])
    assert known[start : start + len(places)] == places, "nothing is missing"


def test_a_dump_by_gtids_goes_on_behind_a_lost_connection(database: Server) -> None:
    write(database, "command_lost")
    address = database.address
    with MysqlConnection(address) as connection:
        gtids = log_status(connection).gtid_set
    database.execute("INSERT INTO command_lost.t (v) VALUES ('first')")
    with process("--json", "--follow", "--after-gtids", gtids, url(database)) as following:
        following.wait_for(lambda lines: any("WRITE_ROWS" in line for line in lines))
        cut_dumps(database)
        database.execute("INSERT INTO command_lost.t (v) VALUES ('second')")
        following.wait_for(lambda lines: sum("WRITE_ROWS" in line for line in lines) == 2)
        assert following.stop(signal.SIGINT) == 130
        places = [(line["file"], line["position"]) for line in map(json.loads, following.lines)]
    assert len(set(places)) == len(places)


def test_what_goes_wrong_with_a_server_is_said_in_a_line(mysql: MySQL) -> None:
    wrong = run("--json", f"mysql://{mysql.user}:not-it@{mysql.host}:{mysql.port}/?{TRUST}")
    assert wrong.exit_code == 3
    assert wrong.stderr.count("\n") == 1
    assert "check user and password" in wrong.stderr
    assert "not-it" not in wrong.stderr
    missing = run("--json", url(mysql, "mysql-bin.999999"))
    assert missing.exit_code == 3
    assert "could not find first log file name" in missing.stderr.lower()
    other = run("--json", "--after-gtids", "0-1-100", url(mysql))
    assert other.exit_code == 2
    assert "'0-1-100' in a GTID set is not a uuid" in other.stderr
    nowhere = run("--json", "mysql://127.0.0.1:1/")
    assert nowhere.exit_code == 3
    assert "127.0.0.1:1" in nowhere.stderr


def test_the_password_comes_from_the_environment_or_is_asked_for(mysql: MySQL) -> None:
    address = f"mysql://{mysql.user}@{mysql.host}:{mysql.port}/{mysql.binlog_files[0].name}?{TRUST}"
    assert lines_of(run("--json", address, MILLRACE_MYSQL_PASSWORD=mysql.password))
    asked = CliRunner().invoke(main, ["binlog", "--json", "--password", address], input=f"{mysql.password}\n")
    assert asked.exit_code == 0
    assert asked.stderr.startswith("Password: ")
    assert mysql.password not in asked.output


# -- files ------------------------------------------------------------------------------------------------


def test_files_are_followed_as_they_grow_and_rotate(database: Server) -> None:
    write(database, "command_files")
    last = database.binlog_files[-1]
    with process("--json", "--follow", str(last)) as following:
        following.wait_for(lambda lines: any('"command_files"' in line for line in lines))
        database.execute("INSERT INTO command_files.t (v) VALUES ('first')", "FLUSH BINARY LOGS")
        database.execute("INSERT INTO command_files.t (v) VALUES ('second')")
        new = database.binlog_files[-1]
        following.wait_for(lambda lines: any(new.name in line and '"XID_EVENT"' in line for line in lines))
        assert following.stop(signal.SIGINT) == 130
        got = [json.loads(line) for line in following.lines]
    whole = lines_of(run("--json", str(last), str(new)))
    for line in (*got, *whole):
        if line["type"] == "FORMAT_DESCRIPTION_EVENT":
            line["flags"] = 0
    assert got == whole[: len(got)]
    assert got[-1]["file"] == new.name


def test_the_text_of_one_table_makes_that_table(database: Server) -> None:
    """In the log are statements that change two tables, and transactions with other tables in them."""
    database.execute("FLUSH BINARY LOGS", "CREATE DATABASE command_two", "CREATE DATABASE command_copy")
    database.execute(
        "USE command_two",
        "CREATE TABLE kept (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE other (id INT PRIMARY KEY, v VARCHAR(20))",
        "BEGIN",
        "INSERT INTO kept VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO other VALUES (1, 'a')",
        "COMMIT",
        "UPDATE kept k JOIN other o ON o.id = k.id SET k.v = 'joined', o.v = 'joined'",
        "UPDATE other o JOIN kept k ON o.id = k.id SET k.v = CONCAT(k.v, '!'), o.v = 'again'",
        "INSERT INTO other VALUES (2, 'b')",
        "XA START 'two'",
        "INSERT INTO kept VALUES (3, 'xa')",
        "INSERT INTO other VALUES (3, 'xa')",
        "XA END 'two'",
        "XA PREPARE 'two'",
        "XA COMMIT 'two'",
        "ALTER TABLE kept ADD COLUMN w INT DEFAULT 7",
        "DROP TABLE other",
    )
    last = str(database.binlog_files[-1])
    text = run(
        "--table", "command_two.kept", "--rewrite-db", "command_two->command_copy", "--skip-gtids", last
    )
    assert text.exit_code == 0, text.stderr
    _load(database, text.stdout_bytes)
    assert database.query("SHOW TABLES FROM command_copy") == [("kept",)]
    rows = "SELECT * FROM {}.kept ORDER BY id"
    assert database.query(rows.format("command_copy")) == database.query(rows.format("command_two"))


# -- copies -----------------------------------------------------------------------------------------------


def assert_copied(server: Server, folder: Path) -> None:
    paths = server.binlog_files
    assert sorted(path.name for path in folder.iterdir()) == [path.name for path in paths]
    for path in paths[:-1]:
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
    copy, original = (folder / paths[-1].name).read_bytes(), paths[-1].read_bytes()
    assert copy[:FLAGS_OF_HEAD] == original[:FLAGS_OF_HEAD]
    assert copy[FLAGS_OF_HEAD + 1 :] == original[FLAGS_OF_HEAD + 1 :]


def test_copies_are_the_servers_files(database: Server, tmp_path: Path) -> None:
    write(database, "command_raw")
    database.execute("INSERT INTO command_raw.t (v) VALUES (REPEAT('x', 20000000))", "FLUSH BINARY LOGS")
    write(database, "command_raw")
    settle(database)
    assert run("--raw", "--result-file", f"{tmp_path}/", url(database)).exit_code == 0
    assert_copied(database, tmp_path)


def test_a_copy_goes_on_where_it_was_cut(database: Server, tmp_path: Path) -> None:
    write(database, "command_cut")
    database.execute("FLUSH BINARY LOGS")
    write(database, "command_cut")
    settle(database)
    assert run("--raw", "--result-file", f"{tmp_path}/", url(database)).exit_code == 0
    last = tmp_path / database.binlog_files[-1].name
    last.write_bytes(last.read_bytes()[:-7])
    write(database, "command_cut")
    again = run("--raw", "--result-file", f"{tmp_path}/", url(database))
    assert again.exit_code == 0
    assert again.stderr.count("\n") == 1, "only the last file is touched"
    assert_copied(database, tmp_path)
    nothing_new = run("--raw", "--result-file", f"{tmp_path}/", url(database))
    assert nothing_new.exit_code == 0
    assert_copied(database, tmp_path)


def test_a_copy_goes_on_beyond_the_positions_that_a_dump_can_name(
    mysql: MySQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 4 GiB a dump begins at the head of the file; here a few bytes count as 4 GiB."""
    write(mysql, "command_far")
    mysql.execute("FLUSH BINARY LOGS")
    write(mysql, "command_far")
    assert run("--raw", "--result-file", f"{tmp_path}/", url(mysql)).exit_code == 0
    last = tmp_path / mysql.binlog_files[-1].name
    last.write_bytes(last.read_bytes()[:-100])
    monkeypatch.setattr("millrace.mysql.server_log._LAST_POSITION", 200)
    assert run("--raw", "--result-file", f"{tmp_path}/", url(mysql)).exit_code == 0
    assert_copied(mysql, tmp_path)


def test_a_copy_survives_being_killed_and_follows(database: Server, tmp_path: Path) -> None:
    write(database, "command_kill")
    arguments = (
        "--raw",
        "--follow",
        "--result-file",
        f"{tmp_path}/",
        url(database, database.binlog_files[-1].name),
    )
    first = len(database.binlog_files) - 1
    for round_number in range(2):
        with process(*arguments) as copying:
            database.execute(f"INSERT INTO command_kill.t (v) VALUES (REPEAT('{round_number}', 3000000))")
            if round_number == 1:
                database.execute("FLUSH BINARY LOGS")
            wait_until(lambda: any(tmp_path.iterdir()))
            copying.stop(signal.SIGKILL)
        newest = max(tmp_path.iterdir())
        newest.write_bytes(newest.read_bytes()[:-3])
    settle(database)
    with process(*arguments) as copying:
        paths = database.binlog_files[first:]
        wait_until(
            lambda: all(
                (tmp_path / path.name).exists()
                and (tmp_path / path.name).stat().st_size == path.stat().st_size
                for path in paths
            )
        )
        assert copying.stop(signal.SIGINT) == 130
    for path in paths:
        copy, original = (tmp_path / path.name).read_bytes(), path.read_bytes()
        assert copy[FLAGS_OF_HEAD + 1 :] == original[FLAGS_OF_HEAD + 1 :]


def test_a_copy_of_another_log_is_not_continued(mysql: MySQL, tmp_path: Path) -> None:
    name = mysql.binlog_files[0].name
    assert run("--raw", "--result-file", f"{tmp_path}/", url(mysql, name)).exit_code == 0
    copy = tmp_path / name
    content = bytearray(copy.read_bytes())
    content[4] ^= 1
    copy.write_bytes(content)
    refused = run("--raw", "--result-file", f"{tmp_path}/", url(mysql, name))
    assert refused.exit_code == 7
    assert "is of another log" in refused.stderr
    assert copy.read_bytes() == content


# -- Kafka ------------------------------------------------------------------------------------------------


def test_a_raw_topic_gives_what_the_files_hold(kafka: Kafka, mysql: MySQL, source_name: str) -> None:
    write(mysql, "command_kafka")
    mysql.execute("INSERT INTO command_kafka.t (v) VALUES (REPEAT('x', 3000000))")
    world = ReaderWorld.of(kafka, source_name, mysql)
    with world.reader() as reader:
        world.wait_until_at(mysql, reader)
        address = f"kafka://{kafka.bootstrap_servers}/{source_name}"
        with process("--json", "--follow", address) as following:
            following.wait_for(lambda lines: any('"command_kafka"' in line for line in lines))
            mysql.execute("INSERT INTO command_kafka.t (v) VALUES ('followed')")
            following.wait_for(lambda lines: any('"Zm9sbG93ZWQ="' in line for line in lines))
            world.wait_until_at(mysql, reader)
            assert following.stop(signal.SIGINT) == 130
            assert following.error_output == ""
    topic = lines_of(run("--json", f"kafka://{kafka.bootstrap_servers}/{source_name}"))
    files = lines_of(run("--json", *map(str, mysql.binlog_files)))
    for line in files:
        if line["type"] == "FORMAT_DESCRIPTION_EVENT":
            line["flags"] = 0
    assert topic == files
    assert run("--verify", address).stdout.startswith("sound: ")
