"""Reading topics as batches: bounds by offset or time, committed records only, chunks joined.

The driver fixes the offsets before anything is read, so every pass over a topic sees the same records,
whatever is written meanwhile. It asks Kafka's own Java client for them, with the options of Spark's source;
the ``end`` of a partition is its last stable offset.

A topic of one partition is divided into many Spark partitions by offset. The result does not depend on the
division.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pydantic import SecretStr
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.contract import HEADER_CHUNK, HEADER_MARKER, is_of_rows
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.spark.archive import Archive
from spark_jobs.common.session import java_class

RECORD_SCHEMA: Final = "partition int, offset bigint, time timestamp, key binary, value binary, fault string"
"""A record of a topic: its place, its time, its bytes; of a chunked one the first chunk's place and time.

``fault`` says why it is not whole, and is null where it is.
"""

RAW_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
"""What a record of a topic has in Kafka's source, and in an archive."""

_ARCHIVED: Final = (
    "offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)

Bound = int | datetime | None
"""Where a slice begins or ends: an offset, a time, or None for the topic's own beginning or end."""

_DURATION: Final = re.compile(r"([0-9]+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OFFSETS_PER_PARTITION: Final = 25_000
CHUNK: Final = "^[0-9]{1,9}/[0-9]{1,9}$"
"""The header of a chunk: its number, from 0, and how many there are."""

NO_CHUNK: Final = f"its header {HEADER_CHUNK} is not a chunk number"
CHUNKS_APART: Final = 2
"""Offsets from one chunk to the next, at the most: the end of a transaction of Kafka may lie between."""
_SMALLEST_LONG: Final = 1 << 31
"""Smaller numbers reach Java as Integer, where Kafka wants a Long; as a time it is January 1970."""


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """Part of a topic: for each of its partitions the first offset and the one after the last.

    ``bounded`` is true where somebody chose the bounds, which may then cut what belongs together. Of a topic
    of one partition an ``archive`` may have the records before its end.
    """

    topic: str
    offsets: Mapping[int, tuple[int, int]]
    bounded: bool = False
    archive: Archive | None = None

    @property
    def count(self) -> int:
        """Number of offsets; no less than that of records, since commits and aborted records have offsets."""
        return sum(end - start for start, end in self.offsets.values())

    def __str__(self) -> str:
        ranges = ", ".join(f"{start:,} to {end:,}" for start, end in self.offsets.values())
        archived = "" if self.archive is None else f", those before {self.archive.end:,} in the archive"
        return f"{self.topic}, offsets {ranges}{archived}"

    def between(self, start: int, end: int) -> "TopicSlice":
        """Return the part from an offset to before another, of a topic of one partition."""
        (partition,) = self.offsets
        return replace(self, offsets={partition: (start, end)})


def parse_bound(text: str) -> Bound:
    """Read ``earliest``, ``latest``, an offset, how long ago (``24h``) or a time in ISO 8601.

    ``offset:20261122`` is an offset for certain: digits alone that read as a date are refused, since one of
    the two would be meant. A time without zone is UTC. Raises ValueError where the text is none of these.
    """
    if text in ("earliest", "latest"):
        return None
    digits = text.removeprefix("offset:")
    if digits.isascii() and digits.isdecimal():
        if digits == text and _reads_as_date(text):
            raise ValueError(text)
        return int(digits)
    if _DURATION.fullmatch(text):
        try:
            return datetime.now(UTC) - parse_duration(text)
        except OverflowError:
            raise ValueError(text) from None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_duration(text: str) -> timedelta:
    """Read a time as ``30s``, ``90m``, ``24h`` or ``7d``; raise ValueError where the text is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise ValueError(text) from None


def _reads_as_date(digits: str) -> bool:
    """Return whether digits may be meant as a date: with year, month and day, and perhaps a time."""
    try:
        return len(digits) in (8, 12, 14) and 1990 <= datetime.strptime(digits[:8], "%Y%m%d").year <= 2100  # noqa: DTZ007
    except ValueError:
        return False


def kafka_options(settings: KafkaSettings) -> dict[str, str]:
    """Return the options of Kafka's Java client; certificates as text, for executors have no such files."""
    timeout_ms = str(int(settings.connect_timeout_s * 1000))
    options = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "isolation.level": "read_committed",
        # Jobs read only what is there. The client asks ahead, and would wait for more at the end of a topic.
        "fetch.max.wait.ms": "10",
        "default.api.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms,
    }
    if settings.sasl_mechanism and settings.sasl_username and settings.sasl_password:
        options["sasl.mechanism"] = settings.sasl_mechanism
        options["sasl.jaas.config"] = _jaas(
            settings.sasl_mechanism, settings.sasl_username, settings.sasl_password.get_secret_value()
        )
    if settings.ssl_ca_location:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = settings.ssl_ca_location.read_text()
    if settings.ssl_certificate_location and settings.ssl_key_location:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = settings.ssl_certificate_location.read_text()
        options["ssl.keystore.key"] = _plain_key(
            settings.ssl_key_location.read_text(), settings.ssl_key_password
        )
    return options


def _plain_key(pem: str, password: SecretStr | None) -> str:
    """Return a private key as Java reads it: in PKCS #8, and not encrypted as OpenSSL does it."""
    if "BEGIN PRIVATE KEY" in pem:
        return pem
    # Few keys are otherwise, and the package is not among those that spark-submit's Python needs.
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    secret = password.get_secret_value().encode() if password and "ENCRYPTED" in pem else None
    try:
        key = serialization.load_pem_private_key(pem.encode(), secret)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        problem = (
            "MILLRACE_KAFKA_SSL_KEY_LOCATION: this is no private key in PEM, or "
            "MILLRACE_KAFKA_SSL_KEY_PASSWORD is not its password"
        )
        raise SettingsError([problem]) from None
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form).decode()


def _jaas(mechanism: str, username: str, password: str) -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    name, secret = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (username, password))
    return f'org.apache.kafka.common.security.{module} required username="{name}" password="{secret}";'


def resolve_slice(
    spark: SparkSession,
    options: Mapping[str, str],
    topic: str,
    start: Bound = None,
    end: Bound = None,
    *,
    missing_is_empty: bool = False,
) -> TopicSlice:
    """Ask Kafka for the offsets between two bounds; of a topic that does not exist there may be none.

    Raises :class:`UserError` where Kafka does not answer or the topic does not exist.
    """
    try:
        consumer = _consumer(spark, options)
    except Py4JJavaError as error:
        raise _kafka_error(error, options) from None
    except (Py4JError, TypeError):
        raise UserError(
            "Spark's Kafka source is not on its class path; run the job as `millrace job`, or give "
            "spark-submit the jars that `millrace job jars` prints as --jars",
            ExitCode.SETTINGS,
        ) from None
    try:
        bounded = start is not None or end is not None
        if missing_is_empty and not consumer.listTopics().containsKey(topic):
            return TopicSlice(topic, {})
        return TopicSlice(topic, _offsets(spark, consumer, topic, start, end), bounded)
    except Py4JJavaError as error:
        raise _kafka_error(error, options) from None
    finally:
        consumer.close(java_class(spark, "java.time.Duration").ofSeconds(0))


def _consumer(spark: SparkSession, options: Mapping[str, str]) -> Any:
    settings = java_class(spark, "java.util.HashMap")()
    for name, value in options.items():
        settings.put(name, value)
    settings.put("allow.auto.create.topics", "false")
    new = java_class(spark, "org.apache.kafka.common.serialization.ByteArrayDeserializer")
    return java_class(spark, "org.apache.kafka.clients.consumer.KafkaConsumer")(settings, new(), new())


def _offsets(
    spark: SparkSession, consumer: Any, topic: str, start: Bound, end: Bound
) -> dict[int, tuple[int, int]]:
    new = java_class(spark, "org.apache.kafka.common.TopicPartition")
    found = consumer.partitionsFor(topic)
    # A list of Java would end with an exception, which takes dozens of questions to translate.
    numbers = [info.partition() for info in found.toArray()] if found else []
    if not is_of_rows(topic):
        numbers = numbers[:1] and [0]  # all of our records are there
    partitions = {number: new(topic, number) for number in numbers}
    if not partitions:
        raise UserError(
            f"topic {topic} does not exist; check the source's name and that the decoder has run",
            ExitCode.KAFKA,
        )
    every = java_class(spark, "java.util.ArrayList")()
    for partition in partitions.values():
        every.add(partition)
    first, last = consumer.beginningOffsets(every), consumer.endOffsets(every)

    def place(number: int, bound: Bound, otherwise: int) -> int:
        if bound is None:
            return otherwise
        if isinstance(bound, int):
            wanted = bound
        elif (millis := int(bound.timestamp() * 1000)) < _SMALLEST_LONG:
            wanted = first[partitions[number]]
        else:
            times = java_class(spark, "java.util.HashMap")()
            times.put(partitions[number], millis)
            found = consumer.offsetsForTimes(times).get(partitions[number])
            wanted = found.offset() if found is not None else last[partitions[number]]
        return int(min(max(wanted, first[partitions[number]]), last[partitions[number]]))

    bounds = {}
    for number, partition in sorted(partitions.items()):
        begin = place(number, start, first[partition])
        bounds[number] = (begin, max(begin, place(number, end, last[partition])))
    return bounds


def _kafka_error(error: Py4JJavaError, options: Mapping[str, str]) -> UserError:
    exception: Any = error.java_exception
    while exception.getCause() is not None:
        exception = exception.getCause()
    reason = f"{exception.getClass().getSimpleName()}: {exception.getMessage()}"
    return UserError(
        f"Kafka at {options['bootstrap.servers']} does not answer ({reason}); check that the brokers run "
        "and the MILLRACE_KAFKA_ settings",
        ExitCode.KAFKA,
    )


def read_records(spark: SparkSession, options: Mapping[str, str], part: TopicSlice) -> DataFrame:
    """Return the events in a slice as :data:`RECORD_SCHEMA`, chunked ones joined, markers left out.

    A chunked event that an end of the slice cuts is left out. One that lacks chunks elsewhere has a
    ``fault``.
    """
    records = _scan(spark, options, part)
    single = sf.col("chunk").isNull() | ~sf.col("chunk").rlike(CHUNK)
    fault = sf.when(sf.col("chunk").isNotNull(), sf.lit(NO_CHUNK))
    alone = records.where(single & sf.col("marker").isNull()).withColumn("fault", fault)
    return alone.drop("chunk", "marker").union(_joined(_chunks(records, part).where("not cut")))


def scan(
    spark: SparkSession,
    options: Mapping[str, str],
    part: TopicSlice,
    *,
    whole: bool = False,
    offsets_each: int | None = None,
) -> DataFrame:
    """Return committed records of a slice, with :data:`RAW_COLUMNS` and perhaps more.

    ``whole`` as one Spark partition, in the order of their offsets; else about ``offsets_each`` in one, which
    are as many as suit what is decoded where it is not given.
    """
    if part.archive is not None:
        ((start, end),) = part.offsets.values()
        if start < part.archive.end:
            found = _scan_archive(spark, part.archive, start, min(end, part.archive.end))
            if end > part.archive.end:
                rest = replace(part.between(part.archive.end, end), archive=None)
                found = found.union(scan(spark, options, rest, whole=whole).select(*RAW_COLUMNS))
            return found.coalesce(1).sortWithinPartitions("offset") if whole else found
    starts = {str(number): start for number, (start, _) in part.offsets.items()}
    ends = {str(number): end for number, (_, end) in part.offsets.items()}
    reader = spark.read.format("kafka").options(**{f"kafka.{name}": value for name, value in options.items()})
    return (
        reader.option("subscribe", part.topic)
        .option("startingOffsets", json.dumps({part.topic: starts}))
        .option("endingOffsets", json.dumps({part.topic: ends}))
        .option("includeHeaders", "true")
        .option("kafkaConsumer.pollTimeoutMs", 4 * int(options["request.timeout.ms"]))
        .option(
            "minPartitions", 1 if whole else max(1, part.count // (offsets_each or _OFFSETS_PER_PARTITION))
        )
        .load()
    )


def _scan_archive(spark: SparkSession, archive: Archive, start: int, end: int) -> DataFrame:
    """Return the archived records from an offset to before another as Kafka's source has them."""
    paths = [one.path for one in archive.between(start, end).files]
    found = spark.read.schema(_ARCHIVED)
    records = found.parquet(*paths) if paths else spark.createDataFrame([], _ARCHIVED)
    inside = (sf.col("offset") >= start) & (sf.col("offset") < end)
    return records.where(inside).withColumn("partition", sf.lit(0)).select(*RAW_COLUMNS)


def stream(
    spark: SparkSession, options: Mapping[str, str], topics: str, starts: str, most_offsets: int
) -> DataFrame:
    """Return committed records of topics as they arrive, ``starts`` by topic and partition as JSON."""
    reader = spark.readStream.format("kafka")
    reader = reader.options(**{f"kafka.{name}": value for name, value in options.items()})
    return (
        reader.option("subscribe", topics)
        .option("startingOffsets", starts)
        .option("maxOffsetsPerTrigger", most_offsets)
        .load()
    )


def headers_of(name: str) -> Column:
    """Return a header of a record as text, null where it has none of this name."""
    return sf.expr(f"cast(get(filter(headers, h -> h.key = '{name}'), 0).value as string)")


def _scan(spark: SparkSession, options: Mapping[str, str], part: TopicSlice) -> DataFrame:
    return scan(spark, options, part).select(
        "partition", "offset", sf.col("timestamp").alias("time"), "key", "value",
        headers_of(HEADER_CHUNK).alias("chunk"), headers_of(HEADER_MARKER).alias("marker"),
    )  # fmt: skip


def _chunks(records: DataFrame, part: TopicSlice) -> DataFrame:
    """Gather the chunks of each event, and say where some of ``wanted`` ones are missing.

    ``cut`` tells that those before or after them lie outside the slice, ``fault`` that they lie nowhere.
    """
    numbered = records.where(sf.col("chunk").rlike(CHUNK)).select(
        "partition", "offset", "time", "key", "value",
        sf.split_part("chunk", sf.lit("/"), sf.lit(1)).cast("int").alias("i"),
        sf.split_part("chunk", sf.lit("/"), sf.lit(2)).cast("int").alias("wanted"),
    )  # fmt: skip
    gathered = numbered.groupBy("partition", "key", "wanted").agg(
        sf.min("offset").alias("offset"),
        sf.max("offset").alias("last_offset"),
        sf.min("time").alias("time"),
        sf.count("*").alias("number"),
        sf.count_distinct("i").alias("pieces"),
        sf.min("i").alias("first"),
        sf.max("i").alias("last"),
        sf.sort_array(sf.collect_list(sf.struct("i", "value"))).alias("chunks"),
    )
    start, end = (
        sf.coalesce(*(sf.when(sf.col("partition") == n, sf.lit(at[side])) for n, at in part.offsets.items()))
        if part.offsets
        else sf.lit(0)
        for side in (0, 1)
    )
    row = (sf.col("number") == sf.col("pieces")) & (sf.col("last") - sf.col("first") + 1 == sf.col("pieces"))
    whole = row & (sf.col("first") == 0) & (sf.col("pieces") == sf.col("wanted"))
    before = (sf.col("first") > 0) & (sf.col("offset") - CHUNKS_APART * sf.col("first") < start)
    missing = sf.col("wanted") - 1 - sf.col("last")
    after = (missing > 0) & (sf.col("last_offset") + CHUNKS_APART * missing >= end)
    cut = row & ((before & (missing >= 0)) | (after & ((sf.col("first") == 0) | before)))
    twice = sf.when(sf.col("number") > sf.col("pieces"), ", some of them twice").otherwise("")
    fault = sf.format_string("%d of the %d chunks of this event are there%s", "pieces", "wanted", twice)
    return gathered.withColumns({"cut": ~whole & cut, "fault": sf.when(~whole, fault)})


def _joined(chunked: DataFrame) -> DataFrame:
    return chunked.select("partition", "offset", "time", "key", "chunks.value", "fault").mapInArrow(
        _join_batches, RECORD_SCHEMA
    )


def _join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = [b"".join(chunk or b"" for chunk in chunks) for chunks in batch.column("value").to_pylist()]
        yield batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
