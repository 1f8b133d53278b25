"""DuckDB reads what the job reprocess has written: the recipe of docs/consumers.md."""

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from millrace.local import Kafka, MySQL, Registry
from tests.shared import PROJECT
from tests.spark_session import SPARK, run_job, spark

from .rows_world import RowsWorld
from .test_rowmapper import run

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(1200)]

CHANGES = """
CREATE TABLE orders (id INT PRIMARY KEY, day DATE, price DECIMAL(8,2), kind ENUM('x','y'));
INSERT INTO orders VALUES (1, '2024-02-29', 12.30, 'y'), (2, '2024-03-01', 1, 'x'), (3, NULL, NULL, NULL);
ALTER TABLE orders ADD COLUMN at DATETIME(6), MODIFY price DECIMAL(10,2);
UPDATE orders SET at = '2024-02-29 10:11:12.123456' WHERE id = 1;
DELETE FROM orders WHERE id = 2;
UPDATE orders SET id = 30, price = 1234567.89 WHERE id = 3;
INSERT INTO orders VALUES (2, '2024-04-01', 7, 'y', NULL);
"""


def recipe() -> str:
    """The query of the documentation."""
    text = (PROJECT / "docs" / "consumers.md").read_text()
    found = re.search(r"## DuckDB.*?```sql\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_newest_change_of_each_key_is_the_table(
    spark: SparkSession, kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> None:
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        with world.service("run"):
            world.wait_for_start()
            run(world, CHANGES, "CREATE TABLE done (id INT PRIMARY KEY)", "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
        output = tmp_path / "reports"
        where = "--source", world.source, "--output", str(output)
        assert run_job(spark, "reprocess", *where, settings=world.environment).returncode == 0
        folder = f"{output}/latest/rows/{world.database}.orders"
        assert recipe().count("reports/shop/reprocess/latest/rows/shop.orders") == 1
        query = recipe().replace("reports/shop/reprocess/latest/rows/shop.orders", folder)
        found = duckdb.connect().execute(query)
        names = [column[0] for column in found.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        at = dt.datetime(2024, 2, 29, 10, 11, 12, 123456)  # noqa: DTZ001 - a DATETIME has no zone
        assert sorted(rows, key=lambda row: row["id"]) == [
            {"id": 1, "day": dt.date(2024, 2, 29), "price": Decimal("12.30"), "kind": "y", "at": at},
            {"id": 2, "day": dt.date(2024, 4, 1), "price": Decimal(7), "kind": "y", "at": None},
            {"id": 30, "day": None, "price": Decimal("1234567.89"), "kind": None, "at": None},
        ]
