"""XA transactions whose parts lie in different log files: their rows come at XA COMMIT, or never."""

from contextlib import closing
from pathlib import Path

from millrace.local import Kafka, MySQL, Registry

from .rows_world import RowsWorld


def test_prepared_before_a_crash_and_decided_after_it(
    kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path
) -> None:
    with (
        MySQL(server_id=21) as server,
        closing(RowsWorld(kafka, registry, server, source_name, tmp_path)) as world,
    ):
        database = world.database
        server.execute(
            f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(9))"
        )
        for name, number in (("one", 1), ("two", 2), ("three", 3)):
            with server.connect(database=database) as connection, connection.cursor() as cursor:
                for statement in (
                    f"XA START '{name}', 'b', 7",
                    f"INSERT INTO t VALUES ({number}, '{name}')",
                    f"XA END '{name}', 'b', 7",
                    f"XA PREPARE '{name}', 'b', 7",
                ):
                    cursor.execute(statement)
        server.execute(f"INSERT INTO {database}.t VALUES (4, 'plain')", "FLUSH BINARY LOGS")
        server.kill()
        server.start()
        prepared = len(server.binlog_files)
        # What reads the first part is another process than what reads the rest.
        with world.services("reader", "decoder", "rowmapper", MILLRACE_START="earliest"):
            assert [row["after"]["id"] for row in world.wait_for_row("t")] == [4]
        server.execute("XA ROLLBACK 'two', 'b', 7", "FLUSH BINARY LOGS", "XA COMMIT 'three', 'b', 7")
        server.execute(
            "FLUSH BINARY LOGS", "XA COMMIT 'one', 'b', 7", f"DELETE FROM {database}.t WHERE id = 4"
        )
        with world.services("reader", "decoder", "rowmapper"):
            rows = world.wait_for_row("t", 4)
        assert len(server.binlog_files) > prepared
        assert [(row["op"], (row["after"] or row["before"])["id"]) for row in rows] == [
            ("c", 4),
            ("c", 3),
            ("c", 1),
            ("d", 4),
        ]
        assert world.messages(world.topics.deadletter) == []
        assert server.query(f"SELECT id FROM {database}.t ORDER BY id") == [(1,), (3,)]
