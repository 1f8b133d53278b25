"""The local stack itself: it serves, keeps its data through kill and restart, never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pymysql
import pytest

from millrace.avro.registry import SchemaRegistry
from millrace.local import (
    ComponentDiedError,
    LocalStack,
    MariaDB,
    MissingLibraryError,
    MySQL,
    Registry,
)
from millrace.runtime.settings import RegistrySettings


def test_a_registry_that_is_killed_keeps_what_it_has_acknowledged(registry: Registry) -> None:
    """Beside another one that runs."""
    schema = {"type": "record", "name": "kept", "fields": []}
    with Registry() as other:
        assert registry.running
        settings = RegistrySettings(url=other.url)
        with SchemaRegistry(settings) as client:
            schema_id = client.register("kept-value", schema)
        other.kill()
        other.stop()
        other.start()
        with SchemaRegistry(settings) as client:
            assert client.schema(schema_id) == schema


def test_database_writes_a_complete_log(database: MySQL | MariaDB) -> None:
    [row] = database.query("SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata")
    assert row == (1, "ROW", "FULL", "FULL")
    assert database.binlog_files


def test_database_account_may_replicate_and_read_only(database: MySQL | MariaDB) -> None:
    account = {
        "host": database.host,
        "port": database.port,
        "user": database.user,
        "password": database.password,
    }
    with pymysql.connect(**account) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        assert cursor.fetchone()
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("CREATE DATABASE not_allowed")


@pytest.mark.parametrize("server_class", [MySQL, MariaDB])
def test_data_outlasts_a_kill(server_class: type[MySQL | MariaDB]) -> None:
    with server_class() as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "INSERT INTO d.t VALUES (1)")
        port = server.port
        server.kill()
        with pytest.raises(ComponentDiedError, match="was killed by signal 9"):
            server.check()
        server.start()
        assert server.port == port
        assert server.query("SELECT a FROM d.t") == [(1,)]


def test_a_server_that_cannot_start_says_why() -> None:
    server = MySQL(options={"no-such-option": 1})
    with pytest.raises(ComponentDiedError, match="unknown variable 'no-such-option=1'"):
        server.start()
    assert not server.running


def test_nothing_outlives_a_killed_parent() -> None:
    script = (
        "import sys, time\n"
        "from threading import Thread\n"
        "from millrace.local import MySQL\n"
        "server = MySQL()\n"
        "thread = Thread(target=server.start)\n"  # the thread that starts it ends long before its parent
        "thread.start(); thread.join()\n"
        "print(server.processes[0].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while _is_alive(child):
        assert time.monotonic() < deadline, "the server outlives its parent"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_mariadb_takes_the_place_of_a_mysql_that_cannot_start() -> None:
    class Lacking(MySQL):
        def _prepare(self) -> None:
            raise MissingLibraryError(
                "mysql cannot start: this machine lacks libx.so.1; install: x", ["libx.so.1"]
            )

    said: list[str] = []
    with LocalStack(database=Lacking(), parts=["database"], say=said.append) as stack:
        assert isinstance(stack.database, MariaDB)
        assert stack.database.query("SELECT @@log_bin") == [(1,)]
    assert said == ["mysql cannot start: this machine lacks libx.so.1; install: x. Using MariaDB instead."]
