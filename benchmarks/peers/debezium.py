"""Debezium in Kafka Connect: one worker, started for one run, as Millrace's services are.

Its settings are those with which it was fastest here; the JVM has its defaults. It does no more work than
Millrace: a record per row, no tombstone after a delete, no schemas in
the records. Its offset is set before it starts, so it reads the log from the input's first event;
of the tables it reads only the definitions (``snapshot.mode=recovery``). To measure its snapshot,
it begins with that (``snapshot.mode=initial``).
"""

import re
from collections.abc import Mapping

from benchmarks.pipeline import PipelineResult, watch
from millrace.kafka.client import admin_client
from millrace.kafka.read import end_offsets, topic_names
from millrace.local import DatabaseServer, Kafka, LocalStack
from millrace.local.connect import Connect
from millrace.runtime.settings import KafkaSettings

_STREAMS = "Connected to binlog at"
_SERVER_ID = 5400
_EXPORTED = re.compile(r"Finished exporting (\d+) records for table")
_SNAPSHOT_ENDED = "Snapshot completed"


class Debezium(Connect):
    """A worker of Kafka Connect with Debezium's connector for MySQL as its plugin."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(kafka, "debezium")

    @property
    def streams(self) -> bool:
        """Whether the connector has begun to read the log."""
        return _STREAMS in self.log_file.read_text(errors="replace")

    def begin_source(
        self,
        database: DatabaseServer,
        prefix: str,
        schema: str,
        log_file: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Make a connector that reads ``schema`` from the start of a log file on, with other ``settings``.

        Where the server has GTIDs it goes by those before the file alone.
        """
        (gtids,) = (
            info.replace("\n", "")
            for _, _, kind, _, _, info in database.query(f"SHOW BINLOG EVENTS IN '{log_file}' LIMIT 2")
            if kind == "Previous_gtids"
        )
        config = self._connector(database, prefix, schema) | dict(settings or {})
        self.begin(prefix, config, state="STOPPED")
        offset = {"partition": {"server": prefix}, "offset": {"file": log_file, "pos": 4, "gtids": gtids}}
        self.ask("PATCH", f"/connectors/{prefix}/offsets", {"offsets": [offset]})
        self.ask("PUT", f"/connectors/{prefix}/resume")

    def begin_snapshot(self, database: DatabaseServer, prefix: str, schema: str) -> None:
        """Make a connector that takes a snapshot of the tables of ``schema``, and then reads the log.

        It holds the global read lock until it knows its place in the log, as it does by default: without,
        the place and the rows would not belong together where the tables are written to.
        """
        config = {"snapshot.mode": "initial", "snapshot.locking.mode": "minimal"}
        self.begin(prefix, self._connector(database, prefix, schema) | config)

    @property
    def exported(self) -> int | None:
        """The rows that a snapshot has read; None until all are read."""
        text = self.log_file.read_text(errors="replace")
        return sum(map(int, _EXPORTED.findall(text))) if _SNAPSHOT_ENDED in text else None

    def _connector(self, database: DatabaseServer, prefix: str, schema: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "tasks.max": "1",
            "database.hostname": database.host,
            "database.port": str(database.port),
            "database.user": database.user,
            "database.password": database.password,
            "database.server.id": str(_SERVER_ID),
            "database.include.list": schema,
            "topic.prefix": prefix,
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "snapshot.mode": "recovery",
            "snapshot.locking.mode": "none",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self.folder / "history"),
            "include.schema.changes": "false",
            "tombstones.on.delete": "false",
            "max.batch.size": "8192",
            "max.queue.size": "32768",
            "producer.override.linger.ms": "20",
            "producer.override.batch.size": "524288",
            "producer.override.buffer.memory": "134217728",
            "producer.override.compression.type": "lz4",
        }


def measure_debezium(stack: LocalStack, name: str, schema: str, log_file: str, rows: int) -> PipelineResult:
    """Carry ``rows`` rows of the tables of ``schema`` to topics, from the start of a log file on."""
    admin = admin_client(KafkaSettings.model_validate({"bootstrap_servers": stack.kafka.bootstrap_servers}))

    def written() -> int:
        # One producer without Kafka transactions: the ends of the topics are numbers of records.
        topics = [topic for topic in topic_names(admin) if topic.startswith(f"{name}.{schema}.")]
        return sum(end_offsets(admin, [(topic, 1) for topic in topics]).values())

    with Debezium(stack.kafka) as connect:
        connect.begin_source(stack.database, name, schema, log_file)

        def begun() -> bool:
            connect.check_task(name)
            return connect.streams

        return watch(stack, {"connect": connect.processes[0]}, rows, begun=begun, written=written)
