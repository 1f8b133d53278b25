"""Apache Kafka in KRaft mode: one node, or three, each broker and controller at once."""

import base64
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace.local.artifacts import bundle, cache_folder, fetch, made_once
from millrace.local.component import Component
from millrace.local.errors import ComponentDiedError, LocalError
from millrace.local.java import class_archive, find_java
from millrace.local.processes import Process

_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "%d %p %m (%c)%n"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        - ref: out
"""
_READY_LINE = b"Kafka Server started"
# On small machines the serial collector and the first compiler cost least.
_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class Kafka(Component):
    """A cluster of ``nodes`` (1 or 3) with the broker's default settings but for what its size demands.

    ``properties`` override the settings of every node.
    """

    def __init__(
        self, nodes: int = 1, *, properties: Mapping[str, str] | None = None, heap_mb: int = 512
    ) -> None:
        if nodes not in {1, 3}:
            raise LocalError(f"Kafka runs with 1 or 3 nodes here, not {nodes}")
        super().__init__("kafka")
        self.nodes = nodes
        self.properties = dict(properties or {})
        self.heap_mb = heap_mb
        self.java_options: Sequence[str] = _JAVA_OPTIONS
        """What Java is started with beside the heap, of which it may give other sizes."""
        self.version = bundle("kafka").version
        self._port_count = 2 * nodes
        self._started_at: list[int] = []

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, as Kafka clients take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports[: self.nodes])

    def kill_node(self, node: int) -> None:
        """End one node (from 0) with SIGKILL; ``start`` starts it again."""
        self.processes[node].kill()

    def _prepare(self) -> None:
        (self.folder / "log4j2.yaml").write_text(_LOG4J)
        cluster_id = _random_id()
        for node in range(self.nodes):
            self._settings_file(node).write_text(_properties(self._settings(node)))
            data = shutil.copytree(self._template(), self.folder / f"data-{node}")
            identity = {"cluster.id": cluster_id, "node.id": str(node), "directory.id": _random_id()}
            (data / "meta.properties").write_text(_properties({"version": "1", **identity}))

    def _template(self) -> Path:
        """Return a formatted data folder to copy from; made once and kept in the cache."""

        def make(folder: Path) -> None:
            path = folder.with_name("settings")
            path.write_text(_properties(self._settings(0) | {"log.dirs": str(folder)}))
            command = ["kafka.tools.StorageTool", "format", f"--cluster-id={_random_id()}", "-c", str(path)]
            log = folder.with_name("log")
            process = Process("kafka format", self._java(*_JAVA_OPTIONS, "-Xmx128m", *command), log=log)
            if (code := process.wait(self.start_timeout_s)) != 0:
                raise ComponentDiedError(
                    f"formatting Kafka's storage failed with code {code}:\n{process.log_tail()}"
                )

        waiting_for = "another process that formats Kafka's storage"
        return made_once(cache_folder() / "data" / f"kafka-{self.version}", make, waiting_for=waiting_for)

    def _settings(self, node: int) -> dict[str, str]:
        brokers, controllers = self.ports[: self.nodes], self.ports[self.nodes :]
        copies, in_sync = str(self.nodes), str(max(1, self.nodes - 1))
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(
                f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers)
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{brokers[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
            "log.dirs": str(self.folder / f"data-{node}"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "4",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            **self.properties,
        }

    def _launch(self) -> None:
        self._started_at = [0] * self.nodes
        self.processes = self.processes or []
        for node in range(self.nodes):
            if node < len(self.processes) and self.processes[node].poll() is None:
                continue
            log = self._log_file(node)
            self._started_at[node] = log.stat().st_size if log.exists() else 0
            memory = (f"-Xmx{self.heap_mb}m", "-Xms128m")
            options = (
                *memory,
                *self.java_options,
                *class_archive("kafka", find_java(17, 21), fetch("kafka")),
            )
            command = self._java(*options, "kafka.Kafka", str(self._settings_file(node)))
            process = Process(f"kafka node {node}", command, log=log)
            self.processes[node : node + 1] = [process]

    def _is_ready(self) -> bool:
        for node in range(self.nodes):
            with self._log_file(node).open("rb") as log:
                log.seek(self._started_at[node])
                if _READY_LINE not in log.read():
                    return False
        return True

    def _settings_file(self, node: int) -> Path:
        return self.folder / f"server-{node}.properties"

    def _log_file(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _java(self, *arguments: str) -> list[str]:
        java = find_java(17, 21)
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        temporary = f"-Djava.io.tmpdir={self.folder}"
        return [str(java.program), "-cp", f"{fetch('kafka')}/*", logging, temporary, *arguments]


def _properties(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
