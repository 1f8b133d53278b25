"""Transforms of the job loop_detection, on small frames cut in different ways."""

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from spark_jobs.common.job import persisted
from spark_jobs.common.transactions import INSTANCE, number_laps, transactions
from spark_jobs.loop_detection import (
    REPEATED,
    REUSED,
    UNDECIDABLE,
    finding_events,
    judge,
    origins,
    repeats,
    sign,
    unknown_origins,
    with_clocks,
)
from tests.spark_session import SPARK
from tests.unit.spark.frames import Log, dicts, frame

pytestmark = SPARK

CUTS = [1, 5]


class Case:
    """The frames of a stream; ``body`` of a rows event stands for its content."""

    def __init__(self, spark: SparkSession, log: Log, cuts: int = 1, servers: Sequence[int] = ()) -> None:
        events = frame(spark, log, partitions=cuts).withColumn("rows", sf.lit(None).cast("long"))
        self.events = persisted(number_laps(events))
        self.occurrences = persisted(transactions(self.events))
        with_content = self.events.where("digest is not null and transaction like '%:%'")
        content = with_content.select(*INSTANCE, sf.lit(1).alias("changes"), "digest")
        self.signed = persisted(sign(self.occurrences, content))
        self.repeated = persisted(with_clocks(repeats(self.signed), self.signed))
        writers = self.events.where("type = 'FORMAT_DESCRIPTION_EVENT'")
        self.origins = origins(self.occurrences, self.signed, self.repeated, writers, servers)

    def judged(self) -> list[dict[str, Any]]:
        return dicts(judge(self.repeated).orderBy("first_offset"))

    def seen(self) -> dict[int, dict[str, Any]]:
        return {row["server_id"]: row for row in dicts(self.origins)}


def write(log: Log, text: bytes, timestamp: int, name: str | None = None, **more: Any) -> None:
    log.transaction(name, timestamp=timestamp, digest=zlib.crc32(text), **more)


@pytest.mark.parametrize("cuts", CUTS)
def test_a_gtid_that_circulates(spark: SparkSession, cuts: int) -> None:
    log = Log()
    write(log, b"a", 100, "0-1-1")
    for _ in range(4):
        write(log, b"loops", 101, "0-99-2", server_id=99)
        write(log, b"b", 102, f"0-1-{len(log.events)}")
    case = Case(spark, log, cuts)
    (finding,) = case.judged()
    assert (finding["kind"], finding["evidence"]) == (REPEATED, "the same GTID")
    assert (finding["transaction"], finding["server_id"], finding["laps"]) == ("0-99-2", 99, 3)
    assert (finding["first_key"], finding["last_key"]) == ("99:0:bin.000001:304", "99:0:bin.000001:2304")
    assert (finding["first_place"], finding["last_place"]) == ("bin.000001:304", "bin.000001:2104")
    seen = case.seen()
    assert (seen[1]["known"], seen[1]["role"]) == (True, "has transactions of its own")
    assert (seen[99]["known"], seen[99]["transactions"], seen[99]["in_repeats"]) == (False, 4, 4)
    (orphan,) = dicts(unknown_origins(case.origins))
    assert orphan["evidence"] == "4 transactions, of which 4 are repeats"


def test_a_gtid_with_two_meanings(spark: SparkSession) -> None:
    log = Log()
    write(log, b"a", 100, "0-1-1")
    write(log, b"b", 170, "0-1-1")
    (finding,) = Case(spark, log).judged()
    assert finding["kind"] == REUSED


@pytest.mark.parametrize("cuts", CUTS)
def test_equal_inserts_within_a_second_cannot_be_decided(spark: SparkSession, cuts: int) -> None:
    log = Log()
    for second in (100, 101, 102, 103):
        write(log, b"other %d" % second, second)
        write(log, b"same", second)
        write(log, b"same", second)
    judged = Case(spark, log, cuts).judged()
    assert [(row["kind"], row["occurrences"], row["evidence"]) for row in judged] == [
        (UNDECIDABLE, 2, None)
    ] * 4


def test_equal_statements_at_different_times_are_different(spark: SparkSession) -> None:
    log = Log()
    for second in range(100, 130):
        write(log, b"same", second)
        write(log, b"other %d" % second, second)
    assert Case(spark, log).judged() == []


def test_later_transactions_of_the_origin_between(spark: SparkSession) -> None:
    log = Log()
    write(log, b"loops", 100)
    write(log, b"next", 102)
    write(log, b"loops", 100)
    (finding,) = Case(spark, log).judged()
    assert (finding["kind"], finding["evidence"]) == (
        REPEATED,
        "later transactions of the same origin lie between",
    )


def test_equal_inserts_that_arrive_late_together(spark: SparkSession) -> None:
    """A replica that lags: its own transactions are dated later than what it repeats for another."""
    log = Log()
    write(log, b"local", 500, server_id=2)
    write(log, b"same", 100)
    write(log, b"local", 501, server_id=2)
    write(log, b"same", 100)
    (row,) = Case(spark, log).judged()
    assert row["kind"] == UNDECIDABLE


@pytest.mark.parametrize("cuts", CUTS)
def test_an_orphan_without_gtid_goes_round_while_time_moves_on(spark: SparkSession, cuts: int) -> None:
    log = Log()
    for second in range(100, 106):
        write(log, b"local %d" % second, second)
        write(log, b"loops", 90, server_id=99)
    case = Case(spark, log, cuts)
    (finding,) = case.judged()
    assert finding["kind"] == REPEATED
    assert finding["evidence"] == "it recurs while the transactions around it move on"
    assert finding["lap_ms"] == 1000.0
    assert case.seen()[99]["known"] is False


def test_commit_times_tell_a_lap(spark: SparkSession) -> None:
    log = Log()
    for lap in range(3):
        write(
            log, b"loops", 100, original_commit_us=100_000_000, immediate_commit_us=100_000_000 + lap * 7000
        )
    write(log, b"honest", 100, original_commit_us=100_000_001, immediate_commit_us=100_000_001)
    write(log, b"honest", 100, original_commit_us=100_000_002, immediate_commit_us=100_000_002)
    (finding,) = Case(spark, log).judged()
    assert (finding["kind"], finding["occurrences"], finding["lap_ms"]) == (REPEATED, 3, 7.0)


def test_a_bound_for_the_lap_where_the_log_has_no_clock(spark: SparkSession) -> None:
    log = Log()
    for _ in range(5):
        write(log, b"loops", 100, "0-99-1", server_id=99)
    write(log, b"after", 102, "0-1-1")
    (finding,) = Case(spark, log).judged()
    assert (finding["lap_ms"], finding["lap_ms_at_most"]) == (None, 750.0)


def test_only_named_servers_are_known(spark: SparkSession) -> None:
    log = Log()
    log.event("FORMAT_DESCRIPTION_EVENT", server_id=3)
    for number, server_id in enumerate([1, 2, 3]):
        write(log, b"%d" % number, 100, f"0-{server_id}-{number}", server_id=server_id)
    seen = Case(spark, log, servers=[1, 2]).seen()
    assert {server_id: row["known"] for server_id, row in seen.items()} == {1: True, 2: True, 3: False}
    learned = Case(spark, log).seen()
    assert learned[3]["role"] == "writes a log that was read"
    assert all(row["known"] for row in learned.values())


def test_other_epochs_and_sources_are_other_streams(spark: SparkSession) -> None:
    logs = [Log("north"), Log("south"), Log("north", epoch=1)]
    for log in logs:
        write(log, b"a", 100, "0-1-1")
    events = number_laps(frame(spark, *logs).withColumn("rows", sf.lit(None).cast("long")))
    signed = sign(
        transactions(events), events.select(*INSTANCE).limit(0).selectExpr("*", "1 changes", "2L digest")
    )
    assert signed.count() == 3
    assert repeats(signed).count() == 0


@pytest.mark.parametrize("cuts", CUTS)
def test_a_finding_has_the_keys_of_its_raw_events(spark: SparkSession, cuts: int) -> None:
    log = Log()
    write(log, b"a", 100, "0-1-1")
    for _ in range(2):
        write(log, b"loops", 101, "0-99-2", server_id=99)
    case = Case(spark, log, cuts)
    findings = judge(case.repeated).withColumn("finding", sf.lit(1))
    orphans = unknown_origins(case.origins).withColumn("finding", sf.lit(2))
    both = findings.unionByName(orphans, allowMissingColumns=True)
    found = dicts(
        finding_events(both, case.repeated, case.occurrences, case.events).orderBy("finding", "nth_event")
    )
    positions = [304, 404, 504, 604, 704, 804]
    keys = [f"99:0:bin.000001:{position}" for position in positions]
    assert [row["raw_key"] for row in found if row["finding"] == 1] == keys
    assert [row["lap"] for row in found if row["finding"] == 1] == [0, 0, 0, 1, 1, 1]
    assert [row["raw_key"] for row in found if row["finding"] == 2] == keys
