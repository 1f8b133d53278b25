"""The Spark session of a job, and its progress.

Started by ``spark-submit``, a job takes master, memory and jars from there. Started as a Python program
(``millrace job NAME``), it runs in this process by default, on the cores and in the memory of
:class:`SparkSettings`, with Spark's own log turned down to errors.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final

from pydantic import Field
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from millrace.runtime.settings import SettingsGroup
from millrace.text import printable

_ARROW_BATCH_BYTES: Final = 16 << 20
_MEMORY_MIB: Final = 2048
_POLL_S: Final = 0.5
_STREAM_ENDS_WITHIN: Final = "10s"
_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC"
"""A job is short, and most of its work is in Python: the second compiler doubles the time of the JVM. For the
first alone Java reserves 48 MiB of code, which Spark fills."""

_SECRETS: Final = "(?i)secret|password|token|access[.]?key|keystore[.]key"
"""What Spark keeps out of its logs: as by default, and the private key for Kafka."""

_LONGEST_SOCKET_FOLDER: Final = 60
"""Bytes: a socket's path may have 103, of which Spark's names take 42."""

_MEMORY_OF_EXECUTORS: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""What the C library of executors does with free memory: it keeps it, for all threads, instead of returning
it to the system and taking it again. Kafka's client allocates in one thread what is freed in another. Arrow
has no memory of its own, which it would return as well."""


class SparkSettings(SettingsGroup):
    """What Spark may use where ``spark-submit`` does not say it: ``MILLRACE_SPARK_…``."""

    cores: int | None = Field(None, ge=1, description="cores that a job uses, 1 or more; by default all")
    memory_mib: int | None = Field(
        None,
        ge=1024,
        description="MiB that a job may use, 1024 or more: Java's heap takes half of it, by default 1024 MiB",
    )
    jars: str | None = Field(None, description="jars of the Kafka connector, separated by commas")


@contextmanager
def spark_session(name: str, master: str | None, settings: SparkSettings) -> Iterator[SparkSession]:
    """Start the session of the job ``name`` and stop it at the end."""
    interrupt = signal.getsignal(signal.SIGINT)
    conf = _conf(master, settings).setAppName(name)
    with _sockets(conf):
        SparkContext.getOrCreate(conf)
        if threading.current_thread() is threading.main_thread():
            # Spark's own handler asks Java, from the midst of whatever was being asked.
            signal.signal(signal.SIGINT, interrupt)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _sockets(conf: SparkConf) -> Iterator[None]:
    """Let Java and Python on one machine talk through Unix sockets, in a folder that is ours alone.

    Over TCP the end of what Java sends for a task waits for an acknowledgement of its beginning: some 40 ms.
    """
    with TemporaryDirectory(prefix="millrace-") as folder:
        if _is_local(conf) and len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER:
            conf.setIfMissing("spark.python.unix.domain.socket.enabled", "true")
            conf.setIfMissing("spark.python.unix.domain.socket.dir", folder)
        yield


def _is_local(conf: SparkConf) -> bool:
    return conf.get("spark.master", "").startswith("local")


def _conf(master: str | None, settings: SparkSettings) -> SparkConf:
    conf = SparkConf()
    conf.set("spark.sql.session.timeZone", "UTC")
    conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_ARROW_BATCH_BYTES))
    # Else each column of an expression asks Java several times, to say in an error where it was written.
    conf.setIfMissing("spark.python.sql.dataFrameDebugging.enabled", "false")
    conf.setIfMissing("spark.sql.streaming.stopTimeout", _STREAM_ENDS_WITHIN)
    conf.setIfMissing("spark.redaction.regex", _SECRETS)
    if master is not None:
        conf.set("spark.master", master)
    for name, value in _MEMORY_OF_EXECUTORS.items():
        conf.setIfMissing(f"spark.executorEnv.{name}", value)
    # Else workers, which are started with -m, import modules of the folder that they are started in.
    conf.setIfMissing("spark.executorEnv.PYTHONSAFEPATH", "1")
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started us, and has set the rest
        return conf
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging = Path(__file__).parents[1] / "log4j2.properties"
    conf.setIfMissing("spark.master", f"local[{settings.cores or '*'}]")
    conf.setIfMissing("spark.driver.memory", f"{(settings.memory_mib or _MEMORY_MIB) // 2}m")
    conf.setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    conf.setIfMissing("spark.sql.shuffle.partitions", "8")
    # Jobs have no tables of Spark's: otherwise it makes a folder for them where it was started.
    conf.setIfMissing("spark.sql.warehouse.dir", gettempdir())
    conf.setIfMissing(
        "spark.driver.extraJavaOptions",
        f'-Dlog4j2.configurationFile={logging.as_uri()} "-Djava.io.tmpdir={gettempdir()}" {_JVM_OPTIONS}',
    )
    if _is_local(conf):
        conf.setIfMissing("spark.driver.host", "127.0.0.1")
        conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
    if conf.get("spark.master", "").startswith(("local", "k8s")):  # executors have this package
        conf.setIfMissing("spark.python.daemon.module", "spark_jobs.common.worker_daemon")
    if settings.jars:
        conf.setIfMissing("spark.jars", settings.jars)
    return conf


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of Java by its full name, and what cannot be called where there is none.

    Through its packages, as in ``spark._jvm.java.util``, Java would search all jars for classes named so.
    """
    return getattr(spark._jvm, name)


def java_session(spark: SparkSession) -> Any:
    """Return the session as Java has it."""
    return spark._jsparkSession


def hadoop_path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return the file system of Hadoop that has a path, and the path as it has it."""
    place = java_class(spark, "org.apache.hadoop.fs.Path")(path)
    context: Any = spark.sparkContext._jsc
    return place.getFileSystem(context.hadoopConfiguration()), place


def is_stopped(spark: SparkSession) -> bool:
    """Return whether a session was stopped."""
    return spark.sparkContext._jsc is None


class Steps:
    """Prints the progress of a job on stderr: a line per step, and on a terminal how many tasks are done."""

    def __init__(self, spark: SparkSession, job: str) -> None:
        self._spark = spark
        self._job = job

    def say(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{self._job}: {printable(text)}\n")
        sys.stderr.flush()

    def say_speed(self, number: int, size: int, seconds: float, what: str = "events") -> None:
        """Print how many events (or ``what``) and bytes were read, and how fast."""
        self.say(
            f"{number:,} {what}, {size / 1e6:,.1f} MB: "
            f"{number / seconds:,.0f} {what}/s, {size / 1e6 / seconds:,.1f} MB/s"
        )

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Write ``text`` and, when the body has ended, how long it took."""
        started = time.monotonic()
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(text, done), daemon=True)
        if sys.stderr.isatty():
            watcher.start()
        try:
            yield
        finally:
            done.set()
            if watcher.ident is not None:
                watcher.join()
        self.say(f"{text} ({time.monotonic() - started:.1f} s)")

    def _watch(self, text: str, done: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not done.wait(_POLL_S):
            stages = [
                info for i in tracker.getActiveStageIds() if (info := tracker.getStageInfo(i)) is not None
            ]
            tasks = sum(stage.numTasks for stage in stages)
            finished = sum(stage.numCompletedTasks for stage in stages)
            progress = f" … {finished}/{tasks} tasks" if tasks else " …"
            sys.stderr.write(f"\r\x1b[K{self._job}: {printable(text)}{progress}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
