"""Records that cannot be read: lines of their own, counted and listed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import DEAD_LETTERS, FAULT_SCHEMA, Fault, Faults
from spark_jobs.common.lines import read_lines
from spark_jobs.common.report import Report
from tests.spark_session import SPARK
from tests.unit.spark.test_report import EVIL, check_self_contained

pytestmark = SPARK

LAYOUT = arrow_schema("number int, text string, fault string")


def read(value: Any) -> tuple[Any, ...] | None:
    number = int(value)
    return None if number == 0 else (number, str(value), None)


def test_one_that_cannot_be_read_is_a_line() -> None:
    records = [("1",), ("0",), ("x",), ("2",)]
    found = read_lines(records, LAYOUT, read, lambda _, reason: (None, None, reason)).to_pylist()
    assert [line["number"] for line in found] == [1, None, 2]
    assert found[1]["fault"] == "ValueError: invalid literal for int() with base 10: 'x'"


@pytest.mark.parametrize("value", [str(1 << 40), "٣\udcff"])
def test_what_the_columns_cannot_hold_is_a_fault_of_its_record(value: str) -> None:
    def as_it_is(text: str) -> tuple[Any, ...]:
        return int(text) if text.isascii() else 0, text, None

    records = [("1",), (value,), ("2",)]
    found = read_lines(records, LAYOUT, as_it_is, lambda _, reason: (None, None, reason)).to_pylist()
    assert [line["number"] for line in found] == [1, None, 2]
    assert found[1]["fault"].startswith(("ArrowInvalid: ", "UnicodeEncodeError: ", "OverflowError: "))


def test_the_reason_is_bounded_and_printable() -> None:
    def fail(_: str) -> None:
        raise ValueError("\x1b[2J\udcff\u202e" + "x" * 10_000)

    (line,) = read_lines([("1",)], LAYOUT, fail, lambda _, reason: (None, None, reason)).to_pylist()
    assert line["fault"].startswith(r"ValueError: \x1b[2J\xff\u202e")
    assert len(line["fault"]) == 300


def test_they_are_listed_at_the_end_and_announced_at_the_top() -> None:
    faults = Faults()
    faults.add(150, [Fault.of("shop.events", 0, 5_000 + n, EVIL.encode(), EVIL) for n in range(150)])
    faults.add(1, [Fault.of("shop.ddl", 2, 7, None, "it has no value")])
    page = Report("title", [])
    page.verdict("All is well.", "good")
    page.section("Figures")
    faults.show(page)
    markup = page.html("footer")
    text = " ".join(check_self_contained(markup).words)
    assert page.result == ("All is well.", "doubt")
    assert '<p class="verdict doubt">All is well.</p>' in markup
    assert "<code></code>" not in markup  # a key that is not there
    assert text.index("All is well.") < text.index("151 records could not be read") < text.index("Figures")
    assert "The first 100 are listed; for the others see the table deadletter." in text
    assert "5,098" in text
    assert "5,099" not in text
    told = faults.summary()
    assert told["number"] == 151
    assert told["first"][0] == {
        "topic": "shop.ddl", "partition": 2, "offset": 7, "key": "", "reason": "it has no value",
    }  # fmt: skip
    assert len(told["first"]) == 100


def test_without_any_the_page_says_nothing() -> None:
    page = Report("title", [])
    before = page.html("footer")
    Faults().show(page)
    assert page.html("footer") == before


def test_those_of_a_topic_are_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    def lines(*topics: str) -> Any:
        layout = arrow_schema(FAULT_SCHEMA)
        rows = [
            (topic, 0, at, b"\xff", None, "why" if at % 2 else None) for topic in topics for at in range(5)
        ]
        columns = zip(*rows, strict=True)
        made = [pa.array(column, part.type) for column, part in zip(columns, layout, strict=True)]
        return spark.createDataFrame(pa.table(made, schema=layout))

    faults = Faults()
    faults.take(str(tmp_path), lines("a"))
    faults.take(str(tmp_path), lines("a", "b"))
    assert faults.number == 4
    assert [(one.topic, one.offset, one.key) for one in faults.first] == [
        ("a", 1, r"\xff"), ("a", 3, r"\xff"), ("b", 1, r"\xff"), ("b", 3, r"\xff"),
    ]  # fmt: skip
    assert spark.read.parquet(str(tmp_path / DEAD_LETTERS)).count() == 4
