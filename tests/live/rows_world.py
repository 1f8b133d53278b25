"""Reader, decoder and row mapper as processes between a real server and a real Kafka, and what came of it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import Message

from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaRegistry
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.runtime.settings import KafkaSettings, RegistrySettings
from tests.service_process import ServiceProcess, source_environment, started, wait_for
from tests.shared import run_python
from tests.topic_reader import TopicReader

SERVICES = ("reader", "decoder", "rowmapper")

MARIADB_IS_SLOW = pytest.mark.parametrize(
    "database", ["mysql", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True
)
"""For tests that take long: on MySQL in ``make test``, on MariaDB in ``make test-slow``."""
MYSQL_IS_SLOW = pytest.mark.parametrize(
    "database", [pytest.param("mysql", marks=pytest.mark.slow), "mariadb"], indirect=True
)
"""The other way round."""


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
        self.topic_reader = TopicReader(self.settings)
        self.registry = SchemaRegistry(RegistrySettings(url=registry.url))
        self.folder = folder
        self.database = source.replace("-", "_")
        self.environment = source_environment(kafka, source, registry, server) | {"MILLRACE_START": "latest"}

    @contextmanager
    def with_database(self) -> Iterator["RowsWorld"]:
        """It with a database of its own on the server, dropped at the end."""
        self.server.execute(f"CREATE DATABASE {self.database}")
        yield self
        self.server.execute(f"DROP DATABASE {self.database}")
        self.close()

    def service(
        self, name: str, *, command: Sequence[str] = (), ends_with: int = 0, **environment: str
    ) -> AbstractContextManager[ServiceProcess]:
        """A running service, whose log lies in the folder; see :func:`tests.service_process.started`."""
        settings = {**self.environment, **environment}
        log = self.folder / f"{name}.log"
        return started(name, settings, command=command, ends_with=ends_with, log=log)

    @contextmanager
    def services(self, *names: str, **environment: str) -> Iterator[list[ServiceProcess]]:
        """Running services, the first of them waited for: nothing is written before the reader reads."""
        with ExitStack() as stack:
            processes = [stack.enter_context(self.service(name, **environment)) for name in names]
            yield processes

    def command(self, *arguments: str, code: int = 0, **options: Any) -> CompletedProcess[Any]:
        """Run ``millrace`` to its end, which must be with an exit code."""
        done = run_python("-m", "millrace.cli", *arguments, settings=self.environment, **options)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def logs(self) -> str:
        """The logs of all that ran."""
        return "\n".join(self.log(path.stem) for path in sorted(self.folder.glob("*.log")))

    def wait_for_start(self) -> None:
        """Wait until the reader has said where it begins: a row written now will be read."""

        def begun() -> bool:
            # The others keep their state in the same topic, and each begins by claiming its own.
            return any(m.key() == b"reader" and m.value() for m in self.messages(self.topics.state))

        wait_for(begun, None, lambda: f"the reader's state: {self.logs()}")

    def wait_for_row(self, table: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until a table's topic has so many records."""

        def arrived() -> list[Message] | None:
            found = self.messages(self.topics.table(self.database, table))
            return found if len(found) >= count else None

        found = wait_for(arrived, None, lambda: f"row {count} of {table}: {self.logs()}")
        return [deserialize(self.registry, message.value()) for message in found]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All records of a table."""
        messages = self.messages(self.topics.table(self.database, table))
        return [deserialize(self.registry, message.value()) for message in messages]

    def messages(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """The records of a topic by now; none where it does not exist."""
        return self.topic_reader.messages(topic, isolation=isolation)

    def table_topics(self) -> list[str]:
        topics = connect(self.settings).list_topics(timeout=30).topics
        return sorted(name for name in topics if name.startswith(f"{self.source}.{self.database}."))

    def close(self) -> None:
        self.registry.close()
