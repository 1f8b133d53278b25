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
    AppendBlockEvent,
    BeginLoadQueryEvent,
    FormatDescriptionEvent,
    GtidTaggedLogEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    MariadbGtidListEvent,
    PreviousGtidsLogEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.events.gtid import GtidInterval, GtidSetEntry
from millrace.binlog.events.mariadb import GtidListEntry, MariadbXid
from spark_jobs.loop_detection import investigate
from spark_jobs.loops.report import Findings
from tests.unit.spark.logs import EventLog, gtid_event, logs_of

HOP_US = 2300


@dataclass(frozen=True)
class Change:
    """A transaction as it travels; ``seq_no`` makes it one of MariaDB, ``committed_us`` one of MySQL 8.0.

    ``gno``, with ``uuid`` and ``tag``, makes it one of MySQL with GTIDs; an ``empty`` one has no changes.
    ``form`` is how it is logged: ``rows``, ``statement``, ``ddl``, ``load`` (LOAD DATA as a statement), or
    the ``prepare``, ``commit`` or ``rollback`` of the XA transaction that ``text`` names.
    """

    origin: int
    time: int
    text: str
    table: str = "log"
    operation: str = "insert"
    number: int = 0
    thread_id: int = 1
    form: str = "rows"
    domain: int = 0
    seq_no: int | None = None
    committed_us: int | None = None
    uuid: int = 0
    tag: str = ""
    gno: int | None = None
    empty: bool = False

    @property
    def gtid(self) -> tuple[int, str, int | None]:
        """What a MySQL server compares with what it has executed."""
        return self.uuid, self.tag, self.gno


@dataclass
class Server:
    name: str
    server_id: int
    version: str = "5.7.22-log"
    started: int = 1000
    gtids: bool = False
    """Whether it assigns GTIDs, as its version does; one of MySQL skips what it has executed."""
    domain: int = 0
    """gtid_domain_id."""
    tag: str = ""
    """Tag of the GTIDs that it assigns."""
    rows_only: bool = False
    """Whether it logs statements as rows; one that changes none is empty then."""
    leaves_out: Sequence[str] = ()
    """Tables that its filters leave out."""
    leaves_out_domains: Sequence[int] = ()
    delay: int = 0
    """MASTER_DELAY."""
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
    uuid: int = 0
    """What stands for the server's uuid: its name unless it is given, as two servers may have one id."""
    received: int = 0
    """The last sequence number that replication has brought before its log was reset."""

    def __post_init__(self) -> None:
        self.uuid = self.uuid or int.from_bytes(self.name.encode()) % (1 << 128)
        self._describe()

    def _describe(self) -> None:
        description = FormatDescriptionEvent(4, self.version, self.started, 19, bytes(40), 0)
        self.log.add(description, server_id=self.server_id, timestamp=self.started)
        of_head = {"server_id": self.server_id, "timestamp": self.started}
        if self.is_mariadb:
            last = {(0, server_id): seq_no for server_id, seq_no in self.listed}
            last |= {(one.domain, one.origin): one.seq_no for one in self.entries if one.seq_no}
            listed = tuple(GtidListEntry(*name, seq_no) for name, seq_no in last.items())
            self.log.add(MariadbGtidListEvent(0, listed), **of_head)
        elif self.version >= "5.6":
            ends = {(one.uuid, one.tag): one.gno + 1 for one in self.entries if one.gno is not None}
            sets = sorted(
                (uuid.to_bytes(16), tag, (GtidInterval(1, end),)) for (uuid, tag), end in ends.items()
            )
            tagged = int(any(tag for _, tag, _ in sets))
            self.log.add(PreviousGtidsLogEvent(tagged, tuple(GtidSetEntry(*one) for one in sets)), **of_head)

    def write(self, time: int, text: str, *, origin: int | None = None, **more: Any) -> Change:
        """Execute a client's transaction; with ``origin`` as a session with another server_id does."""
        if self.gtids and self.is_mariadb:
            domain = more.get("domain", self.domain)
            seen = [one.seq_no or 0 for one in self.entries if one.domain == domain]
            seen += [self.received, *(seq_no for _, seq_no in self.listed)] if not domain else []
            more = {"domain": domain, "seq_no": 1 + max(seen, default=0), **more}
        elif self.gtids:
            tag = more.get("tag", self.tag)
            own = (one.gno or 0 for one in self.entries if (one.uuid, one.tag) == (self.uuid, tag))
            more = {"uuid": self.uuid, "tag": tag, "gno": 1 + max(own, default=0), **more}
        elif self._dates:
            more = {"committed_us": time * 1_000_000, **more}
        change = Change(self.server_id if origin is None else origin, time, text, **more)
        self._append(change, 0)
        return change

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.version

    @property
    def _dates(self) -> bool:
        return self.version.startswith("8")

    def take_id(self, server_id: int, time: int) -> None:
        """Change the server's id and begin another log file."""
        self.server_id, self.started = server_id, time
        self.log.next_file()
        self._describe()

    def reset(self, time: int, listed: Sequence[tuple[int, int]] = ()) -> None:
        """Execute RESET MASTER, or begin with the log of a backup, which lists what came before it."""
        foreign = (one.seq_no or 0 for one in self.entries if one.origin != self.server_id)
        self.received = max(foreign, default=0)
        self.started, self.entries, self.hops, self.listed = time, [], [], listed
        self.log.reset()
        self._describe()

    def pull(self, most: int | None = None, now: int | None = None) -> int:
        """Take what is new at the servers upstream, of each ``most`` transactions; return how many."""
        moved = 0
        for server in self.upstream:
            start = self.taken.get(server.name, 0)
            end = len(server.entries) if most is None else min(start + most, len(server.entries))
            if self.delay and now is not None:
                late = (n for n in range(start, end) if server.entries[n].time > now - self.delay)
                end = next(late, end)
            self.taken[server.name] = end
            for place in range(start, end):
                moved += self._apply(server.entries[place], server.hops[place])
        return moved

    def _apply(self, change: Change, hops: int) -> bool:
        if change.origin == self.server_id or change.origin in self.ignores or not self.logs_updates:
            return False
        if change.domain in self.leaves_out_domains:
            return False
        if self.skips_executed and change in self.entries:
            return False
        if change.gno is not None and any(one.gtid == change.gtid for one in self.entries):
            return False
        if change.table in self.leaves_out:
            if change.gno is None:
                return False
            change = replace(change, empty=True)
        if self.rows_only and change.form == "statement":
            change = replace(change, form="rows", empty=change.text.endswith("WHERE FALSE"))
        self._append(change, hops + 1)
        return True

    def _append(self, change: Change, hops: int) -> None:
        self.entries.append(change)
        self.hops.append(hops)
        more = {"server_id": change.origin, "timestamp": change.time}
        if change.seq_no is not None:
            self.log.add(self._mariadb_gtid(change, change.seq_no), **more)
        elif change.gno is not None and change.tag:
            self.log.add(GtidTaggedLogEvent(1, change.uuid.to_bytes(16), change.gno, change.tag), **more)
        elif change.gno is not None:
            self.log.add(gtid_event(change.gno, sid=change.uuid.to_bytes(16)), **more)
        elif self._dates:  # of one that an older server wrote, it does not know the time
            times = (change.committed_us or change.time * 1_000_000) + HOP_US * hops, change.committed_us or 0
            self.log.add(AnonymousGtidLogEvent(1, bytes(16), 0, 2, 0, 1, *times, 100, 80000), **more)
        self._body(change, more)

    @staticmethod
    def _mariadb_gtid(change: Change, seq_no: int) -> MariadbGtidEvent:
        flags, xid = 0, MariadbXid(1, change.text.encode(), b"")
        if change.form == "prepare":
            flags = MariadbGtidFlag.PREPARED_XA | MariadbGtidFlag.TRANSACTIONAL
        elif change.form in {"commit", "rollback"}:
            flags = MariadbGtidFlag.COMPLETED_XA | MariadbGtidFlag.STANDALONE
        elif change.form == "ddl" and not change.empty:
            flags = MariadbGtidFlag.STANDALONE | MariadbGtidFlag.DDL
        of_xa = flags & (MariadbGtidFlag.PREPARED_XA | MariadbGtidFlag.COMPLETED_XA)
        return MariadbGtidEvent(seq_no, change.domain, flags, xid=xid if of_xa else None)

    def _body(self, change: Change, more: dict[str, Any]) -> None:
        log, more = self.log, {**more, "thread_id": change.thread_id}
        xid = f"X'{change.text.encode().hex()}',X'',1"
        if change.form in {"ddl", "commit", "rollback"} and not change.empty:
            text = change.text if change.form == "ddl" else f"XA {change.form.upper()} {xid}"
            log.statement(text, **more)
            return
        prepares = change.form == "prepare" and not change.empty
        if change.seq_no is None:
            log.statement(f"XA START {xid}" if prepares else "BEGIN", **more)
        if change.empty:
            log.statement("COMMIT", **more)
            return
        if prepares:
            self._row(change, more)
            log.statement(f"XA END {xid}", **more)
        elif change.form == "load":
            self._load(change, more)
        elif change.form == "statement":
            log.statement(change.text, **more)
        else:
            self._row(change, more)
        del more["thread_id"]
        end = XaPrepareLogEvent(0, 1, change.text.encode(), b"") if prepares else XidEvent(len(self.entries))
        log.add(end, **more)

    def _row(self, change: Change, more: dict[str, Any]) -> None:
        of_event = {"server_id": more["server_id"], "timestamp": more["timestamp"]}
        row: Any = (change.number, change.text.encode())
        row = (0, *row) if change.table == "wide" else row
        images = {"insert": (None, row), "delete": (row, None)}[change.operation]
        self.log.table_map(change.table, 100 + self.server_id, **of_event)
        self.log.rows(change.table, change.operation, [images], table_id=100 + self.server_id, **of_event)

    def _load(self, change: Change, more: dict[str, Any]) -> None:
        """Log LOAD DATA as a statement: servers name and divide the file in their own way."""
        of_event = {"server_id": more["server_id"], "timestamp": more["timestamp"]}
        content, file_id, at = change.text.encode(), len(self.entries), 1 + self.server_id % 3
        self.log.add(BeginLoadQueryEvent(file_id, content[:at]), **of_event)
        self.log.add(AppendBlockEvent(file_id, content[at:]), **of_event)
        head, name, rest = b"LOAD DATA", f" INFILE '../SQL_LOAD-{self.name}-{file_id}' INTO", b" TABLE log"
        self.log.load(file_id, len(head), len(head) + len(name), head + name.encode() + rest, **more)


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
            server.pull(now=second)


def settle(servers: Sequence[Server], rounds: int = 20, now: int | None = None) -> None:
    """Replicate until nothing moves any more, or for some rounds."""
    for _ in range(rounds):
        if not sum([server.pull(now=now) for server in servers]):
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
