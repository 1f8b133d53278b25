"""Debezium's connector for MySQL in Kafka Connect, which reads the log that the services read."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.local import MySQL
from millrace.local.connect import Connect
from tests.service_process import wait_for

__all__ = ["debezium"]


@contextmanager
def debezium(connect: Connect, server: MySQL, prefix: str, database: str, **settings: str) -> Iterator[None]:
    """A connector that reads the log from now on; the tables are in topics PREFIX.DATABASE.TABLE.

    ``settings`` are others of the connector's.
    """
    config = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": server.host,
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.server.id": "5401",
        "database.include.list": database,
        "topic.prefix": prefix,
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        "snapshot.mode": "no_data",
        "snapshot.locking.mode": "none",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(connect.folder / f"history-{prefix}"),
        "include.schema.changes": "false",
        **settings,
    }
    connect.begin(prefix, config)

    def streams() -> bool:
        connect.check_task(prefix)
        return "Connected to binlog at" in connect.log_file.read_text(errors="replace")

    wait_for(streams, None, "Debezium")
    yield
    connect.end(prefix)
