"""Debezium in Kafka Connect: one worker, started for one run, as Millrace's services are.

Its settings are those with which it was fastest here, those of the JVM its defaults. What it has to do is
made no more than what Millrace does: a record per row, no tombstone after that of a delete, no schemas in
the records. Its offset is given to it before it starts, so that it reads the log from the input's first event
on; of the tables it reads the definitions alone (``snapshot.mode=recovery``).
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pipeline import PipelineResult, watch
from millrace.kafka.client import admin_client
from millrace.kafka.read import end_offsets, topic_names
from millrace.local import Component, DatabaseServer, Kafka, LocalStack
from millrace.local.artifacts import bundle, fetch
from millrace.local.java import find_java
from millrace.local.processes import Process
from millrace.runtime.settings import KafkaSettings

__all__ = ["Connect", "measure_debezium"]

_STREAMS = "Connected to binlog at"
_SERVER_ID = 5400
_BUSY = frozenset({400, 404, 409, 500})
"""Statuses of a worker that has not stopped, made or found a connector yet."""

_LOG4J = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class Connect(Component):
    """A worker of Kafka Connect with Debezium's connector for MySQL as its plugin."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__("connect")
        self.version = bundle("connect").version
        self._kafka = kafka

    def _prepare(self) -> None:
        settings = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{self.ports[0]}",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "plugin.path": str(fetch("debezium")),
            "plugin.discovery": "only_scan",
        }
        (self.folder / "worker.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        (self.folder / "log4j2.properties").write_text(_LOG4J)

    def _launch(self) -> None:
        command = [
            str(find_java(17, 21).program),
            "-cp",
            f"{fetch('connect')}/*",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(self.folder / "worker.properties"),
        ]
        self.processes = [Process("connect", command, log=self._log_file, cwd=self.folder)]

    def _is_ready(self) -> bool:
        try:
            self._ask("GET", "/connectors")
        except OSError:
            return False
        return True

    @property
    def _log_file(self) -> Path:
        return self.folder / "connect.log"

    @property
    def streams(self) -> bool:
        """Whether the connector has begun to read the log."""
        return _STREAMS in self._log_file.read_text(errors="replace")

    def begin(
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
        self._ask("POST", "/connectors", {"name": prefix, "config": config, "initial_state": "STOPPED"})
        offset = {"partition": {"server": prefix}, "offset": {"file": log_file, "pos": 4, "gtids": gtids}}
        self._ask("PATCH", f"/connectors/{prefix}/offsets", {"offsets": [offset]})
        self._ask("PUT", f"/connectors/{prefix}/resume")

    def check_task(self, prefix: str) -> None:
        """Raise RuntimeError if the connector's task has failed, which leaves the worker alive."""
        for task in self._ask("GET", f"/connectors/{prefix}/status")["tasks"]:
            if task["state"] == "FAILED":
                raise RuntimeError(f"Debezium has failed:\n{task['trace']}")

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

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the worker; a refusal because it is at work on something is no answer yet."""
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.ports[0]}{path}",
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                method=method,
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read()
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code not in _BUSY or time.monotonic() > deadline:
                    raise RuntimeError(f"{method} {path}: HTTP {error.code}: {said}") from error
                time.sleep(0.2)
            else:
                return json.loads(text) if text else None


def measure_debezium(stack: LocalStack, name: str, schema: str, log_file: str, rows: int) -> PipelineResult:
    """Carry ``rows`` rows of the tables of ``schema`` to topics, from the start of a log file on."""
    admin = admin_client(KafkaSettings.model_validate({"bootstrap_servers": stack.kafka.bootstrap_servers}))

    def written() -> int:
        # One producer without Kafka transactions: the ends of the topics are numbers of records.
        topics = [topic for topic in topic_names(admin) if topic.startswith(f"{name}.{schema}.")]
        return sum(end_offsets(admin, [(topic, 1) for topic in topics]).values())

    with Connect(stack.kafka) as connect:
        connect.begin(stack.database, name, schema, log_file)

        def begun() -> bool:
            connect.check_task(name)
            return connect.streams

        return watch(stack, {"connect": connect.processes[0]}, rows, begun=begun, written=written)
