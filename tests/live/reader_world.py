"""A reader as a process between a real source and a real Kafka, and what it wrote."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from subprocess import CompletedProcess

from millrace.avro.service_state import ReaderState
from millrace.contract import HEADER_ARTIFICIAL, HEADER_CHUNK, HEADER_MARKER, RawKey, Topics
from millrace.kafka.errors import BrokerError
from millrace.local import Kafka, MariaDB, MySQL
from millrace.runtime.settings import KafkaSettings
from tests.service_process import (
    ServiceProcess,
    server_environment,
    source_environment,
    started,
    wait_for,
)
from tests.shared import run_python
from tests.topic_reader import TopicReader

MAGIC = b"\xfebin"

TRUST = "get-server-public-key=true"
"""In a URL: take the key of a server on trust, as server_environment does."""


@dataclass(frozen=True)
class RawRecord:
    key: RawKey
    value: bytes
    headers: dict[str, bytes]
    timestamp_ms: int
    offset: int

    @property
    def identity(self) -> tuple[int, str, int, bytes]:
        """What no two records may share."""
        return self.key.epoch, self.key.log_file, self.key.position, self.headers.get(HEADER_CHUNK, b"")

    @property
    def in_file(self) -> bool:
        return HEADER_ARTIFICIAL not in self.headers and HEADER_MARKER not in self.headers


class ReaderWorld:
    """One source; ``environment`` holds the settings of its reader beside source and Kafka."""

    def __init__(self, kafka: Kafka, source: str, **environment: str) -> None:
        self.source = source
        self.topics = Topics(source)
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.topic_reader = TopicReader(self.settings)
        self.environment = source_environment(kafka, source) | environment

    @classmethod
    def of(cls, kafka: Kafka, source: str, server: MySQL | MariaDB, **environment: str) -> "ReaderWorld":
        return cls(kafka, source, **server_environment(server), **environment)

    def reader(
        self, *, command: Sequence[str] = (), ends_with: int = 0, **environment: str
    ) -> AbstractContextManager[ServiceProcess]:
        """A running reader; see :func:`tests.service_process.started`."""
        return started("reader", {**self.environment, **environment}, command=command, ends_with=ends_with)

    def run(self, **environment: str) -> CompletedProcess[str]:
        """Run a reader to its end."""
        return run_python("-m", "services.reader", settings={**self.environment, **environment})

    def raw(self, *, isolation: str = "read_committed") -> list[RawRecord]:
        """All records of the raw topic."""
        return [
            RawRecord(
                RawKey.parse(message.key()),
                message.value(),
                dict(message.headers() or ()),
                message.timestamp()[1],
                message.offset(),
            )
            for message in self.topic_reader.messages(self.topics.raw, isolation=isolation)
        ]

    def catalog(self) -> dict[bytes, list[bytes]]:
        """Records of the catalogue by key."""
        entries: dict[bytes, list[bytes]] = {}
        for message in self.topic_reader.messages(self.topics.catalog):
            entries.setdefault(message.key(), []).append(message.value())
        return entries

    def end_offset(self) -> int:
        """Offset after the last record of the raw topic, open transactions included; 0 without a topic."""
        return self.topic_reader.end_offset(self.topics.raw)

    def state(self) -> ReaderState | None:
        """The state that the reader has committed."""
        found = self.topic_reader.last(self.topics.state, b"reader")
        return ReaderState.from_bytes(found.value()) if found and found.value() else None

    def wait_until_at(self, server: MySQL | MariaDB, process: ServiceProcess | None) -> ReaderState:
        """Wait until everything that the server has logged by now is committed."""
        log_file, position = log_end(server)

        def arrived() -> ReaderState | None:
            try:
                state = self.state()
            except BrokerError:  # the topic is being created
                return None
            if state is None or (state.log_file, state.position) < (log_file, position):
                return None
            return state

        return wait_for(arrived, process, f"{log_file}:{position}")


def log_end(server: MySQL | MariaDB) -> tuple[str, int]:
    log_file, position, *_ = server.query("SHOW MASTER STATUS")[0]
    return str(log_file), int(position)


@contextmanager
def stopped(kafka: Kafka) -> Iterator[None]:
    """Let the brokers answer nobody."""
    try:
        for process in kafka.processes:
            process.signal(signal.SIGSTOP)
        yield
    finally:
        for process in kafka.processes:
            process.signal(signal.SIGCONT)


def settle(server: MySQL | MariaDB) -> None:
    """Wait until the server adds nothing to its newest log by itself.

    MariaDB does: a checkpoint that names the log, up to a second or so behind its head.
    """

    def has_checkpoint() -> bool:
        newest = server.binlog_files[-1].name
        events = server.query(f"SHOW BINLOG EVENTS IN '{newest}'")
        return any((kind, info) == ("Binlog_checkpoint", newest) for _, _, kind, _, _, info in events)

    if isinstance(server, MariaDB):
        wait_for(has_checkpoint, None, "a checkpoint of the newest log")


def files_of(records: list[RawRecord]) -> dict[tuple[int, str], bytes]:
    """Put the files together again, by epoch and name."""
    parts: dict[tuple[int, str], list[bytes]] = {}
    for record in records:
        if record.in_file:
            parts.setdefault((record.key.epoch, record.key.log_file), [MAGIC]).append(record.value)
    return {file: b"".join(values) for file, values in parts.items()}


def assert_closed_files_equal(
    records: list[RawRecord], server: MySQL | MariaDB, epoch: int = 0, *, but_in_use: bool = False
) -> int:
    """Compare all closed log files with the server's own, byte by byte; return how many there were.

    ``but_in_use`` leaves out the byte with the IN_USE flag, which is set while a file is open.
    """
    written = files_of(records)
    closed = server.binlog_files[:-1]
    for path in closed:
        ours, theirs = written.get((epoch, path.name), b""), path.read_bytes()
        if but_in_use:
            ours, theirs = (data[:21] + data[22:] for data in (ours, theirs))
        assert ours == theirs, f"{path.name} differs"
    return len(closed)


def assert_nothing_twice(records: list[RawRecord]) -> None:
    identities = [record.identity for record in records]
    assert len(set(identities)) == len(identities)


def executed(server: MySQL | MariaDB) -> str:
    """Return the GTIDs that a server has executed."""
    if isinstance(server, MySQL):
        return str(server.query("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")
    return str(server.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
