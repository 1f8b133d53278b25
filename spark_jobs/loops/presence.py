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
- ``shared id``: of an id that two servers have.

A DDL statement without GTID is never reported as missing: servers may log it with another text than they
received. Servers that apply transactions in parallel log them in another order. If so, the bounds are
narrowed by the observed distance.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtid
from millrace.binlog.types import EventType

SKIPPED, OWN, NEVER, RESTORED, SHARED_ID = "skipped", "own", "never", "restored", "shared id"

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
_SECOND: Final = 1
_LAG_S: Final = 300
"""So long what a server wrote may be on its way to a member."""


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
        return "mariadb" in self.version.lower()

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the server's version, up to three; none where it is unknown."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])

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
        last_time=None if counted is None else counted.last_time,
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
    named = occurrences.withColumn("signature", signature).where("signature is not null").drop("digest")
    form = sf.when(sf.col("by_gtid"), _GTID).otherwise(sf.col("form"))
    return named.withColumn("form", form).join(sf.broadcast(numbers), ["source", "epoch"])


def presence(signed: DataFrame) -> DataFrame:
    """Return a row per signature.

    ``seen`` holds for each stream that has it how often and between what offsets; ``differs`` tells that one
    GTID stands for several transactions.
    """
    each = signed.groupBy("signature", "stream").agg(
        sf.max("by_gtid").alias("by_gtid"),
        sf.min_by("server_id", "first_offset").alias("origin"),
        sf.min("server_id").alias("low_id"),
        sf.max("server_id").alias("high_id"),
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
    place = sf.struct("stream", "times", "first_offset", "last_offset", "committed_us", "original_us")
    moved = sf.coalesce(sf.max("last_dated") - sf.min("dated"), sf.lit(0)) > _SECOND
    differs = sf.max("by_gtid") & ((sf.min("low_id") != sf.max("high_id")) | moved)
    return each.groupBy("signature").agg(
        sf.max("by_gtid").alias("by_gtid"),
        sf.min_by("origin", "stream").alias("origin"),
        sf.min("dated").alias("dated"),
        sf.max("dated_to").alias("dated_to"),
        sf.min_by("transaction", "stream").alias("transaction"),
        sf.max("tables").alias("tables"),
        sf.max("form").alias("form"),
        differs.alias("differs"),
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

    ``dated`` is the time of the last of it.
    """
    several = present.where(sf.size("seen") > 1)
    both = several.select("origin", "form", "dated", "seen", sf.explode("seen").alias("p"))
    each = both.select("origin", "form", "dated", "p", sf.explode("seen").alias("m"))
    return (
        each.where("p.stream != m.stream")
        .groupBy(sf.col("p.stream").alias("reference"), sf.col("m.stream").alias("member"), "origin", "form")
        .agg(
            sf.min("p.first_offset").alias("low"),
            sf.max("p.last_offset").alias("high"),
            sf.max_by("dated", "p.last_offset").alias("dated"),
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
            made += [
                Claim(*both, r.origin, r.form, OWN if r.origin in member.own else SKIPPED, r.low, r.high)
                for r in rows
                if r.origin not in twice
            ]
            origins = {origin for number, origin in has if number == reference.number} - twice
            made += _never(reference, member, rows, {o for o in origins if (member.number, o) not in has})
            made += _restored(reference, member, rows, origins & set(member.own))
    return made


def _topologies(
    streams: Sequence[Stream], joined: Iterable[tuple[int, int]], shared: Iterable[int]
) -> dict[int, int]:
    """Give a number of the topology of each stream: in one are those with something in common, or an id."""
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
    if not foreign:
        return []
    low = min(row.low for row in foreign)
    both = reference.number, member.number
    made = []
    for origin in origins:
        own = [row.low for row in rows if row.origin == origin]
        high = min(own) - 1 if own else max(row.high for row in foreign)
        made.append(Claim(*both, origin, None, RESTORED, low, high))
    return made


def absences(
    spark: SparkSession, present: DataFrame, made: Sequence[Claim], streams: Sequence[Stream]
) -> DataFrame:
    """Return what is missing: a row per signature, ``member`` and ``reference``, with its ``rule``.

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
    members = present.where(uneven & (sf.col("form") != _DDL)).withColumn("gone", sf.explode(numbers))
    had = sf.filter("seen", lambda place: place.stream == sf.col("gone"))
    lacking = members.withColumn("had", sf.coalesce(sf.get(had, sf.lit(0)).times, sf.lit(0)))
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
    found = referred.where(short).join(named, of_claim)
    # What is older than what was read of the member may lie in its log before that.
    cut = sf.col("gone").isin([one.number for one in streams if one.cut])
    bounded = (sf.col("rule") == SHARED_ID) | (cut & sf.col("rule").isin(RESTORED, NEVER))
    late = ~bounded | sf.coalesce(sf.col("dated") >= began, sf.lit(True))
    amount = sf.when(sf.col("had") == 0, sf.when(owned, sf.col("p.times")).otherwise(1)).otherwise(
        sf.col("p.times") - sf.col("had")
    )
    return found.where(late).select(
        "signature", "transaction", "by_gtid", "origin", "form", "dated", "dated_to", "tables", "member",
        "reference", "rule", "low", "high", amount.alias("lacking"),
        sf.col("p.first_offset").alias("first_offset"), sf.col("p.last_offset").alias("last_offset"),
    )  # fmt: skip


def _is_owned(streams: Sequence[Stream]) -> Column:
    """Tell whether the place ``p`` of a transaction is in the log of a server with the id of its origin."""
    owned = sf.lit(False)
    for one in streams:
        owned |= (sf.col("p.stream") == one.number) & sf.col("origin").isin(*one.own)
    return owned


@dataclass(frozen=True, slots=True)
class Tail:
    """What a server wrote after the last of its transactions that a member has.

    Times are seconds since 1970; ``until`` is that of the last of them.
    """

    reference: int
    member: str
    transactions: int
    since: int
    until: int


def tails(
    spark: SparkSession, present: DataFrame, streams: Sequence[Stream], common: Iterable[Row]
) -> list[Tail]:
    """Return what servers wrote after the last that members have of them, where that is more than a lag."""
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for row in common:
        reference, member = streams[row.reference], streams[row.member]
        if row.origin in reference.own and reference.source != member.source:
            key = reference.number, member.source
            high, time = last.get(key, (0, 0))
            last[key] = max(high, row.high), max(time, row.dated or 0)
    if not last:
        return []
    reached = spark.createDataFrame(
        [(*key, *end) for key, end in last.items()], "reference int, member string, high bigint, time bigint"
    )
    # Servers may log DDL with another text than they received.
    sent = present.where(sf.col("form") != _DDL)
    placed = sent.select("origin", "dated", sf.explode("seen").alias("p")).where(_is_owned(streams))
    after = placed.join(
        sf.broadcast(reached),
        (sf.col("p.stream") == sf.col("reference")) & (sf.col("p.first_offset") > sf.col("high")),
    )
    # What is dated before what has arrived was not written then: a session has set its TIMESTAMP.
    summed = (
        after.where("dated >= time")
        .groupBy("reference", "member")
        .agg(
            sf.count("*").alias("transactions"),
            sf.min("dated").alias("since"),
            sf.max("dated").alias("until"),
        )
    )
    long = summed.where(sf.col("until") - sf.col("since") >= _LAG_S)
    return [Tail(**row.asDict()) for row in long.orderBy("reference", "member").collect()]


def order_of(spark: SparkSession, present: DataFrame, triples: Iterable[tuple[int, int, int]]) -> list[Row]:
    """Return how the order of two logs differs for an origin; ``triples`` are reference, member and origin.

    ``ahead`` is by how many offsets of the reference the member had gone on before one arrived, ``turned``
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
            sf.count_if(sf.col("ahead") > 0).alias("turned"),
            sf.min(sf.when(sf.col("ahead") > 0, sf.col("dated"))).alias("since"),
            sf.max(sf.when(sf.col("ahead") > 0, sf.col("dated"))).alias("until"),
            sf.count("*").alias("common"),
        )
        .collect()
    )


def executed_before(transaction: str, gtids: str | None) -> bool | None:
    """Tell whether a log's head lists a transaction as older than the log; None if that is unknown."""
    if gtids is None:
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
