"""Reader, decoder and row mapper as processes between a real server and a real Kafka, and what came of it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaRegistry
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.read import read_topic
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.runtime.settings import KafkaSettings, RegistrySettings
from tests.shared import PROJECT, environment_with

from .reader_world import server_environment

SERVICES = ("reader", "decoder", "rowmapper")

MARIADB_IS_SLOW = pytest.mark.parametrize(
    "database", ["mysql", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True
)
"""For tests that take minutes: on MySQL in ``make test``, on MariaDB in ``make test-slow``."""


@contextmanager
def without_column_names(server: MySQL | MariaDB) -> Iterator[None]:
    """Let a server log as little of its columns as it can."""
    variable = "binlog_row_metadata"
    ((_, before),) = server.query(f"SHOW GLOBAL VARIABLES LIKE '{variable}'")
    least = "NO_LOG" if isinstance(server, MariaDB) else "MINIMAL"
    server.execute(f"SET GLOBAL {variable} = {least}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {variable} = {before}")


class RowsWorld:
    """One source, from a server to its row topics."""

    def __init__(
        self, kafka: Kafka, registry: Registry, server: MySQL | MariaDB, source: str, folder: Path
    ) -> None:
        self.source = source
        self.topics = Topics(source)
        self.server = server
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.registry = SchemaRegistry(RegistrySettings(url=registry.url))
        self.folder = folder
        self.database = source.replace("-", "_")
        self.environment = {
            "MILLRACE_SOURCE": source,
            "MILLRACE_START": "latest",
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "60",
            "MILLRACE_REGISTRY_URL": registry.url,
            **server_environment(server),
        }

    @contextmanager
    def with_database(self) -> Iterator["RowsWorld"]:
        """It with a database of its own on the server, dropped at the end."""
        self.server.execute(f"CREATE DATABASE {self.database}")
        yield self
        self.server.execute(f"DROP DATABASE {self.database}")
        self.close()

    @contextmanager
    def service(
        self, name: str, *, command: Sequence[str] = (), ends_with: int = 0, **environment: str
    ) -> Iterator["subprocess.Popen[str]"]:
        """A running service, ended with SIGTERM unless it has ended; its log lies in the folder.

        ``ends_with`` is the exit code that is expected.

        ``command`` runs it in another way, such as :func:`tests.killed.command`.
        """
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                command or [sys.executable, "-m", f"services.{name}"],
                env=environment_with({**self.environment, **environment}),
                cwd=PROJECT,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                yield process
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=180)
                assert process.returncode in (ends_with, -signal.SIGKILL), (name, errors, self.log(name))
            finally:
                process.kill()
                process.communicate()

    @contextmanager
    def services(self, *names: str, **environment: str) -> Iterator[list["subprocess.Popen[str]"]]:
        """Running services, the first of them waited for: nothing is written before the reader reads."""
        with ExitStack() as stack:
            processes = [stack.enter_context(self.service(name, **environment)) for name in names]
            yield processes

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def wait_for_start(self) -> None:
        """Wait until the reader has said where it begins: a row written now will be read."""
        deadline = time.monotonic() + 240
        # The others keep their state in the same topic, and each begins by claiming its own.
        while not any(m.key() == b"reader" and m.value() for m in self.messages(self.topics.state)):
            assert time.monotonic() < deadline, self.log("reader")
            time.sleep(0.2)

    def wait_for_row(self, table: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until a table's topic has so many records."""
        deadline = time.monotonic() + 240
        while True:
            found = self.messages(self.topics.table(self.database, table))
            if len(found) >= count:
                return [deserialize(self.registry, message.value()) for message in found]
            assert time.monotonic() < deadline, (len(found), *(self.log(name) for name in SERVICES))
            time.sleep(0.3)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All records of a table."""
        messages = self.messages(self.topics.table(self.database, table))
        return [deserialize(self.registry, message.value()) for message in messages]

    def messages(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """The records of a topic by now; none where it does not exist."""
        return list(read_topic(self.settings, topic, isolation=isolation))

    def table_topics(self) -> list[str]:
        topics = connect(self.settings).list_topics(timeout=30).topics
        return sorted(name for name in topics if name.startswith(f"{self.source}.{self.database}."))

    def close(self) -> None:
        self.registry.close()
