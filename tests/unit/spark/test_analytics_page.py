"""The page of analytics: what stands out is said first, and what logs contain stays text."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import Row

from spark_jobs.common.analytics_page import Results, lines, report
from tests.unit.spark.test_report import EVIL, check_self_contained

if TYPE_CHECKING:
    from spark_jobs.common.job import Job

LONG = "a_name_of_a_table_that_is_as_long_as_the_server_lets_it_be_64_ch"
HEBREW = "שלום"


class _Job:
    sources = ("shop",)
    facts = ("shop.raw, offsets 0 to 10",)
    notes = ("a note",)


def page(results: Results) -> str:
    return report(cast("Job", _Job()), results).html("footer")


def empty(**more: Any) -> Results:
    values: dict[str, Any] = dict.fromkeys(Results.__dataclass_fields__, ())
    numbers = "outside undated events bytes transactions rollbacks number_of_ddl"
    values |= dict.fromkeys(numbers.split(), 0)
    return Results(
        **values | {"step": 1, "first": None, "last": None, "first_time": None, "last_time": None} | more
    )


def rows(database: str, table: str, operation: str, number: int) -> Row:
    return Row(
        source="shop", database=database, table=table, operation=operation, events=1, rows=number,
        bytes=10 * number, uncounted=0,
    )  # fmt: skip


def looked(database: str, table: str, key: str | None, unchanged: int = 0) -> Row:
    return Row(
        source="shop", database=database, table=table, key=key, looked=100, unchanged=unchanged,
        image_bytes=10_000_000, needed_bytes=9_000_000,
    )  # fmt: skip


def transaction(**more: Any) -> Row:
    values: dict[str, Any] = {
        "source": "shop", "transaction": EVIL, "started": 1000, "seconds": 0.5, "rows": 7, "inserts": 7,
        "updates": 0, "deletes": 0, "bytes": 70, "tables": [f"{EVIL}.{HEBREW}"], "server_id": 1,
        "thread_id": 77, "user": EVIL, "first_key": EVIL,
    }  # fmt: skip
    return Row(**values | more)


def along(operation: str | None, number: int) -> Row:
    return Row(start=1000, operation=operation, rows=number, bytes=10 * number)


def incident() -> Results:
    """What is in a log that has everything, with names by somebody who means harm."""
    return empty(
        along=[along("insert", 5), along(None, 0)],
        first=1000,
        last=1000,
        first_time=0,
        last_time=2**32 - 1,
        outside=3,
        events=10,
        transactions=4,
        types=[
            Row(type="XID_EVENT", events=4, bytes=124),
            Row(type="WRITE_ROWS_EVENT", events=1, bytes=5000),
        ],
        rows=[
            rows(EVIL, LONG, "insert", 500),
            rows(HEBREW, "\u202eevil", "delete", 400),
            rows("db", "log", "update", 300),
        ],
        largest=[transaction(rows=2_000_000)],
        longest=[transaction(seconds=3600.0)],
        tables=[looked(EVIL, LONG, "id"), looked("db", "log", "", 40), looked(HEBREW, "\u202eevil", None)],
        columns=[
            Row(source="shop", database="db", table="log", ordinal=0, name=EVIL, changed=40),
            Row(source="shop", database="db", table="log", ordinal=0, name="other", changed=50),
            Row(source="shop", database="db", table="log", ordinal=1, name=EVIL, changed=20),
        ],
        hot_keys=[Row(source="shop", database="db", table="log", key=EVIL, changes=12)],
        statements=[
            Row(source="shop", database="db", statement=EVIL, executions=5, rows=9, bytes=90, seconds=0)
        ],
        number_of_ddl=300,
        ddl=[
            Row(
                source="shop", second=1000, verb="ALTER", object=EVIL, seconds=3, server_id=1,
                thread_id=None, user=None, statement=EVIL,
            )
        ],
        deletes=[Row(source="shop", minute=960, database=HEBREW, table="\u202eevil", rows=50_000, bytes=9)],
        lag=[Row(source="shop", server_id=3, transactions=9, p50=1.5, p99=40_000.0, most=50_000.0)],
        commit_groups=[Row(source="shop", transactions=9, groups=3, alone=1, largest=5)],
    )  # fmt: skip


def test_data_stays_data() -> None:
    markup = page(incident())
    found = check_self_contained(markup)
    assert found.elements.count("script") == 1
    words = "".join(found.words)
    assert words.count(EVIL) >= 12
    assert LONG in words
    assert HEBREW in words
    assert r"\u202eevil" in words
    assert "\u202e" not in markup


def test_what_stands_out_is_said_first() -> None:
    markup = page(incident())
    words = "".join(check_self_contained(markup).words)
    first = words[: words.index("Tables")]
    assert "Each column is 1 s; 50 bytes a second at the peak." in words
    assert words.index("WRITE_ROWS_EVENT") < words.index("XID_EVENT")
    assert f"{EVIL} 60 %, other 50 %" in words
    for text in (
        "4 transactions changed 1,200 rows in 3 tables",
        "Rows of 1 table without a primary key were updated or deleted, 300 of db.log",
        "13 % of updated rows did not change, most in db.log",
        "50,000 rows of",
        "The largest transaction changed 2,000,000 rows",
        "The longest transaction was open for 3,600.0 s",
        "One in a hundred transactions of server 3 was committed 40.0 s or more after",
        "3 events dated far away from all others, not in the chart",
    ):
        assert text in first, text
    assert '<p class="verdict bad">' in markup
    told = [line for line in lines(incident()) if line.startswith("  ! ")]
    assert len(told) == 6
    assert "was committed 40.0 s or more after" in told[0]  # what is bad first
    verdict = "Rows of 1 table without a primary key were updated or deleted"
    assert str(report(cast("Job", _Job()), incident()).result).startswith(f"('{verdict}")


def test_nothing_stands_out_where_nothing_does() -> None:
    quiet = replace(incident(), lag=(), outside=0, deletes=())
    quiet = replace(
        quiet, largest=[transaction()], longest=[transaction()], tables=[looked("db", "log", "id")]
    )
    assert [line for line in lines(quiet) if line.startswith("  ! ")] == []
    assert '<p class="verdict good">' in page(quiet)


def test_a_log_in_which_nothing_changed() -> None:
    markup = page(empty(events=7))
    check_self_contained(markup)
    assert "7 events, and no row was changed in them." in markup


def test_where_nothing_was_read_nothing_is_good() -> None:
    markup = page(empty())
    check_self_contained(markup)
    assert '<p class="verdict doubt">There was no event to read.</p>' in markup
    assert "<section>" not in markup


def test_of_several_sources_each_line_says_its_own() -> None:
    """A transaction, a statement and a DDL statement, as a table does."""
    words = page(incident())
    assert 'data-label="source"' not in words.split("Replication")[0]
    north, south = (rows(db, "orders", "insert", n) for db, n in (("a", 700), ("b", 300)))
    several = replace(
        incident(), rows=[Row(**{**south.asDict(), "source": "south"}), north],
        deletes=(), tables=(), outside=0,
    )  # fmt: skip
    markup = page(several)
    told = "".join(check_self_contained(markup).words)
    assert "changed 1,000 rows in 2 tables; south: b.orders has 30 % of them." in told
    assert "Each source is counted for itself" in told
    assert "The largest transaction of shop changed 2,000,000 rows" in told
    assert "The longest transaction of shop was open for 3,600.0 s" in told
    assert "One in a hundred transactions of server 3 was committed on shop 40.0 s or more after" in told
    assert markup.count('data-label="source"') == 4 + 2  # and lag, and groups of commits
