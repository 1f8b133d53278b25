"""Which transaction is on which member: the logs of all members of a topology, side by side.

A stream is one epoch of one source, the log of one server. A transaction is identified by its signature,
which is the same on all members: its GTID; without one its origin, session, times and content, that is
database, table, operation and decoded values, and for statements database, text and the variables before it.
The time of its commit at the origin is part of it if all members write such times.

That a stream lacks a transaction proves nothing by itself: its log may begin later, end earlier, or have no
transactions of other servers at all. So :func:`claims` says where a transaction can be missing, by the order
of a log that has it:

- ``skipped``: transactions of the same origin that lie before it and after it in that log have arrived;
- ``own``: the same, of the member's own id: it has written others before and after, and not this one;
- ``never``: of an origin of which nothing arrives, while what the other server writes itself does, before
  and after it, and after something of the member's own that has gone the other way;
- ``restored``: of the member's own id, from before the first that its log has, while transactions of others
  from before and after it have arrived since its log began;
- ``shared id``: of an id that two servers have;
- ``emptied``: the member has it under its GTID without the changes that another log has, or without those of
  some tables: an empty transaction was executed in its place. A member that logs statements as rows has an
  empty transaction for a statement that changes no row, too: that proves nothing;
- ``left out``: the same, of tables of which the member has no change at all: a filter leaves them out.

What a member lacks without such a claim was not compared, and :func:`uncompared` says where it lies: before
its log begins, after what it has, or between.

Under one GTID, the content is compared where it is logged in the same form and layout. Statements on
temporary tables are missing nowhere: members that log rows do not log them. A DDL statement without GTID is
never reported as missing: servers may log it with another text than they received. Servers that apply
transactions in parallel log them in another order. If so, the bounds are narrowed by the observed distance.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtid
from millrace.binlog.server_version import ServerVersion
from millrace.binlog.types import EventType

SKIPPED, OWN, NEVER, RESTORED, SHARED_ID = "skipped", "own", "never", "restored", "shared id"
EMPTIED, FILTERED = "emptied", "left out"
BEFORE, AFTER, BETWEEN, ONE_LOG = "before", "after", "between", "one log"
"""Why something was not compared."""
NO_ROWS = "no rows"
"""The same, of statements that a member which logs rows has without any."""
TRANSIT = "in transit"
"""The same, of what a member that is as far as the others will still receive."""
_ORDER: Final = (BETWEEN, AFTER, BEFORE)

HEADS: Final = tuple(
    event_type.name
    for event_type in (
        EventType.START_EVENT_V3,
        EventType.FORMAT_DESCRIPTION_EVENT,
        EventType.PREVIOUS_GTIDS_LOG_EVENT,
        EventType.MARIADB_GTID_LIST_EVENT,
        EventType.BINLOG_CHECKPOINT_EVENT,
        EventType.ROTATE_EVENT,
        EventType.STOP_EVENT,
    )
)
"""Events that a server writes about its own log, with its own id."""
_LOGS: Final = 1000
_PERIODS: Final = 1000
_GTID: Final = "gtid"
_DDL: Final = "ddl"
_EMPTY: Final = "empty"
STATEMENTS: Final = "statements"
_ROWS: Final = "rows"
_CUT: Final = "cut"
_DECISION: Final = "decision"
_SECOND: Final = 1
_SLACK_S: Final = 2
_LAG_S: Final = 60
_READ_S: Final = 300
"""So long the logs of a topology may be read one after another."""


class Period(NamedTuple):
    """An id that a server had from an offset and a time on, until the next; ``since`` is None if unknown."""

    server_id: int
    offset: int
    since: int | None


@dataclass(frozen=True, slots=True)
class Stream:
    """The log of one server, as far as it was read.

    ``own`` are the server's ids, its present one last, ``periods`` when it had which, by the heads of its
    files. ``logs`` tells this server's files from those of others, ``gtids`` are the transactions before the
    first event, None where that is not known. ``cut`` tells that what was read begins within a file. Times
    are seconds since 1970.
    """

    number: int
    source: str
    epoch: int
    own: Sequence[int] = ()
    periods: Sequence[Period] = ()
    version: str = ""
    gtids: str | None = None
    logs: frozenset[int] = frozenset()
    first_time: int | None = None
    last_time: int | None = None
    transactions: int = 0
    cut: bool = False

    @property
    def dates_commits(self) -> bool:
        """Whether the server may write times of commits, as MySQL 8.0.1 and later do."""
        return not self.release or (self.release >= (8, 0, 1) and not self.is_mariadb)

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is one of MariaDB."""
        return ServerVersion.parse(self.version).mariadb

    @property
    def release(self) -> tuple[int, ...]:
        """The three numbers of the server's version; none where it is unknown."""
        return ServerVersion.parse(self.version).version

    def had(self, server_id: int) -> list[tuple[float, float]]:
        """Return the times, each from one to before another, at which the server had an id."""
        ids = [one.server_id for one in self.periods] or self.own
        changed = [one.since for one in self.periods[1:]]
        end = None if self.last_time is None else self.last_time + 1
        spans = zip(ids, [self.first_time, *changed], [*changed, end], strict=True)
        return [
            (-inf if begin is None else begin, inf if until is None else until)
            for one, begin, until in spans
            if one == server_id
        ]

    def offsets_of(self, server_id: int) -> list[tuple[int, int]]:
        """Return the offsets, each from one to before another, at which the server had an id."""
        begins = [one.offset for one in self.periods[1:]]
        spans = zip(self.periods, [_EVERYWHERE[0], *begins], [*begins, _EVERYWHERE[1]], strict=True)
        return [(begin, until) for one, begin, until in spans if one.server_id == server_id]


@dataclass(frozen=True, slots=True)
class Claim:
    """In the log of ``reference``, between two offsets, what ``member`` lacks of an origin is missing.

    ``form`` is how the transactions are logged, None for all.
    """

    reference: int
    member: int
    origin: int
    form: str | None
    rule: str
    low: int
    high: int


_CLAIM_SCHEMA: Final = (
    "reference int, member int, origin bigint, claimed_form string, rule string, low bigint, high bigint"
)
_EVERYWHERE: Final = -1, (1 << 63) - 1


def find_streams(heads: DataFrame, occurrences: DataFrame, sources: Sequence[str]) -> list[Stream]:
    """Return what each stream is, in the order of ``sources``; their numbers count from 0."""
    stream = ["source", "epoch"]
    described = sf.col("type").isin(*HEADS[:2])
    log = sf.when(described, sf.xxhash64("log_file", "timestamp", "position"))
    dated = sf.when(sf.col("timestamp") > 0, sf.col("timestamp"))
    written = heads.groupBy(*stream).agg(
        sf.max_by("server_version", sf.when(sf.col("server_version").isNotNull(), sf.col("offset"))).alias(
            "version"
        ),
        sf.slice(sf.sort_array(sf.collect_set(log)), 1, _LOGS).alias("logs"),
        sf.min(sf.when(described & ~sf.col("earlier"), sf.col("offset"))).alias("begins_at"),
        sf.min(sf.when(described, dated)).alias("first_time"),
        sf.max(sf.when(described & ~sf.col("earlier"), dated)).alias("last_time"),
    )
    before = sf.lag("server_id").over(Window.partitionBy(*stream).orderBy("offset"))
    changes = heads.withColumns({"before": before, "since": dated}).where(
        ~sf.col("before").eqNullSafe(sf.col("server_id"))
    )
    lists = heads.where("gtids is not null").groupBy(*stream).agg(
        sf.min_by("gtids", "offset").alias("gtids"), sf.min("offset").alias("listed_at")
    )  # fmt: skip
    counted = occurrences.groupBy(*stream).agg(
        sf.count("*").alias("transactions"),
        sf.min("first_offset").alias("first_offset"),
        sf.min_by("dated", sf.when(sf.col("dated").isNotNull(), sf.col("first_offset"))).alias("first_time"),
        sf.max("dated_to").alias("last_time"),
    )
    periods: dict[tuple[str, int], list[Period]] = {}
    for row in changes.orderBy("offset").limit(_PERIODS).collect():
        one = Period(row.server_id, row.offset, row.since)
        periods.setdefault((row.source, row.epoch), []).append(one)
    described_as = {(row.source, row.epoch): row for row in written.collect()}
    numbers = {(row.source, row.epoch): row for row in counted.collect()}
    gtids = {(row.source, row.epoch): row for row in lists.collect()}
    rank = {source: place for place, source in enumerate(sources)}
    keys = sorted({*described_as, *numbers}, key=lambda key: (rank.get(key[0], len(rank)), key))
    return [
        _stream(number, key, periods.get(key, []), described_as.get(key), numbers.get(key), gtids.get(key))
        for number, key in enumerate(keys)
    ]


def _stream(  # noqa: PLR0917 - what is known of it, from four places
    number: int,
    key: tuple[str, int],
    periods: Sequence[Period],
    described: Row | None,
    counted: Row | None,
    listed: Row | None,
) -> Stream:
    begins_at = None if described is None else described.begins_at
    cut = counted is not None and (begins_at is None or begins_at > counted.first_offset)
    first_time = None if described is None or cut else described.first_time
    if first_time is None and counted is not None:
        first_time = counted.first_time
    ends = [row.last_time for row in (described, counted) if row is not None and row.last_time is not None]
    before = listed if counted is None or listed is None or listed.listed_at < counted.first_offset else None
    ids = dict.fromkeys(one.server_id for one in reversed(periods))
    return Stream(
        number,
        *key,
        own=tuple(reversed(ids)),
        periods=periods,
        version="" if described is None else described.version or "",
        gtids=None if before is None else before.gtids,
        logs=frozenset(() if described is None else described.logs),
        first_time=first_time,
        last_time=max(ends, default=None),
        transactions=0 if counted is None else counted.transactions,
        cut=cut,
    )


def stream_frame(spark: SparkSession, streams: Sequence[Stream]) -> DataFrame:
    """Return the numbers of streams by source and epoch."""
    rows = [(one.source, one.epoch, one.number) for one in streams]
    return spark.createDataFrame(rows, "source string, epoch int, stream int")


def sign(occurrences: DataFrame, numbers: DataFrame, *, by_commit: bool) -> DataFrame:
    """Add ``signature`` and ``stream``; leave out what has neither GTID nor content.

    ``numbers`` is of :func:`stream_frame`; ``by_commit`` tells whether all servers write times of commits.
    """
    parts = ["server_id", "thread_id", "dated", "dated_to", "changes", "digest"]
    parts += ["original_commit_us"] if by_commit else []
    digest = sf.sha2(
        sf.concat_ws("|", *(sf.coalesce(sf.col(name).cast("string"), sf.lit("")) for name in parts)), 256
    )
    signature = sf.when(sf.col("by_gtid"), sf.col("transaction")).when(sf.col("digest").isNotNull(), digest)
    named = _with_temporary(occurrences).withColumn("signature", signature).where("signature is not null")
    form = sf.when(sf.col("by_gtid"), _GTID).otherwise(sf.col("form"))
    formed = named.withColumns({"logged": sf.col("form"), "form": form, "content": sf.col("digest")})
    return formed.drop("digest", "temporary", "creates").join(sf.broadcast(numbers), ["source", "epoch"])


def domain() -> Column:
    """Return the domain of a GTID of MariaDB; null for other transactions."""
    parts = sf.split("transaction", "-", -1)
    return sf.when(sf.col("by_gtid") & (sf.size(parts) == 3), sf.get(parts, sf.lit(0)))


def _with_temporary(occurrences: DataFrame) -> DataFrame:
    """Return what changes only temporary tables, as their CREATE in any log tells: ``is_temporary``."""
    doubtful = occurrences.where("temporary is not null")
    created = doubtful.where("creates").select(sf.explode("temporary").alias("name")).distinct()
    place = ["source", "epoch", "first_offset"]
    named = doubtful.where("not creates").select(*place, sf.explode("temporary").alias("name"))
    others = named.join(created, "name", "left_anti").select(*place, sf.lit(False).alias("told")).distinct()
    judged = doubtful.join(others, place, "left").withColumn(
        "is_temporary", sf.coalesce("told", sf.lit(True))
    )
    plain = occurrences.where("temporary is null").withColumn("is_temporary", sf.lit(False))
    return plain.unionByName(judged.drop("told"))


def presence(signed: DataFrame) -> DataFrame:
    """Return a row per signature.

    ``seen`` holds for each stream that has it how often and between what offsets, ``at`` which position of
    its log, of how many tables (``width``), and how it is ``logged`` there. ``statements`` tells that it is
    statements in all logs in which it is not empty, ``differs`` that one GTID stands for several
    transactions, ``diverges`` that it changes rows that were different before, ``lapped`` that a log has one
    original commit with several later ones.
    """
    real, rows = sf.col("logged") != _EMPTY, sf.col("logged") == _ROWS
    by_content = sf.struct(sf.when(real, 0).otherwise(1), "first_offset")
    each = signed.groupBy("signature", "stream").agg(
        sf.max("by_gtid").alias("by_gtid"),
        sf.min_by("server_id", by_content).alias("origin"),
        sf.min(sf.when(real, sf.col("server_id"))).alias("low_id"),
        sf.max(sf.when(real, sf.col("server_id"))).alias("high_id"),
        sf.min_by("logged", by_content).alias("logged"),
        sf.bool_or("is_temporary").alias("temporary"),
        sf.min(sf.when(rows, sf.col("layout"))).alias("low_layout"),
        sf.max(sf.when(rows, sf.col("layout"))).alias("high_layout"),
        sf.min(sf.when(rows, sf.col("content"))).alias("low_content"),
        sf.max(sf.when(rows, sf.col("content"))).alias("high_content"),
        sf.bool_and("inserts").alias("inserts"),
        sf.min_by(sf.xxhash64("log_file", "position"), "first_offset").alias("at"),
        (
            (sf.count("*") > 1)
            & (sf.min("original_commit_us") == sf.max("original_commit_us"))
            & (sf.min("immediate_commit_us") != sf.max("immediate_commit_us"))
        ).alias("lapped"),
        sf.min("dated").alias("dated"),
        sf.max("dated").alias("last_dated"),
        sf.max("dated_to").alias("dated_to"),
        sf.min_by("transaction", "first_offset").alias("transaction"),
        sf.max("tables").alias("tables"),
        sf.max("form").alias("form"),
        sf.count("*").cast("int").alias("times"),
        sf.min("first_offset").alias("first_offset"),
        sf.max("last_offset").alias("last_offset"),
        sf.min("immediate_commit_us").alias("committed_us"),
        sf.min("original_commit_us").alias("original_us"),
    )
    each = each.withColumn("width", sf.size("tables"))
    found = "stream", "times", "first_offset", "last_offset", "committed_us", "original_us"
    place = sf.struct(*found, "at", "logged", "width")
    moved = sf.coalesce(sf.max("last_dated") - sf.min("dated"), sf.lit(0)) > _SECOND
    ids = sf.coalesce(sf.min("low_id") != sf.max("high_id"), sf.lit(False))
    # Where all rows are logged alike, other bytes are other rows.
    alike = sf.min("low_layout") == sf.max("high_layout")
    other = sf.coalesce(alike & (sf.min("low_content") != sf.max("high_content")), sf.lit(False))
    # A replica may rewrite the names of databases (replicate-rewrite-db).
    names = sf.array_distinct(sf.transform("tables", lambda name: sf.substring_index(name, ".", -1)))
    tables = sf.collect_set(sf.when(rows, names))
    most = sf.max(sf.when(rows, sf.size(names)))
    other_tables = sf.size(sf.array_distinct(sf.flatten(tables))) > sf.coalesce(most, sf.lit(0))
    width = sf.max(sf.when(rows, sf.col("width")))
    statements = sf.col("logged") == STATEMENTS
    differs = sf.max("by_gtid") & (ids | moved | (other & sf.bool_and("inserts")) | other_tables)
    return each.groupBy("signature").agg(
        sf.max("by_gtid").alias("by_gtid"),
        sf.min_by("origin", sf.struct(~real, "stream")).alias("origin"),
        sf.min("dated").alias("dated"),
        sf.max("dated_to").alias("dated_to"),
        sf.min_by("transaction", "stream").alias("transaction"),
        sf.max("tables").alias("tables"),
        sf.max("form").alias("form"),
        differs.alias("differs"),
        (sf.max("by_gtid") & other & ~differs).alias("diverges"),
        sf.bool_or("lapped").alias("lapped"),
        (sf.bool_and(statements | ~real) & sf.bool_or(statements)).alias("statements"),
        sf.bool_or("temporary").alias("temporary"),
        width.alias("width"),
        sf.sort_array(sf.collect_list(place)).alias("seen"),
    )


def owner_count(owners: Iterable[tuple[int, int, int, int]]) -> Column:
    """Return how often a transaction is in the log of its origin, null where that was not read.

    ``owners`` are server ids, streams of the servers that have them or had them, and the offsets between
    which a server had an id: elsewhere in its log it may circulate.
    """

    def is_of_owner(place: Column) -> Column:
        found = sf.lit(False)
        for origin, stream, begin, until in owners:
            had = (place.first_offset >= begin) & (place.last_offset < until)
            found |= (sf.col("origin") == origin) & (place.stream == stream) & had
        return found

    there = sf.filter("seen", is_of_owner)
    return sf.array_max(sf.transform(there, lambda place: place.times))


def pairs(present: DataFrame) -> DataFrame:
    """Return what two streams have in common of an origin: how much, between what offsets of the first.

    ``apart`` counts what is another transaction or at another position: not of one log that was read twice.
    """
    several = present.where(sf.size("seen") > 1)
    both = several.select("origin", "form", "differs", "seen", sf.explode("seen").alias("p"))
    each = both.select("origin", "form", "differs", "p", sf.explode("seen").alias("m"))
    return (
        each.where("p.stream != m.stream")
        .groupBy(sf.col("p.stream").alias("reference"), sf.col("m.stream").alias("member"), "origin", "form")
        .agg(
            sf.min("p.first_offset").alias("low"),
            sf.max("p.last_offset").alias("high"),
            sf.count_if(sf.col("differs") | (sf.col("p.at") != sf.col("m.at"))).alias("apart"),
            sf.count("*").alias("common"),
        )
    )


def claims(
    streams: Sequence[Stream],
    common: Iterable[Row],
    carried: Iterable[tuple[int, int]],
    shared: Iterable[int] = (),
) -> list[Claim]:
    """Say where something can be missing.

    ``common`` are rows of :func:`pairs`, ``carried`` the streams that have transactions of an origin, as
    pairs, ``shared`` the ids that two servers have.
    """
    by_pair: dict[tuple[int, int], list[Row]] = {}
    for row in common:
        by_pair.setdefault((row.reference, row.member), []).append(row)
    has, twice = set(carried), set(shared)
    topology = _topologies(streams, by_pair, twice)
    made = []
    for reference in streams:
        for member in streams:
            if reference.source == member.source:
                continue
            rows = by_pair.get((reference.number, member.number), [])
            both = reference.number, member.number
            if topology[reference.number] == topology[member.number]:
                made += [Claim(*both, origin, None, SHARED_ID, *_EVERYWHERE) for origin in twice]
            single = [row for row in rows if row.origin not in twice]
            made += [
                Claim(*both, r.origin, r.form, OWN if r.origin in member.own else SKIPPED, r.low, r.high)
                for r in single
            ]
            made += _decisions(reference, member, single)
            origins = {origin for number, origin in has if number == reference.number} - twice
            made += _never(reference, member, rows, {o for o in origins if (member.number, o) not in has})
            made += _restored(reference, member, rows, origins & set(member.own))
    return made


def _decisions(reference: Stream, member: Stream, rows: Sequence[Row]) -> list[Claim]:
    """Say the same of XA COMMIT and XA ROLLBACK, which all servers log alike, by all of their origin."""
    made = []
    for origin in {row.origin for row in rows if row.form != _GTID}:
        of_origin = [row for row in rows if row.origin == origin and row.form != _GTID]
        span = min(row.low for row in of_origin), max(row.high for row in of_origin)
        rule = OWN if origin in member.own else SKIPPED
        made.append(Claim(reference.number, member.number, origin, _DECISION, rule, *span))
    return made


def _topologies(
    streams: Sequence[Stream], joined: Iterable[tuple[int, int]], shared: Iterable[int]
) -> dict[int, int]:
    """Return a number of the topology of each stream: in one are those with something in common, or an id."""
    found = {one.number: one.number for one in streams}
    names = [[one.number for one in streams if one.source == each.source] for each in streams]
    ids = [[one.number for one in streams if origin in one.own] for origin in shared]
    for group in (*joined, *names, *ids):
        numbers = {found[number] for number in group}
        found = {one: min(numbers) if number in numbers else number for one, number in found.items()}
    return found


def _never(reference: Stream, member: Stream, rows: Sequence[Row], origins: set[int]) -> list[Claim]:
    arrived = [row for row in rows if row.origin in reference.own]
    if not arrived:
        return []
    went = [row.low for row in rows if row.origin in member.own]
    low = max(min(row.low for row in arrived), min(went, default=0))
    high = max(row.high for row in arrived)
    both = reference.number, member.number
    return [Claim(*both, origin, None, NEVER, low, high) for origin in origins - set(member.own)]


def _restored(reference: Stream, member: Stream, rows: Sequence[Row], origins: set[int]) -> list[Claim]:
    foreign = [row for row in rows if row.origin not in member.own]
    both = reference.number, member.number
    made = []
    for origin in origins:
        own = [row.low for row in rows if row.origin == origin]
        if foreign:
            high = min(own) - 1 if own else max(row.high for row in foreign)
            made.append(Claim(*both, origin, None, RESTORED, min(row.low for row in foreign), high))
        if rows and member.gtids:  # they tell what is older than its log
            high = min(own) - 1 if own else _EVERYWHERE[1]
            made.append(Claim(*both, origin, _GTID, RESTORED, _EVERYWHERE[0], high))
    return made


def heirs(streams: Sequence[Stream], common: Iterable[Row]) -> list[list[int]]:
    """Return for each stream those whose transactions its server has: itself, and logs that it continues.

    A log that was reset (RESET MASTER) continues the earlier one of its source: it lists nothing as older,
    and repeats nothing. A server that was restored repeats what it receives again.
    """
    joined = {(row.reference, row.member) for row in common}
    return [
        [one.number]
        if one.gtids
        else [
            other.number
            for other in streams
            if other.source == one.source
            and other.epoch <= one.epoch
            and (one.number, other.number) not in joined
        ]
        for one in streams
    ]


def absences(  # noqa: PLR0917 - what is known of the logs
    spark: SparkSession,
    present: DataFrame,
    made: Sequence[Claim],
    streams: Sequence[Stream],
    continued: Sequence[Sequence[int]],
    with_statements: Collection[int],
) -> DataFrame:
    """Return what is missing: a row per signature, ``member`` and ``reference``, with its ``rule``.

    ``continued`` is of :func:`heirs`, ``with_statements`` the streams that have statements of other servers.
    ``lacking`` is how many occurrences are missing, for a member may have some of several equal ones.
    """
    first = {one.number: one.first_time or 0 for one in streams}
    frame = spark.createDataFrame(
        [(c.reference, c.member, c.origin, c.form, c.rule, c.low, c.high) for c in made], _CLAIM_SCHEMA
    )
    numbers = sf.array(*(sf.lit(one.number) for one in streams)).cast("array<int>")
    uneven = (sf.size("seen") < len(streams)) | (
        sf.array_max(sf.transform("seen", lambda place: place.times))
        != sf.array_min(sf.transform("seen", lambda place: place.times))
    )
    members = present.where(uneven & (sf.col("form") != _DDL) & ~sf.col("temporary")).withColumn(
        "gone", sf.explode(numbers)
    )
    of = sf.get(sf.array(*(sf.array(*map(sf.lit, numbers)) for numbers in continued)), sf.col("gone"))
    had = sf.filter("seen", lambda place: sf.array_contains(of, place.stream))
    times = sf.array_max(sf.transform(had, lambda place: place.times))
    lacking = members.withColumn("had", sf.coalesce(times, sf.lit(0)))
    referred = lacking.withColumn("p", sf.explode("seen")).where("p.stream != gone")
    owned = _is_owned(streams)
    short = (sf.col("had") == 0) | (owned & ~sf.col("by_gtid") & (sf.col("had") < sf.col("p.times")))
    began = sf.lit(0)
    for number, time in first.items():
        began = sf.when(sf.col("gone") == number, sf.lit(time)).otherwise(began)
    of_claim = (
        (sf.col("p.stream") == sf.col("reference"))
        & (sf.col("gone") == sf.col("member"))
        & (sf.col("origin") == sf.col("claim_origin"))
        & (sf.col("claimed_form").isNull() | (sf.col("claimed_form") == sf.col("form")))
        & (sf.col("p.first_offset") >= sf.col("low"))
        & (sf.col("p.last_offset") <= sf.col("high"))
    )
    named = sf.broadcast(frame.withColumnRenamed("origin", "claim_origin"))
    found = referred.where(short).join(named, of_claim).unionByName(_emptied(present, streams), True)
    # What is older than what was read of the member may lie in its log before that.
    cut = sf.col("gone").isin([one.number for one in streams if one.cut])
    bounded = (sf.col("rule") == SHARED_ID) | (cut & sf.col("rule").isin(RESTORED, NEVER))
    late = ~bounded | sf.coalesce(sf.col("dated") >= began, sf.lit(True))
    no_rows = sf.col("by_gtid") & sf.col("statements") & ~sf.col("gone").isin(*with_statements)
    rule = sf.when(no_rows & sf.col("rule").isin(SKIPPED, NEVER, EMPTIED), NO_ROWS).otherwise(sf.col("rule"))
    amount = sf.when(sf.col("had") == 0, sf.when(owned, sf.col("p.times")).otherwise(1)).otherwise(
        sf.col("p.times") - sf.col("had")
    )
    return found.where(late).select(
        "signature", "transaction", "by_gtid", "origin", "form", "dated", "dated_to", "tables", "member",
        "reference", rule.alias("rule"), "low", "high", amount.alias("lacking"),
        sf.col("p.first_offset").alias("first_offset"), sf.col("p.last_offset").alias("last_offset"),
    )  # fmt: skip


def _emptied(present: DataFrame, streams: Sequence[Stream]) -> DataFrame:
    """Return what members have under its GTID without the changes, or some of the tables, of another log."""
    owned = _is_owned(streams, "m")

    def is_narrow(place: Column) -> Column:
        return sf.coalesce((place.logged == _ROWS) & (place.width < sf.col("width")), sf.lit(False))

    def is_empty(place: Column) -> Column:
        return place.logged == _EMPTY

    some = present.where(sf.col("by_gtid") & ~sf.col("temporary") & (sf.size("seen") > 1))
    less = sf.exists("seen", lambda place: is_empty(place) | is_narrow(place))
    each = some.where(less).withColumn("m", sf.explode("seen"))
    lacking = each.where(is_empty(sf.col("m")) | (~owned & is_narrow(sf.col("m"))))
    lacking = lacking.withColumn("p", sf.explode("seen"))
    placed = some.select("tables", "width", sf.explode("seen").alias("m"))
    logged = placed.where(~is_empty(sf.col("m")) & ~is_narrow(sf.col("m"))).select(
        sf.col("m.stream").alias("of"), sf.explode("tables").alias("table")
    )
    there = logged.groupBy("of").agg(sf.collect_set("table").alias("there"))
    lacking = lacking.join(sf.broadcast(there), sf.col("m.stream") == sf.col("of"), "left")
    unknown = sf.size(sf.array_except("tables", sf.coalesce("there", sf.array().cast("array<string>")))) > 0
    whole = ~sf.col("p.logged").isin(_EMPTY, _CUT) & ~is_narrow(sf.col("p"))
    return lacking.where(whole & (is_empty(sf.col("m")) | (sf.col("p.logged") == _ROWS))).select(
        *present.columns, "p", sf.col("m.stream").alias("gone"), sf.col("m.stream").alias("member"),
        sf.col("p.stream").alias("reference"),
        sf.when(unknown, FILTERED).otherwise(EMPTIED).alias("rule"), sf.lit(0).alias("had"),
        sf.lit(_EVERYWHERE[0]).cast("bigint").alias("low"),
        sf.lit(_EVERYWHERE[1]).cast("bigint").alias("high"),
    )  # fmt: skip


def _is_owned(streams: Sequence[Stream], place: str = "p") -> Column:
    """Return whether the ``place`` of a transaction is in the log of a server with the id of its origin."""
    owned = sf.lit(False)
    for one in streams:
        owned |= (sf.col(f"{place}.stream") == one.number) & sf.col("origin").isin(*one.own)
    return owned


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Transactions that a member lacks, of which nothing tells whether they are missing there.

    ``why`` is one of BEFORE, AFTER, BETWEEN, as they lie in the logs of ``references`` relative to what the
    member has of these; TRANSIT, those AFTER that are still on their way (:func:`in_transit`); or ONE_LOG:
    only the member has them. Times are seconds since 1970.
    """

    member: str
    why: str
    transactions: int
    references: Sequence[int]
    since: int | None
    until: int | None


def uncompared(  # noqa: PLR0917 - what is known of the logs
    spark: SparkSession,
    present: DataFrame,
    streams: Sequence[Stream],
    common: Sequence[Row],
    reached: Mapping[str, Collection[str]],
    told: DataFrame,
) -> list[Uncompared]:
    """Return what was not compared, by member.

    ``reached`` are the members to which each one leads, ``told`` the ``signature`` and the ``member``, a
    stream, of what is told elsewhere.
    """
    sources = list(dict.fromkeys(one.source for one in streams))
    if len(sources) < 2:
        return []
    number = {source: at for at, source in enumerate(sources)}
    of = sf.array(*(sf.lit(number[one.source]) for one in streams))
    have = sf.array_distinct(sf.transform("seen", lambda place: sf.get(of, place.stream)))
    every = sf.array(*(sf.lit(at) for at in range(len(sources))))
    uneven = present.withColumn("have", have).where((sf.size("have") < len(sources)) & ~sf.col("temporary"))
    lacking = uneven.select(
        "signature", "origin", "dated", "dated_to", "have", "seen",
        sf.explode(sf.array_except(every, "have")).alias("gone"),
    ).withColumn("p", sf.explode("seen"))  # fmt: skip
    expected = spark.createDataFrame(
        _expected(streams, number, common, reached), "reference int, gone int, own boolean, of bigint, "
        "low bigint, high bigint, lowest bigint, highest bigint",
    )  # fmt: skip
    by_origin = expected.where("of is not null")
    of_all = expected.where("of is null").drop("of", "low", "high")
    placed = lacking.withColumn("reference", sf.col("p.stream"))
    joined = placed.join(sf.broadcast(of_all), ["reference", "gone"]).join(
        sf.broadcast(by_origin.select("reference", "gone", sf.col("of").alias("origin"), "low", "high")),
        ["reference", "gone", "origin"],
        "left",
    )
    owners = sf.array(*(_ids(streams, source) for source in sources))
    wanted = joined.where(sf.col("own") | sf.array_contains(sf.get(owners, sf.col("gone")), sf.col("origin")))
    low, high = sf.coalesce("low", "lowest"), sf.coalesce("high", "highest")
    place = sf.when(sf.col("p.first_offset") < low, 2).when(sf.col("p.last_offset") > high, 1).otherwise(0)
    ours = told.select("signature", sf.get(of, sf.col("member")).alias("gone")).distinct()
    each = (
        wanted.join(ours, ["signature", "gone"], "left_anti")
        .groupBy("signature", "gone")
        .agg(
            sf.min(place).alias("why"),
            sf.collect_set("reference").alias("references"),
            sf.min("dated").alias("dated"),
            sf.max("dated_to").alias("dated_to"),
        )
    )
    known = each.select("signature").union(ours.select("signature")).distinct()
    alone = (
        uneven.where(sf.size("have") == 1)
        .join(known, "signature", "left_anti")
        .select(
            "signature", sf.get("have", sf.lit(0)).alias("gone"), sf.lit(len(_ORDER)).alias("why"),
            sf.array().cast("array<int>").alias("references"), "dated", "dated_to",
        )
    )  # fmt: skip
    summed = (
        each.unionByName(alone)
        .groupBy("gone", "why")
        .agg(
            sf.count("*").alias("transactions"),
            sf.array_distinct(sf.flatten(sf.collect_set("references"))).alias("references"),
            sf.min("dated").alias("since"),
            sf.max("dated_to").alias("until"),
        )
    )
    return [
        Uncompared(sources[r.gone], (*_ORDER, ONE_LOG)[r.why], r.transactions, r.references, r.since, r.until)
        for r in summed.orderBy("gone", "why").collect()
    ]


def without_rows(absent: DataFrame, streams: Sequence[Stream]) -> list[Uncompared]:
    """Return the statements that members which log rows have without any."""
    each = absent.where(sf.col("rule") == NO_ROWS).groupBy("member").agg(
        sf.count_distinct("signature").alias("transactions"), sf.collect_set("reference").alias("references"),
        sf.min("dated").alias("since"), sf.max("dated_to").alias("until"),
    )  # fmt: skip
    return [
        Uncompared(streams[r.member].source, NO_ROWS, r.transactions, r.references, r.since, r.until)
        for r in each.orderBy("member").collect()
    ]


def in_transit(found: Sequence[Uncompared], signed: DataFrame, streams: Sequence[Stream]) -> list[Uncompared]:
    """Mark what members lack because it was still on its way when their logs were read.

    A member's bound is the newest transaction of an origin that its log has. What lies below is missing, not
    in transit. What lies above is in transit if three things hold:

    - the member's log does not go on without it for longer than the member usually lags: else it has stopped;
    - it follows the end of the member's log closely: else the log was read only to an earlier position, or it
      is a single transaction in a topology that is at rest;
    - it is less than was compared.
    """
    if not any(one.why == AFTER for one in found):
        return list(found)
    lags = {row.stream: row.lag for row in _lags(signed, streams).collect()}
    return [replace(one, why=TRANSIT) if _is_moving(one, lags, streams) else one for one in found]


def _is_moving(one: Uncompared, lags: Mapping[int, int], streams: Sequence[Stream]) -> bool:
    of_member = [stream for stream in streams if stream.source == one.member]
    end = of_member[-1].last_time
    if one.why != AFTER or end is None or one.since is None or one.until is None:
        return False
    usual = min(2 * lags.get(of_member[-1].number, 0) + _SLACK_S, _LAG_S)
    near = end - usual <= one.since <= end + _SLACK_S and one.until <= end + _READ_S
    return near and one.transactions < sum(stream.transactions for stream in of_member)


def _lags(signed: DataFrame, streams: Sequence[Stream]) -> DataFrame:
    """Return by how many seconds a stream's log is usually ahead of what it receives."""
    before = Window.partitionBy("stream").orderBy("first_offset").rowsBetween(Window.unboundedPreceding, -1)
    own = sf.lit(False)
    for one in streams:
        own |= (sf.col("stream") == one.number) & sf.col("server_id").isin(*one.own)
    clocked = signed.select("stream", "dated", own.alias("own"), sf.max("dated").over(before).alias("clock"))
    lag = sf.greatest(sf.col("clock") - sf.col("dated"), sf.lit(0))
    return clocked.where("not own").groupBy("stream").agg(sf.percentile_approx(lag, 0.9, 1000).alias("lag"))


def _ids(streams: Sequence[Stream], source: str) -> Column:
    ids = {server_id for one in streams if one.source == source for server_id in one.own}
    return sf.array(*(sf.lit(server_id).cast("bigint") for server_id in sorted(ids))).cast("array<bigint>")


def _expected(
    streams: Sequence[Stream],
    number: Mapping[str, int],
    common: Sequence[Row],
    reached: Mapping[str, Collection[str]],
) -> list[tuple[Any, ...]]:
    """Say between what offsets of a stream a member has something of it, of all and of each origin.

    ``own`` tells that all of the stream should be there, and not only what the member itself wrote.
    """
    spans: dict[tuple[int, int, int | None], tuple[int, int]] = {}
    for row in common:
        reference, member = streams[row.reference], streams[row.member]
        for origin in (row.origin, None):
            key = reference.number, number[member.source], origin
            low, high = spans.get(key, (row.low, row.high))
            spans[key] = min(low, row.low), max(high, row.high)
    rows = []
    for (reference, gone, origin), (low, high) in spans.items():
        one = streams[reference]
        member = next(source for source, at in number.items() if at == gone)
        if member != one.source:
            rows.append((reference, gone, member in reached[one.source], origin, low, high, low, high))
    return rows


def order_of(spark: SparkSession, present: DataFrame, triples: Iterable[tuple[int, int, int]]) -> list[Row]:
    """Return how the order of two logs differs for an origin; ``triples`` are reference, member and origin.

    ``ahead`` is by how many offsets of the reference the member had gone on before one arrived, ``reordered``
    how many arrived so, ``since`` and ``until`` the times of the first and the last of them.
    """
    wanted = list(triples)
    if not wanted:
        return []
    frame = spark.createDataFrame(wanted, "reference int, member int, origin bigint")
    once = present.where(sf.size("seen") > 1).select("origin", "dated", "seen", sf.explode("seen").alias("p"))
    both = once.select("origin", "dated", "p", sf.explode("seen").alias("m"))
    pair = both.where("p.stream != m.stream and p.times = 1 and m.times = 1").select(
        sf.col("p.stream").alias("reference"), sf.col("m.stream").alias("member"), "origin", "dated",
        sf.col("p.first_offset").alias("there"), sf.col("m.first_offset").alias("here"),
    )  # fmt: skip
    arrived = Window.partitionBy("reference", "member", "origin").orderBy("here")
    furthest = sf.max("there").over(arrived.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    ahead = pair.join(sf.broadcast(frame), ["reference", "member", "origin"]).withColumn(
        "ahead", furthest - sf.col("there")
    )
    return (
        ahead.groupBy("reference", "member", "origin")
        .agg(
            sf.max("ahead").alias("ahead"),
            sf.count_if(sf.col("ahead") > 0).alias("reordered"),
            sf.min(sf.when(sf.col("ahead") > 0, sf.col("dated"))).alias("since"),
            sf.max(sf.when(sf.col("ahead") > 0, sf.col("dated"))).alias("until"),
            sf.count("*").alias("common"),
        )
        .collect()
    )


def executed_before(transaction: str, gtids: str | None) -> bool | None:
    """Return whether a log's head lists a transaction as older than the log; None if that is unknown."""
    if not gtids:  # what was copied into a new server is older than its log, too
        return None
    try:
        if transaction.count("-") == 2:
            wanted = MariadbGtid.parse(transaction)
            listed = [MariadbGtid.parse(part) for part in gtids.split(",") if part]
            return any(
                one.domain_id == wanted.domain_id
                and one.server_id == wanted.server_id
                and one.seq_no >= wanted.seq_no
                for one in listed
            )
        return GtidSet.parse(gtids).contains(transaction)
    except (BinlogError, ValueError):
        return None
