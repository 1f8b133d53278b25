"""Spark's from_avro reads a row topic with several schema versions: the recipe of docs/consumers.md."""

import json
from collections.abc import Iterator
from functools import partial, reduce

from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, expr

from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaRegistry
from millrace.local import Kafka, Registry
from tests.shared import load_script
from tests.spark_session import SPARK, spark

from .rows_world import RowsWorld
from .test_consumers import changed, plain

__all__ = ["changed", "spark"]

pytestmark = SPARK


def parts_of(
    session: SparkSession, kafka: Kafka, registry: SchemaRegistry, topic: str, newest: str | None = None
) -> Iterator[DataFrame]:
    """Read all records as ``row``, those of each schema by themselves: by it, or by the newest."""
    records = (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .where("value IS NOT NULL")
        .withColumn("schema", expr("cast(conv(hex(substring(value, 2, 4)), 16, 10) AS int)"))
    )
    options = {} if newest is None else {"avroSchema": newest}
    for (schema_id,) in records.select("schema").distinct().orderBy("schema").collect():
        written = json.dumps(registry.schema(schema_id))
        row = from_avro(expr("substring(value, 6)"), written, options).alias("row")
        yield records.where(col("schema") == schema_id).select("offset", row)


def rows_of(session: SparkSession, kafka: Kafka, registry: SchemaRegistry, topic: str) -> DataFrame:
    """Read ``after`` of all records: each by the schema that wrote it, columns by name."""
    parts = [
        part.select("offset", "row.op", "row.after.*") for part in parts_of(session, kafka, registry, topic)
    ]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts).orderBy("offset")


def test_from_avro_reads_every_version(spark: SparkSession, changed: RowsWorld, kafka: Kafka) -> None:
    topic = changed.topics.table(changed.database, "a")
    rows = rows_of(spark, kafka, changed.registry, topic)
    assert [(row["id"], row["op"], row["kind"], row["note"], row["remark"]) for row in rows.collect()] == [
        (1, "c", "y", None, None),
        (2, "c", "x", "n", None),
        (3, "c", "z", "n", None),
        (3, "u", "z", None, "r"),
    ]
    assert {str(row["price"]) for row in rows.collect()} == {"12.30", "1234567890.12"}


def test_from_avro_reads_old_records_by_the_newest_schema(
    spark: SparkSession, changed: RowsWorld, kafka: Kafka, registry: Registry
) -> None:
    """A renamed column has its old values under its name of now."""
    topic = changed.topics.table(changed.database, "a")
    with SchemaRegistryClient({"url": registry.url}) as client:
        newest = client.get_latest_version(f"{topic}-value").schema.schema_str
    parts = [
        part.select("offset", "row.after.*")
        for part in parts_of(spark, kafka, changed.registry, topic, newest)
    ]
    rows = reduce(DataFrame.union, parts).orderBy("offset")
    assert rows.columns == ["offset", "id", "day", "price", "kind", "remark"]
    assert [row["remark"] for row in rows.collect()] == [None, "n", "n", "r"]


def test_from_avro_reads_every_type(spark: SparkSession, changed: RowsWorld, kafka: Kafka) -> None:
    """Each field of each record is what the records hold, which are compared with the tables elsewhere."""
    for topic in changed.table_topics():
        parts = parts_of(spark, kafka, changed.registry, topic)
        read = {row["offset"]: row["row"].asDict(recursive=True) for part in parts for row in part.collect()}
        assert [plain(read.pop(message.offset())) for message in changed.messages(topic)] == [
            plain(deserialize(changed.registry, message.value())) for message in changed.messages(topic)
        ], topic
        assert not read


def test_types_are_those_of_the_docs(spark: SparkSession) -> None:
    """The column *Spark* of docs/types.md."""
    script = load_script("docs/columns.py")
    for sql, avro in script.avro_types_shown():
        schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": ["null", avro]}]}
        frame = spark.createDataFrame([(b"\0",)], "value binary")
        read = frame.select(from_avro(col("value"), json.dumps(schema)).alias("row")).select("row.v")
        assert read.schema["v"].dataType.simpleString() == script.spark_type(avro), sql
