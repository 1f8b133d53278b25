"""Analytics as a stream: windows of time, counted as the raw topic grows.

What arrives is taken in stretches in which all transactions are whole (:mod:`spark_jobs.common.raw_stream`).
The windows that are open are kept with the offset up to which they are counted, in one file, when all that
was found is written. So a stretch that is counted again, after the job was killed, is added to what it was
added to before, and the same is written again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.contract import transactional_id
from millrace.kafka.job_topic import JobTopic
from millrace.runtime.health import Health
from millrace.spark.raw_topic import Piece
from spark_jobs.common.charts import count, many
from spark_jobs.common.faults import DEAD_LETTERS
from spark_jobs.common.follow import Pace
from spark_jobs.common.job import Input, Job, moment
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.pieces import over_pieces
from spark_jobs.common.raw_stream import Begun, follow_raw
from spark_jobs.common.report import Bytes, Report
from spark_jobs.windows.statistics import WindowStatistics
from spark_jobs.windows.window import Looked, Window, Windows

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


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look has found of a source, and its windows after that."""

    outcome: Outcome
    windows: Windows
    looked: Looked


def record_key(source: str, window_s: int, start: int) -> str:
    """Return the key of a window in the topic."""
    return f"{source}/{window_s}/{start}"


def count_windows(job: Job, options: Options) -> None:
    """Count what has arrived and what arrives in windows; where it was stopped, it resumes."""
    told = _Told(job, options)
    where = {"window": options.window_s, "lateness": options.lateness_s}

    def run(batch: Job, begun: Mapping[str, Begun]) -> dict[str, Outcome]:
        found = {one.source: _count(batch, one, begun[one.source], options) for one in batch.inputs}
        told.take(batch, found)
        return {source: one.outcome for source, one in found.items()}

    try:
        follow_raw(job, run, options.pace, where)
    finally:
        told.close()


def _count(job: Job, one: Input, begun: Begun, options: Options) -> _Found:
    """Count a stretch of a source and add it to its windows."""
    source, window_s = one.source, options.window_s
    now_ms = round(begun.given.timestamp() * 1000)

    def begin(_number: int, piece: Piece, _prepared: object) -> WindowStatistics:
        statistics = WindowStatistics(source, window_s, now_ms)
        statistics.begin(*([] if piece.described is None else [piece.described]))
        return statistics

    pieces = begun.pieces(job, one)
    windows = Windows.resume(window_s, options.lateness_s, begun.carried)
    whole = Outcome()
    parts = []
    with job.step(f"{one.part.topic}: {len(pieces)} pieces counted"):
        found = {row.piece: row.outcome for row in over_pieces(job, one, pieces, begin, dated=True).collect()}
        for number in sorted(found):
            outcome = Outcome.from_json(found[number])
            outcome.tell(job.faults, one.part.topic)
            carried = outcome.carried
            parts.append((carried["until_ms"], [Window.from_json(one) for one in carried["windows"]]))
            whole.add(outcome)
    looked = windows.add(parts, now_ms)
    whole.carried = windows.to_json()
    return _Found(whole, windows, looked)


class _Told:
    """Where windows are told: the topic, metrics, and the results of each look."""

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
        self._metrics = WindowMetrics(registry, job.sources, options.most_tables, shown_s)
        host = job.settings.http_host
        self._server = HttpServer(host, options.metrics_port, health, registry)
        self._server.start()
        health.set_ready()
        job.steps.say(f"metrics on http://{host}:{self._server.port}/metrics")

    def close(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            self._server.close()

    def take(self, job: Job, found: Mapping[str, _Found]) -> None:
        """Tell what a look has found: first in the topic, where it can be told again."""
        window_s, most = self._options.window_s, self._options.most_tables
        values = []
        for source, one in found.items():
            told = [
                window.told(source, window_s, most, closed=closed) for window, closed in one.looked.windows
            ]
            if (topic := self._topics.get(source)) is not None:
                topic.write(
                    {record_key(source, window_s, value["start"]): _as_bytes(value) for value in told}
                )
            closed = sum(is_closed for _, is_closed in one.looked.windows)
            job.steps.say(
                f"{source}: {one.looked.totals.events:,} events counted, {closed} windows closed, "
                f"{len(one.windows.open)} open"
            )
            values += told
        parts = [
            f"{job.folder}/{file.path}"
            for one in found.values()
            for file in one.outcome.files
            if file.table == f"parts/{DEAD_LETTERS}"
        ]
        if parts:
            job.write(DEAD_LETTERS, job.spark.read.parquet(*parts))
        job.remove("parts")
        job.finish({"windows": values}, _report(job, values))
        if self._metrics is not None:
            for source, one in found.items():
                self._metrics.take(source, one.windows, one.looked)


def _as_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


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
