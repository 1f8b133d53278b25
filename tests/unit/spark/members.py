"""A topology of servers that replicate from each other as MySQL's do, each with a log of real events.

A server writes what its clients change and what it applies; it drops what carries its own id, and with
GTIDs what it has executed. Nothing else of a server is here: who reads what when is said by the test.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from millrace.binlog.events import (
    AnonymousGtidLogEvent,
    FormatDescriptionEvent,
    MariadbGtidEvent,
    MariadbGtidListEvent,
    XidEvent,
)
from millrace.binlog.events.mariadb import GtidListEntry
from spark_jobs.loop_detection import investigate
from spark_jobs.loops.report import Findings
from tests.unit.spark.logs import EventLog, gtid_event, logs_of

HOP_US = 2300


@dataclass(frozen=True)
class Change:
    """A transaction as it travels; ``seq_no`` makes it one of MariaDB, ``committed_us`` one of MySQL 8.0.

    ``gno``, with ``uuid``, makes it one of MySQL with GTIDs; an ``empty`` one has no changes.
    """

    origin: int
    time: int
    text: str
    table: str = "log"
    operation: str = "insert"
    number: int = 0
    thread_id: int = 1
    statement: bool = False
    seq_no: int | None = None
    committed_us: int | None = None
    uuid: int = 0
    gno: int | None = None
    empty: bool = False

    @property
    def gtid(self) -> tuple[int, int | None]:
        """What a MySQL server compares with what it has executed."""
        return self.uuid, self.gno


@dataclass
class Server:
    name: str
    server_id: int
    version: str = "5.7.22-log"
    started: int = 1000
    gtids: bool = False
    """Whether it assigns GTIDs, as its version does; one of MySQL skips what it has executed."""
    leaves_out: Sequence[str] = ()
    """Tables that its filters leave out."""
    skips_executed: bool = False
    ignores: Sequence[int] = ()
    logs_updates: bool = True
    log: EventLog = field(default_factory=EventLog)
    entries: list[Change] = field(default_factory=list)
    hops: list[int] = field(default_factory=list)
    upstream: list["Server"] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    listed: Sequence[tuple[int, int]] = ()
    """What the head of its log lists: server ids and the last sequence numbers."""

    def __post_init__(self) -> None:
        self._describe()

    def _describe(self) -> None:
        description = FormatDescriptionEvent(4, self.version, self.started, 19, bytes(40), 0)
        self.log.add(description, server_id=self.server_id, timestamp=self.started)
        if self.listed:
            entries = tuple(GtidListEntry(0, server_id, seq_no) for server_id, seq_no in self.listed)
            self.log.add(MariadbGtidListEvent(0, entries), server_id=self.server_id, timestamp=self.started)

    def write(self, time: int, text: str, *, origin: int | None = None, **more: Any) -> Change:
        """Execute a client's transaction; with ``origin`` as a session with another server_id does."""
        if self.gtids and self.is_mariadb:
            seen = [one.seq_no or 0 for one in self.entries] + [seq_no for _, seq_no in self.listed]
            more = {"seq_no": 1 + max(seen, default=0), **more}
        elif self.gtids:
            own = (one.gno or 0 for one in self.entries if one.uuid == self.uuid)
            more = {"uuid": self.uuid, "gno": 1 + max(own, default=0), **more}
        elif self._dates:
            more = {"committed_us": time * 1_000_000, **more}
        change = Change(self.server_id if origin is None else origin, time, text, **more)
        self._append(change, 0)
        return change

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.version

    @property
    def uuid(self) -> int:
        """What stands for the server's uuid: its name, as two servers may have one id."""
        return int.from_bytes(self.name.encode()) % (1 << 128)

    @property
    def _dates(self) -> bool:
        return self.version.startswith("8")

    def take_id(self, server_id: int, time: int) -> None:
        """Change the server's id and begin another log file."""
        self.server_id, self.started = server_id, time
        self.log.next_file()
        self._describe()

    def pull(self, most: int | None = None) -> int:
        """Take what is new at the servers upstream, of each ``most`` transactions; return how many."""
        moved = 0
        for server in self.upstream:
            start = self.taken.get(server.name, 0)
            end = len(server.entries) if most is None else min(start + most, len(server.entries))
            self.taken[server.name] = end
            for place in range(start, end):
                moved += self._apply(server.entries[place], server.hops[place])
        return moved

    def _apply(self, change: Change, hops: int) -> bool:
        if change.origin == self.server_id or change.origin in self.ignores or not self.logs_updates:
            return False
        if self.skips_executed and change in self.entries:
            return False
        if change.gno is not None and any(one.gtid == change.gtid for one in self.entries):
            return False
        if change.table in self.leaves_out:
            if change.gno is None:
                return False
            change = replace(change, empty=True)
        self._append(change, hops + 1)
        return True

    def _append(self, change: Change, hops: int) -> None:
        self.entries.append(change)
        self.hops.append(hops)
        more = {"server_id": change.origin, "timestamp": change.time}
        if change.seq_no is not None:
            self.log.add(MariadbGtidEvent(change.seq_no, 0, 0), **more)
        elif change.gno is not None:
            self.log.add(gtid_event(change.gno, sid=change.uuid.to_bytes(16)), **more)
        elif self._dates:  # of one that an older server wrote, it does not know the time
            times = (change.committed_us or change.time * 1_000_000) + HOP_US * hops, change.committed_us or 0
            self.log.add(AnonymousGtidLogEvent(1, bytes(16), 0, 2, 0, 1, *times, 100, 80000), **more)
        self._body(change, more)

    def _body(self, change: Change, more: dict[str, Any]) -> None:
        log = self.log
        if change.seq_no is None:
            log.statement("BEGIN", thread_id=change.thread_id, **more)
        if change.empty:
            log.statement("COMMIT", thread_id=change.thread_id, **more)
            return
        if change.statement:
            log.statement(change.text, thread_id=change.thread_id, **more)
        else:
            row: Any = (change.number, change.text.encode())
            row = (0, *row) if change.table == "wide" else row
            images = {"insert": (None, row), "delete": (row, None)}[change.operation]
            log.table_map(change.table, 100 + self.server_id, **more)
            log.rows(change.table, change.operation, [images], table_id=100 + self.server_id, **more)
        log.add(XidEvent(len(self.entries)), **more)


def ring(*servers: Server) -> Sequence[Server]:
    """Let each server replicate from the one before it, the first from the last."""
    for before, server in zip([servers[-1], *servers], servers, strict=False):
        server.upstream.append(before)
    return servers


def traffic(servers: Sequence[Server], start: int = 1100, seconds: int = 6) -> None:
    """Let every server write once a second, and replicate half-way between."""
    for second in range(start, start + seconds):
        for server in servers:
            server.write(second, f"{server.name} {second}")
        for server in servers:
            server.pull()


def settle(servers: Sequence[Server], rounds: int = 20) -> None:
    """Replicate until nothing moves any more, or for some rounds."""
    for _ in range(rounds):
        if not sum([server.pull() for server in servers]):
            return


class NoSteps:
    """Tells nothing."""

    def step(self, _text: str) -> Any:
        return nullcontext()


def look(
    spark: SparkSession,
    servers: Sequence[Server],
    *,
    named: Sequence[int] = (),
    cuts: int = 1,
    begins: Mapping[str, int] | None = None,
    ping_pong: bool = False,
) -> Findings:
    """Run loop detection over the logs of servers, or of parts of them."""
    logs = logs_of(spark, {server.name: server.log for server in servers}, cuts, begins)
    return investigate(
        spark, logs, [server.name for server in servers], named, NoSteps(), ping_pong=ping_pong
    )
