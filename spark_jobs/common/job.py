"""The frame of a job: options, the first look at Kafka and the registry, results, errors in words.

A job is a function that is decorated with :func:`job_command` and gets a :class:`Job` and a Spark session.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace import __version__
from millrace.avro.registry import SchemaRegistry, value_subject
from millrace.contract import Topics, source_problem
from millrace.kafka.client import connect
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import RegistrySettings, ServiceSettings, load_settings
from millrace.text import printable
from spark_jobs.common.kafka import Bound, TopicSlice, kafka_options, parse_bound, resolve_slice
from spark_jobs.common.report import Report
from spark_jobs.common.session import Steps, spark_session

__all__ = ["EVENT_ERROR", "Job", "JobSettings", "job_command", "moment", "persisted"]

EVENT_ERROR: Final = "EventError: "
"""What stands in front of the words of an executor's error that a user can act on."""


class JobSettings(ServiceSettings):
    """What a job needs to know: the settings that the services have."""

    registry: RegistrySettings


@dataclass(frozen=True, slots=True)
class Input:
    """The events of one source: where they lie, and the schemas with which they were written, by id."""

    source: str
    part: TopicSlice
    schemas: Mapping[int, dict[str, Any]]


@dataclass(slots=True)
class Job:
    """What a job works on, and where its results go."""

    name: str
    output: str
    kafka: Mapping[str, str]
    inputs: Sequence[Input]
    steps: Steps
    spark: SparkSession
    notes: list[str] = field(default_factory=list)

    @property
    def sources(self) -> list[str]:
        """Names of the sources."""
        return [one.source for one in self.inputs]

    @property
    def facts(self) -> list[str]:
        """What was read, a line per source."""
        return [str(one.part) for one in self.inputs]

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Tell of a step of the work, when it has ended how long it took."""
        with self.steps.step(text):
            yield

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a result as Parquet, in place of an earlier one."""
        frame.write.mode("overwrite").parquet(f"{self.output}/{name}")

    def finish(self, summary: Mapping[str, Any], report: Report) -> None:
        """Write ``summary.json`` and ``report.html`` and say where they are."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        input_ = {one.source: {"topic": one.part.topic, "offsets": one.part.offsets} for one in self.inputs}
        head = {
            "job": self.name,
            "version": __version__,
            "written_at": now,
            "input": input_,
            "notes": self.notes,
        }
        text = json.dumps({**head, **summary}, indent=2, ensure_ascii=False, default=str)
        write_text(self.spark, f"{self.output}/summary.json", text + "\n")
        footer = f"Written by millrace {__version__}, job {self.name}, at {now}."
        write_text(self.spark, f"{self.output}/report.html", report.html(footer))
        self.steps.say(f"report in {self.output}/report.html, figures in {self.output}/summary.json")


def job_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a job; its function is called with the job, the session and its own options."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.command(name, help=function.__doc__)
        @click.option(
            "--source", "sources", multiple=True, help="Source to read; may be repeated. [MILLRACE_SOURCE]"
        )
        @click.option(
            "--bootstrap-servers", help="Kafka brokers, host:port. [MILLRACE_KAFKA_BOOTSTRAP_SERVERS]"
        )
        @click.option("--registry-url", help="Schema registry's address. [MILLRACE_REGISTRY_URL]")
        @click.option(
            "--from",
            "start",
            default="earliest",
            show_default=True,
            help="Where to begin: earliest, an offset, or a time as 2026-01-31T10:00 (UTC if without zone).",
        )
        @click.option(
            "--to",
            "end",
            default="latest",
            show_default=True,
            help="Where to end, before it: as --from, or latest.",
        )
        @click.option(
            "--output", help=f"Folder for the results, local or any that Spark knows. [reports/{name}-SOURCE]"
        )
        @click.option("--master", help="Spark master; default is spark-submit's, else local[*].")
        @wraps(function)
        def command(  # noqa: PLR0917 - click calls it by names
            sources: tuple[str, ...],
            bootstrap_servers: str | None,
            registry_url: str | None,
            start: str,
            end: str,
            output: str | None,
            master: str | None,
            **own: Any,
        ) -> None:
            with errors_in_words(name):
                bounds = _bound("--from", start), _bound("--to", end)
                settings = _settings(sources, bootstrap_servers, registry_url)
                names = list(dict.fromkeys(sources or (settings.source,)))
                schemas = _look_up(settings, names)
                folder = (output or f"reports/{name}-{'+'.join(names)}").rstrip("/")
                _check_folder(folder)
                with spark_session(f"millrace {name}", master) as spark:
                    options = kafka_options(settings.kafka)
                    inputs = list(_inputs(spark, options, schemas, bounds))
                    job = Job(name, folder, options, inputs, Steps(spark, name), spark)
                    for one in inputs:
                        job.steps.say(f"reading {one.part}")
                    function(job, spark, **own)

        return command

    return decorate  # fmt: skip


def _bound(option: str, text: str) -> Bound:
    try:
        return parse_bound(text)
    except ValueError:
        raise SettingsError(
            [f"{option} is {text!r}: expected earliest, latest, an offset or a time as 2026-01-31T10:00"]
        ) from None


def _settings(sources: Sequence[str], servers: str | None, registry: str | None) -> JobSettings:
    values: dict[str, Any] = {}
    if sources:
        if problems := [f"--source: {problem}" for s in sources if (problem := source_problem(s))]:
            raise SettingsError(problems)
        values["source"] = sources[0]
    if servers:
        values["kafka"] = {"bootstrap_servers": servers}
    if registry:
        values["registry"] = {"url": registry}
    settings = load_settings(JobSettings, **values)
    configure_logging("WARNING")
    return settings


def _check_folder(folder: str) -> None:
    """Refuse a folder on this machine that cannot be written, before Spark has worked for nothing."""
    path = _local_path(folder)
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror}; name another folder with --output",
            ExitCode.SETTINGS,
        ) from None


def _local_path(path: str) -> Path | None:
    parts = urlsplit(path)
    return Path(parts.path if parts.scheme else path) if parts.scheme in ("", "file") else None


def _look_up(settings: JobSettings, sources: Sequence[str]) -> dict[str, dict[int, dict[str, Any]]]:
    """Reach Kafka and the registry before Spark, which takes a while, and return each source's schemas."""
    admin = connect(settings.kafka)
    existing = admin.list_topics(timeout=settings.kafka.connect_timeout_s).topics
    found = {}
    with SchemaRegistry(settings.registry) as registry:
        for source in sources:
            topic = Topics(source).events
            if topic not in existing:
                known = sorted(name.removesuffix(".events") for name in existing if name.endswith(".events"))
                hint = f"sources there are: {', '.join(known)}" if known else "no source has any events there"
                raise UserError(f"topic {topic} does not exist; {hint}", ExitCode.KAFKA)
            found[source] = registry.subject_schemas(value_subject(topic))
    return found


def _inputs(
    spark: SparkSession,
    options: Mapping[str, str],
    schemas: Mapping[str, Mapping[int, dict[str, Any]]],
    bounds: tuple[Bound, Bound],
) -> Iterator[Input]:
    """Fix which offsets of each source are read."""
    for source, known in schemas.items():
        part = resolve_slice(spark, options, Topics(source).events, *bounds)
        if part.count and not known:
            raise UserError(
                f"the registry has no schema under {value_subject(part.topic)}; check that "
                "MILLRACE_REGISTRY_URL is the registry that the decoder uses",
                ExitCode.REGISTRY,
            )
        yield Input(source, part, known)


@contextmanager
def errors_in_words(name: str) -> Iterator[None]:
    """End the process with one line and an exit code where a user can act; a bug is told in full."""
    try:
        yield
    except UserError as error:
        for line in error.lines:
            _say(line)
        raise SystemExit(int(error.exit_code)) from None
    except PySparkException as error:
        text = str(error)
        if EVENT_ERROR in text:
            _say(text.rpartition(EVENT_ERROR)[2].splitlines()[0])
            raise SystemExit(int(ExitCode.DATA)) from None
        _bug(name, error)
    except Exception as error:  # noqa: BLE001 - told in full, with the exit code for it
        _bug(name, error)


def _bug(name: str, error: Exception) -> None:
    traceback.print_exception(error)
    _say(f"{name} met a bug of its own ({type(error).__name__}), told above")
    raise SystemExit(int(ExitCode.BUG)) from None


def _say(line: str) -> None:
    sys.stderr.write(f"error: {printable(line)}\n")


def moment(seconds: int | None) -> str | None:
    """Return a time in words, UTC: ``2026-01-31 10:00:00``."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def persisted(frame: DataFrame) -> DataFrame:
    """Compute a frame once and keep it on the executors' disks.

    The plan that leads to it is forgotten: plans that hold each other several times over cost Spark more than
    the data.
    """
    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, on the local disk or on any file system that Spark knows."""
    file = _local_path(path)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    context: Any = spark.sparkContext._jsc
    stream = place.getFileSystem(context.hadoopConfiguration()).create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
