"""Read two tables as they were after a transaction: see docs/consumers.md.

Needs ``spark``, a session; ``schema_of``, which returns the schema of an id; ``newest_of``, which returns
the newest schema of a topic's values.
"""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, expr, lit, row_number


def records(topic):
    """Return the records of a topic, by the newest schema."""
    found = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", "kafka:9092")
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("subscribe", topic)
        .load()
        .where("value IS NOT NULL")
        .withColumn("schema", expr("cast(conv(hex(substring(value, 2, 4)), 16, 10) AS int)"))
        .withColumn("redriven", expr("coalesce(exists(headers, one -> one.key = 'redriven'), false)"))
    )
    parts = []
    for (schema_id,) in found.select("schema").distinct().collect():
        options = {"avroSchema": newest_of(topic)}
        row = from_avro(expr("substring(value, 6)"), schema_of(schema_id), options).alias("row")
        part = found.where(col("schema") == schema_id)
        parts.append(part.select("offset", expr("substring(key, 6) AS key"), "redriven", row))
    return reduce(DataFrame.union, parts)


def view(transactions, topics):
    """Return the id of a transaction, and frames of the tables as they were after it; `topics` by table."""
    changes = {
        table: records(topic).selectExpr(
            "key", "offset AS place", "row.op", "row.after", "row.transaction.id", "redriven"
        )
        for table, topic in topics.items()
    }
    ends = records(transactions).where("row.status = 'END'").select("offset", "row.id", "redriven", "row")
    wanted = ends.selectExpr("offset", "id", "redriven", "inline(row.data_collections)")
    counts = [
        rows.groupBy("id", "redriven").count().withColumn("data_collection", lit(table))
        for table, rows in changes.items()
    ]
    found = reduce(DataFrame.union, counts)
    # Both from one read: what is written later has ENDs whose rows this view may not have.
    stop = (
        wanted.where(col("data_collection").isin(list(topics)))
        .join(found, ["id", "redriven", "data_collection"], "left")
        .selectExpr(
            "min(if(coalesce(count, 0) < event_count, offset, NULL)) AS incomplete", "max(offset) AS newest"
        )
        .selectExpr("coalesce(incomplete, newest + 1) AS stop")
        .first()["stop"]
    )
    complete = ends.drop("row").where(col("offset") < stop)
    last = complete.where("NOT redriven").orderBy(col("offset").desc()).first()["id"]
    by_key = Window.partitionBy("key").orderBy(col("place").desc())
    tables = {}
    for table, rows in changes.items():
        known = rows.where("op != 'r'").join(complete, ["id", "redriven"], "left_semi")
        known = known.unionByName(rows.where("op = 'r'"))
        newest = known.withColumn("number", row_number().over(by_key)).where(
            "number = 1 AND after IS NOT NULL"
        )
        tables[table] = newest.select("after.*")
    return last, tables


last, tables = view(
    "shop.transactions", {"shop.accounts": "shop.shop.accounts", "shop.savings": "shop.shop.savings"}
)
