"""Analytics as a stream: windows of time, counted as the raw topic grows.

Each micro-batch of Spark is added to the windows that are open (:mod:`spark_jobs.windows.window`), and these
are kept as Parquet under its number, beside Spark's checkpoint. So a micro-batch that is repeated, after the
job was killed, is added to what it was added to before, and the same is written again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from millrace.contract import transactional_id
from millrace.kafka.job_topic import JobTopic
from millrace.runtime.errors import SettingsError
from millrace.runtime.health import Health
from spark_jobs.common.charts import count, many
from spark_jobs.common.faults import Faults, tell_corrupt
from spark_jobs.common.follow import MOST_OFFSETS, Pace, checkpoint, run_stream
from spark_jobs.common.job import Job, moment, new_run
from spark_jobs.common.places import names_in, read_text, remove, write_text
from spark_jobs.common.report import Bytes, Report
from spark_jobs.common.source import follow_log
from spark_jobs.windows.window import SUMS, TOTALS, WINDOW, add, columns, opened, record, totals, windows

if TYPE_CHECKING:
    from millrace.runtime.metrics import HttpServer
    from spark_jobs.windows.metrics import WindowMetrics

_SHOWN: Final = 100
_SHOWN_LOOKS: Final = 2
"""For how many windows and looks metrics show the window that was closed last: longer, nothing is new."""


@dataclass(frozen=True, slots=True)
class Options:
    """How windows are counted, and where they are told."""

    window_s: int
    lateness_s: int
    most_tables: int
    publish: bool
    metrics_port: int
    pace: Pace

    @property
    def lengths(self) -> tuple[int, int]:
        """Window and lateness, in seconds."""
        return self.window_s, self.lateness_s


def record_key(source: str, window_s: int, start: int) -> str:
    """Return the key of a window in the topic."""
    return f"{source}/{window_s}/{start}"


def count_windows(job: Job, options: Options) -> None:
    """Count what has arrived and what arrives in windows; where it was stopped, it resumes."""
    _check_folder(job, options)
    views = [
        follow_log(job, one, "statistics", columns=columns(), most_offsets=MOST_OFFSETS)
        .withColumn("source", sf.lit(one.source))
        for one in job.inputs
    ]  # fmt: skip
    results = _Results(job, options)

    def take(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        one = replace(job, notes=[], faults=Faults(), run=new_run())
        try:
            _take(one, batch, number, options, results)
        except BaseException:
            one.discard()
            raise
        finally:
            batch.unpersist()
        if one.faults.number:
            job.steps.say(f"{one.faults.number} records could not be read: see the report")

    try:
        # In a stream this is the time of the micro-batch, which Spark keeps with its offsets.
        given = sf.unix_seconds(sf.current_timestamp()).alias("given")
        run_stream(job, reduce(DataFrame.unionAll, views).select("*", given), take, options.pace)
    finally:
        results.close()


def _kept(job: Job) -> str:
    """Return the folder of the windows that are open after a micro-batch."""
    return f"{checkpoint(job)}/windows"


def _check_folder(job: Job, options: Options) -> None:
    """Refuse a folder that has other windows."""
    file = f"{_kept(job)}/settings.json"
    given = {"window": options.window_s, "lateness": options.lateness_s, "sources": ", ".join(job.sources)}
    text = read_text(job.spark, file)
    if text is None:
        write_text(job.spark, file, json.dumps(given) + "\n")
    elif (known := json.loads(text)) != given:
        told, wanted = (", ".join(f"{name} {value}" for name, value in one.items()) for one in (known, given))
        raise SettingsError([f"{file} is of another stream ({told}; not {wanted}): name another --output"])


def _take(job: Job, batch: DataFrame, number: int, options: Options, results: "_Results") -> None:
    """Add a micro-batch to the windows, keep them under its number, and tell those that have changed."""
    spark, kept = job.spark, _kept(job)
    numbers = sorted(int(name) for name in names_in(spark, kept) if name.isdecimal())
    earlier = [one for one in numbers if one < number]
    reader = spark.read.schema(SUMS)
    before = reader.parquet(f"{kept}/{earlier[-1]}") if earlier else spark.createDataFrame([], SUMS)
    with job.step(f"micro-batch {number} counted"):
        add(batch, before, number, *options.lengths).coalesce(1).write.mode("overwrite").parquet(
            f"{kept}/{number}"
        )
    after = reader.parquet(f"{kept}/{number}")
    with job.step("windows told"):
        tell_corrupt(job, batch.select("source", sf.inline("corrupt")).drop("record_time"))
        is_open = opened(after, *options.lengths).select(*WINDOW, sf.lit(False).alias("closed")).distinct()
        rows = windows(after, options.most_tables).join(is_open, [*WINDOW], "left").orderBy(*WINDOW)
        found = [
            record(row, options.window_s, closed=row.closed is None)
            for row in rows.where(f"closed is null or batch = {number}").collect()
        ]
        results.take(job, found, *(
            {row.source: row for row in totals(sums).collect()}
            for sums in (opened(before, *options.lengths), after)
        ))  # fmt: skip
    with suppress(Exception):  # the windows are kept; the next micro-batch removes what is left
        for one in earlier[:-1]:
            remove(spark, f"{kept}/{one}")


class _Results:
    """Where windows are told: the topic, metrics, and the results of each micro-batch."""

    def __init__(self, job: Job, options: Options) -> None:
        self._options = options
        kafka, topics, window_s = job.settings.kafka, job.settings.topics, options.window_s
        self._topics = {
            source: JobTopic(
                kafka, topics, "analytics", transactional_id("analytics", f"{source}-{window_s}")
            )
            for source in (job.sources if options.publish else ())
        }
        self._server: HttpServer | None = None
        self._metrics: WindowMetrics | None = None
        if options.metrics_port:
            self._serve(job)

    def _serve(self, job: Job) -> None:
        # Whoever wants no metrics needs no prometheus_client.
        from millrace.runtime.metrics import HttpServer, new_registry  # noqa: PLC0415
        from spark_jobs.windows.metrics import WindowMetrics  # noqa: PLC0415

        options, health = self._options, Health(stale_after_s=math.inf)
        registry = new_registry()
        shown_s = _SHOWN_LOOKS * (options.window_s + options.pace.every.total_seconds())
        self._metrics = WindowMetrics(registry, job.sources, shown_s)
        host = job.settings.http_host
        self._server = HttpServer(host, options.metrics_port, health, registry)
        self._server.start()
        health.set_ready()
        job.steps.say(f"metrics on http://{host}:{self._server.port}/metrics")

    def close(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            self._server.close()

    def take(
        self,
        job: Job,
        found: Sequence[Mapping[str, Any]],
        before: Mapping[str, Row],
        after: Mapping[str, Row],
    ) -> None:
        """Publish the windows that have changed: first in the topic, where they can be written again.

        The totals of all windows, before and after, are by source.
        """
        window_s = self._options.window_s
        for source, topic in self._topics.items():
            values = {
                record_key(source, window_s, one["start"]): json.dumps(one, ensure_ascii=False).encode()
                for one in found
                if one["source"] == source
            }
            if values:
                topic.write(values)
        job.finish({"windows": found}, _report(job, found))
        for source, row in after.items():
            of_source = [one for one in found if one["source"] == source]
            closed = sum(one["closed"] for one in of_source)
            known = before.get(source)
            added = {name: (row[name] or 0) - ((known and known[name]) or 0) for name in TOTALS}
            job.steps.say(
                f"{source}: {added['events']:,} events counted, {closed} windows closed, "
                f"{row.windows - closed} open"
            )
            if self._metrics is not None:
                self._metrics.take(source, added, of_source, row.windows - closed, row.until)


def _report(job: Job, values: Sequence[Mapping[str, Any]]) -> Report:
    """Build the page of a look."""
    page = Report(f"What was written in {', '.join(job.sources)}, window by window", job.facts)
    sums = {name: sum(one[name] for one in values) for name in ("events", "transactions", "rows", "bytes")}
    closed = sum(one["closed"] for one in values)
    page.verdict(
        f"{many(closed, 'window')} closed at this check, {count(len(values) - closed)} open.", "good"
    )
    page.tiles(
        [
            ("transactions", sums["transactions"]),
            ("rows changed", sums["rows"]),
            ("events", sums["events"]),
            ("in the log", Bytes(sums["bytes"])),
        ]
    )
    for note in job.notes:
        page.text(note)
    page.section("Windows", f"The last {_SHOWN} are listed." if len(values) > _SHOWN else "")
    page.table(
        [
            "source", "begins (UTC)", "state", "transactions", "inserted", "updated", "deleted", "bytes",
            "most rows in",
        ],
        [
            (
                one["source"], moment(one["start"]), "closed" if one["closed"] else "open",
                one["transactions"], one["inserts"], one["updates"], one["deletes"], Bytes(one["bytes"]),
                ", ".join(f"{table['database']}.{table['table']}" for table in one["tables"][:3]) or None,
            )
            for one in values[-_SHOWN:]
        ],
    )  # fmt: skip
    return page
