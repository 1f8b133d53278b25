"""The job flashback on real servers: its SQL, run there, gives the tables of before, across DDL."""

import json

import pytest

from millrace.local import MySQL
from millrace.runtime.errors import UserError
from spark_jobs.common.job import Job, TableJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from spark_jobs.common.tables import parse_tables
from spark_jobs.flashback import choose, flashback, report, shortfall, summary
from tests.spark_session import SPARK, spark

from .rows_world import MARIADB_IS_SLOW, without_column_names
from .test_binlog_sql import _load
from .test_rowmapper import run
from .test_table_state import Jobs, moments_now, rows_now

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(1200)]

BEFORE = r"""
CREATE TABLE kinds (id BIGINT UNSIGNED, tag VARCHAR(10) CHARACTER SET latin1, f FLOAT, d DOUBLE, b BIT(9),
  bin VARBINARY(20), at DATETIME(3), seen TIMESTAMP(6) NULL ON UPDATE CURRENT_TIMESTAMP(6), t TIME(2),
  day DATE, y YEAR, e ENUM('a','ü'), s SET('x','y'), j JSON, g GEOMETRY, big DECIMAL(40,3),
  twice INT AS (y * 2), PRIMARY KEY (id, tag));
CREATE TABLE bag (v VARCHAR(20) CHARACTER SET latin1, f FLOAT, j JSON, b BIT(3), t TIME, g GEOMETRY);
CREATE TABLE plain (id INT PRIMARY KEY, gone VARCHAR(9), note TEXT CHARACTER SET utf8mb4, n SMALLINT);
CREATE TABLE emptied (id INT PRIMARY KEY);
CREATE TABLE prepared (id INT PRIMARY KEY);
CREATE TABLE dropped (id INT PRIMARY KEY);
CREATE TABLE unseen (id INT AUTO_INCREMENT INVISIBLE PRIMARY KEY, v INT, w VARCHAR(9) INVISIBLE);
INSERT INTO unseen (v, w) VALUES (1, 'one'), (2, 'two'), (3, 'three');
CREATE TABLE grown (id INT PRIMARY KEY);
INSERT INTO grown VALUES (1), (2);
SET SESSION sql_mode = '';
CREATE TABLE members (id INT PRIMARY KEY, e ENUM('a','b') NOT NULL, n INT);
INSERT INTO members VALUES (1, 'x', 1), (2, 'x', 2), (3, 'a', 3);
INSERT INTO kinds (id, tag, f, d, b, bin, at, seen, t, day, y, e, s, j, g, big) VALUES
  (18446744073709551615, 'é', 1.1, 0.1, b'100000001', x'00ff5c27', '2024-01-02 03:04:05.678',
  '2024-01-02 03:04:05.678901', '-12:34:56.78', '2024-02-29', 2024, 'ü', 'x,y', '{"a": [1, 2.5, "ü\\n"]}',
  ST_GeomFromText('POINT(1 2)'), 1234567890123456789012345678901234567.125),
  (1, 'it''s', -0.0, 1e300, NULL, '', '0000-00-00', NULL, '838:59:59', '0000-00-00', 0, NULL, '', NULL,
  NULL, -0.5);
INSERT INTO bag VALUES ('é', 1.1, '{"k": 1}', 5, '10:00', ST_GeomFromText('POINT(1 2)')),
  ('É', 1.1, '{"k": 1}', 5, '10:00', ST_GeomFromText('POINT(1 2)')), (NULL, NULL, NULL, NULL, NULL, NULL),
  ('twice', 2, NULL, 0, NULL, NULL), ('twice', 2, NULL, 0, NULL, NULL);
INSERT INTO plain VALUES (1, 'one', CONCAT('line\nbreak', CHAR(59), '\n-- \\ ''quoted'' "\0"'), 1),
  (2, 'two', '😀', 2),
  (3, 'x', '', 3);
INSERT INTO emptied VALUES (1), (2)
"""

DAMAGE = """
SET SESSION sql_mode = '';
UPDATE kinds SET f = 3.3, d = 0, bin = 'x', t = '00:00:01', e = 'a', j = '[]', big = 0, y = 1999 WHERE id > 1;
DELETE FROM kinds WHERE id = 1;
BEGIN; DELETE FROM bag WHERE v = CONVERT('É' USING latin1) COLLATE latin1_bin;
UPDATE bag SET f = 9.9 WHERE v IS NULL;
DELETE FROM bag WHERE v = 'twice' LIMIT 1; INSERT INTO bag (v) VALUES ('new'); COMMIT;
DELETE FROM emptied WHERE id = 1;
DROP TABLE dropped;
DELETE FROM unseen WHERE v = 2; UPDATE unseen SET w = 'changed' WHERE v = 1;
DELETE FROM grown WHERE id = 2; ALTER TABLE grown ADD n INT NOT NULL, ADD e ENUM('z','y') NOT NULL;
DELETE FROM members WHERE id = 1; UPDATE members SET n = 20 WHERE id = 2; DELETE FROM members WHERE id = 3;
UPDATE plain SET id = id + 10, note = 'changed' WHERE id = 1;
ALTER TABLE plain DROP COLUMN gone, ADD COLUMN extra INT DEFAULT 5 FIRST, MODIFY n INT;
DELETE FROM plain WHERE id = 2;
ALTER TABLE plain RENAME COLUMN note TO remark;
UPDATE plain SET n = 70000 WHERE id = 3; INSERT INTO plain (id, remark) VALUES (4, 'four');
SET SESSION binlog_format = 'STATEMENT'; UPDATE plain SET n = n WHERE id = 99;
SET SESSION binlog_format = 'ROW';
TRUNCATE TABLE emptied; INSERT INTO emptied VALUES (7)
"""


def flash(spark, world, folder, *, tables=(), gtids=None, transactions=(), between=(None, None), keys=()):
    """Run the job; give its SQL and its summary."""
    source, options = world.source, kafka_options(world.settings)
    settings = TableJobSettings(
        source=source,
        kafka=world.settings.model_dump(),
        registry={"url": world.environment["MILLRACE_REGISTRY_URL"]},
    )
    schemas = world.registry.subject_schemas(f"{source}.transactions-value")
    inputs = list(_inputs(spark, options, {source: schemas}, (None, None), "transactions"))
    job = Job("flashback", str(folder), options, inputs, Steps(spark, "flashback"), spark, settings)
    chosen = choose(job, spark, gtids, transactions, between, keys)
    outcome = flashback(job, spark, parse_tables(f"{world.database}.{name}" for name in tables), chosen)
    outcome.write_sql(f"{job.folder}/flashback.sql")
    told = summary(outcome) | {"complete": shortfall(job, outcome) is None}
    job.finish(told, report(job, outcome, written=True))
    return (folder / "flashback.sql").read_bytes(), json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
def test_what_was_done_is_undone(spark, world, tmp_path):
    with world.service("run"):
        world.wait_for_start()
        # The MySQL of the tests has no INVISIBLE columns.
        run(world, BEFORE.replace(" INVISIBLE", "") if isinstance(world.server, MySQL) else BEFORE)
        with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
            for statement in (
                "XA START 'x'", "INSERT INTO prepared VALUES (1)", "XA END 'x'", "XA PREPARE 'x'",
            ):  # fmt: skip
                cursor.execute(statement)
        _, place, _ = moments_now(world)
        before = rows_now(world)
        run(world, f"XA COMMIT 'x'; {DAMAGE}")
        world.wait_for_row("emptied", 4)

        sql, told = flash(spark, world, tmp_path / "results", between=(place, None))
        tables = {name.partition(".")[2]: counts for name, counts in told["tables"].items()}
        assert tables == {
            "kinds": {"inserts": 0, "updates": 1, "deletes": 1, "not_undone": 0},
            "bag": {"inserts": 1, "updates": 1, "deletes": 2, "not_undone": 0},
            "plain": {"inserts": 2, "updates": 1, "deletes": 2, "not_undone": 0},
            "emptied": {"inserts": 1, "updates": 0, "deletes": 0, "not_undone": 1},
            "prepared": {"inserts": 1, "updates": 0, "deletes": 0, "not_undone": 0},
            "unseen": {"inserts": 0, "updates": 1, "deletes": 1, "not_undone": 0},
            "grown": {"inserts": 0, "updates": 0, "deletes": 1, "not_undone": 0},
            "members": {"inserts": 0, "updates": 1, "deletes": 1, "not_undone": 1},
        }
        emptied, no_member = sorted(reason["reason"] for reason in told["not_undone"])[::-1]
        assert emptied == "the table was emptied, or created, after the change"
        assert no_member.startswith("column e: it is no member of the ENUM")
        (lost,) = told["lost_columns"]
        assert (lost["column"], lost["rows"]) == ("gone", 1)
        drop, note = told["notes_of_tables"]
        assert f"{world.database}.dropped was dropped at " in drop
        assert note.startswith(f"{world.database}.plain: changed by 1 statements ")
        _load(world.server, sql)
        after = rows_now(world)
        assert after["kinds"] == before["kinds"]
        assert after["bag"] == before["bag"]
        assert after["prepared"] == before["prepared"]
        assert not after["emptied"][1]
        assert after["unseen"] == before["unseen"]
        assert after["grown"] == (["id", "n", "e"], {(1, 0, "z"): 1, (2, 0, "z"): 1})
        names, rows = before["members"]
        assert after["members"] == (names, {row: 1 for row in rows if row[0] != 1})
        # What ALTER dropped cannot return; what it added has its default.
        names, rows = before["plain"]
        assert (after["plain"][0], names) == (["extra", "id", "remark", "n"], ["id", "gone", "note", "n"])
        assert after["plain"][1] == {(5, one, note, n): 1 for one, _, note, n in rows}

        run(world, "UPDATE plain SET n = 1 WHERE id = 2; UPDATE plain SET n = n + 1; DELETE FROM plain")
        world.wait_for_row("plain", 20)
        first = world.rows("plain")[-7]["transaction"]["id"]
        sql, told = flash(spark, world, tmp_path / "results", tables=["plain"], transactions=[first])
        assert b"UPDATE" not in sql
        ((why,),) = ([each["reason"] for each in told["not_undone"]],)
        assert "was changed again by " in why
        _, told = flash(
            spark, world, tmp_path / "results", tables=["plain"], between=(place, None), keys=[{"id": "3"}]
        )
        (counts,) = told["tables"].values()
        assert counts["not_undone"] == 0
        _, told = flash(spark, world, tmp_path / "results", tables=["dropped"], between=("1h", None))
        assert told["notes_of_tables"] == [drop]
        with pytest.raises(UserError, match=r"\.nothing did not exist"):
            flash(spark, world, tmp_path / "results", tables=["nothing"], keys=[{"id": "3"}])


@MARIADB_IS_SLOW
def test_a_moment_is_that_of_commits_where_sessions_set_their_times(spark, world, tmp_path):
    """As the text of mysqlbinlog does. MariaDB logs when DDL ended, and no time of a commit."""
    earlier = "SET SESSION TIMESTAMP = UNIX_TIMESTAMP() - 3600"
    is_mysql = isinstance(world.server, MySQL)
    if is_mysql:
        earlier += ", SESSION original_commit_timestamp = 0"
    with world.service("run"):
        world.wait_for_start()
        run(world, "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
        when, _, _ = moments_now(world)
        before = rows_now(world)
        run(world, "INSERT INTO t VALUES (3)")
        run(world, f"{earlier}; ALTER TABLE t ADD more INT")
        jobs = Jobs(spark, world, tmp_path / "state")
        if is_mysql:
            run(world, f"{earlier}; DELETE FROM t WHERE id = 1")
        run(world, "INSERT INTO t VALUES (9, 9)")
        world.wait_for_row("t", 5 if is_mysql else 4)
        found, told = jobs.state(["t"], when)
        assert found["t"] == before["t"]
        assert told["tables"][f"{world.database}.t"]["doubts"] == []
        _, told = flash(spark, world, tmp_path / "undone", tables=["t"], between=(when, None))
        ((_, counts),) = told["tables"].items()
        assert counts == {"inserts": 2, "updates": 0, "deletes": int(is_mysql), "not_undone": 0}
        assert [bound["out_of_order"] for bound in told["bounds"]] == [None]

        if not is_mysql:
            run(world, f"{earlier}; DELETE FROM t WHERE id = 1")
            world.wait_for_row("t", 5)
            _, told = jobs.state(["t"], when)
            doubts = told["tables"][f"{world.database}.t"]["doubts"]
            assert any("Name a position or GTIDs instead of the time" in doubt for doubt in doubts)


@MARIADB_IS_SLOW
def test_what_waits_in_the_dead_letter_topic_is_missing(spark, world, tmp_path):
    """Under the table's later name too; a statement without rows is missing as well."""
    jobs, name = Jobs(spark, world, tmp_path / "state"), f"{world.database}.later"

    def reports():
        """The verdicts of the page, and what is listed, of each job on the table."""
        yield "table_state", jobs.state(["later"], "latest")[1]["tables"][name]["doubts"]
        yield "row_history", jobs.missing_of_row("later", "id=2")

    with without_column_names(world.server), world.service("run"):
        world.wait_for_start()
        run(world, "CREATE TABLE plain (id INT PRIMARY KEY, note VARCHAR(9), big INT)")
        run(
            world, "CREATE TABLE done (id INT PRIMARY KEY); INSERT INTO plain VALUES (1, 'a', 1), (2, 'b', 2)"
        )
        _, place, _ = moments_now(world)
        run(world, "SET sql_log_bin = 0; ALTER TABLE plain DROP COLUMN big")
        run(world, "UPDATE plain SET note = 'waits'", "DELETE FROM plain WHERE id = 1")
        _, waited, _ = moments_now(world)
        run(world, "RENAME TABLE plain TO later; INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        assert len(world.messages(world.topics.deadletter)) == 2

        for job, missing in reports():
            assert [text for text in missing if "2 dead letters" in text and ".plain" in text], (job, missing)
        for tables in ([], ["later"]):
            sql, told = flash(spark, world, tmp_path / "undone", tables=tables, between=(place, waited))
            assert any("2 dead letters" in note for note in told["notes_of_tables"]), tables
            assert told["complete"] is False
            assert b"UPDATE" not in sql
        _, told = flash(spark, world, tmp_path / "undone", tables=["done"], between=(place, None))
        assert (told["notes_of_tables"], told["complete"]) == ([], True)
