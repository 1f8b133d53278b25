"""Spark's from_avro reads a row topic with several schema versions: the recipe of docs/consumers.md."""

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, expr

from millrace.avro.registry import SchemaRegistry
from millrace.local import Kafka
from tests.shared import load_script
from tests.spark_session import SPARK, spark

from .rows_world import SERVICES, RowsWorld
from .test_consumers import CHANGES, change, world

__all__ = ["spark", "world"]

pytestmark = SPARK


def rows_of(session: SparkSession, kafka: Kafka, registry: SchemaRegistry, topic: str) -> DataFrame:
    """Read ``after`` of all records: each by the schema that wrote it, columns by name."""
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
    found = None
    for (schema_id,) in records.select("schema").distinct().orderBy("schema").collect():
        written = json.dumps(registry.schema(schema_id))
        part = (
            records.where(col("schema") == schema_id)
            .select("offset", from_avro(expr("substring(value, 6)"), written).alias("row"))
            .select("offset", "row.op", "row.after.*")
        )
        found = part if found is None else found.unionByName(part, allowMissingColumns=True)
    assert found is not None
    return found.orderBy("offset")


def test_from_avro_reads_every_version(spark: SparkSession, world: RowsWorld, kafka: Kafka) -> None:
    with world.services(*SERVICES):
        world.wait_for_start()
        change(world, *CHANGES)
        world.wait_for_row("done")
    topic = world.topics.table(world.database, "a")
    rows = rows_of(spark, kafka, world.registry, topic)
    assert [(row["id"], row["op"], row["kind"], row["note"], row["remark"]) for row in rows.collect()] == [
        (1, "c", "y", None, None),
        (2, "c", "x", "n", None),
        (3, "c", "z", "n", None),
        (3, "u", "z", None, "r"),
    ]
    assert {str(row["price"]) for row in rows.collect()} == {"12.30", "1234567890.12"}


def test_types_are_those_of_the_docs(spark: SparkSession) -> None:
    """The column *Spark* of docs/types.md."""
    script = load_script("docs/columns.py")
    for sql, avro in script.avro_types_shown():
        schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": ["null", avro]}]}
        frame = spark.createDataFrame([(b"\0",)], "value binary")
        read = frame.select(from_avro(col("value"), json.dumps(schema)).alias("row")).select("row.v")
        assert read.schema["v"].dataType.simpleString() == script.spark_type(avro), sql
