"""The job table_state on real servers: what it writes is what SELECT * gave at that moment."""

import json
import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from millrace.kafka.state import read_state
from millrace.local import MySQL
from millrace.mysql.connection import MysqlConnection
from millrace.runtime.errors import UserError
from millrace.verify.tables import _columns, _select, table_names
from spark_jobs.common.job import Job, TableJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from spark_jobs.common.tables import PLACE, parse_key, parse_moment, parse_tables
from spark_jobs.row_history import row_history
from spark_jobs.table_state import report, summary, table_state
from tests.service_process import wait_for
from tests.spark_session import SPARK, spark

from .rows_world import SERVICES
from .test_rowmapper import run
from .test_snapshot import take, wait_until_merged

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(1200)]

BEFORE = """
CREATE TABLE old (id INT PRIMARY KEY, note VARCHAR(40), n SMALLINT);
INSERT INTO old VALUES (1, 'from before', 1), (2, 'from before', 2), (3, 'from before', NULL);
CREATE TABLE bag (v VARCHAR(20), n DECIMAL(6,2));
INSERT INTO bag VALUES ('a', 1), ('a', 1), ('b', NULL);
"""

STEPS = (
    """
    CREATE TABLE kinds (id BIGINT UNSIGNED, tag VARCHAR(10) CHARACTER SET latin1, f FLOAT, d DOUBLE,
      b BIT(9), bin VARBINARY(20), at DATETIME(3), seen TIMESTAMP(6) NULL, t TIME(2), day DATE, y YEAR,
      e ENUM('a','ü'), s SET('x','y'), j JSON, g GEOMETRY, big DECIMAL(40,3), PRIMARY KEY (id, tag));
    INSERT INTO kinds VALUES (18446744073709551615, 'é', 1.1, 0.1, b'100000001', x'00ff',
      '2024-01-02 03:04:05.678', '2024-01-02 03:04:05.678901', '-12:34:56.78', '2024-02-29', 2024, 'ü', 'x,y',
      '{"a": [1, 2.5, "ü"]}', ST_GeomFromText('POINT(1 2)'), 1234567890123456789012345678901234567.125),
      (1, 'x', NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL)
    """,
    "UPDATE old SET note = 'changed', n = n + 1 WHERE id < 3; DELETE FROM bag WHERE v = 'a' LIMIT 1",
    "ALTER TABLE old ADD extra INT NOT NULL DEFAULT 7 AFTER id, ADD COLUMN more VARCHAR(9) DEFAULT 'it''s'",
    """
    BEGIN; INSERT INTO old (id, note) VALUES (4, 'four'); UPDATE kinds SET f = 2.5 WHERE id = 1;
    UPDATE bag SET n = 3.25 WHERE v = 'b'; COMMIT
    """,
    "ALTER TABLE old RENAME COLUMN note TO remark, MODIFY n BIGINT; ALTER TABLE bag MODIFY n DECIMAL(9,3)",
    "UPDATE old SET id = id + 100, remark = NULL WHERE id = 1; INSERT INTO bag VALUES ('a', 1), ('c', 2)",
    "ALTER TABLE kinds DROP COLUMN g; UPDATE kinds SET j = '[]', t = '838:59:59' WHERE id = 1",
    "DELETE FROM bag WHERE v = 'a'; UPDATE old SET extra = extra * 2 WHERE id > 1",
    "TRUNCATE TABLE kinds; INSERT INTO kinds (id, tag, y) VALUES (7, 'seven', 1999)",
    "RENAME TABLE bag TO sack; INSERT INTO sack VALUES ('d', 4); DELETE FROM old WHERE id = 2",
)


@pytest.fixture
def world(world):
    world.environment["MILLRACE_SNAPSHOT_TABLES"] = f"{world.database}.*"
    return world


def rows_now(world):
    """What SELECT * gives, by table."""
    with MysqlConnection(world.server.root_address) as connection:
        connection.query("SET SESSION time_zone = '+00:00', NAMES utf8mb4", doing="compare")
        found = {}
        for table in table_names(connection, world.database):
            columns = _columns(connection, world.database, table)
            names = [column.name for column in columns]
            rows = _select(connection, world.database, table, columns)
            found[table] = names, Counter(map(plain, rows))
        return found


def plain(row):
    """A row without the difference between numbers of several types."""
    return tuple(
        value if not isinstance(value, Decimal) else int(value) if value == int(value) else str(value)
        for value in row
    )


def moments_now(world):
    """Ways to name this moment: by time, by place in the log, by GTIDs."""
    time.sleep(1.1)  # MariaDB logs whole seconds
    now = datetime.now(UTC)
    if isinstance(world.server, MySQL):
        ((file, position, _, _, gtids),) = world.server.query("SHOW MASTER STATUS")
        gtids = gtids.replace("\n", "")
    else:
        ((file, position, *_),) = world.server.query("SHOW MASTER STATUS")
        ((gtids,),) = world.server.query("SELECT @@gtid_binlog_pos")
    time.sleep(1.1)
    return now.isoformat(), f"{file}:{position}", gtids


class Jobs:
    """Runs of the job in one session."""

    def __init__(self, spark, world, folder):
        self.spark, self.world, self.folder = spark, world, folder

    def job(self, name, folder):
        source, options = self.world.source, kafka_options(self.world.settings)
        settings = TableJobSettings(
            source=source,
            kafka=self.world.settings.model_dump(),
            registry={"url": self.world.environment["MILLRACE_REGISTRY_URL"]},
        )
        schemas = self.world.registry.subject_schemas(f"{source}.transactions-value")
        inputs = list(_inputs(self.spark, options, {source: schemas}, (None, None), "transactions"))
        return Job(name, str(folder), options, inputs, Steps(self.spark, name), self.spark, settings)

    def history(self, table, key):
        """Run row_history; give the operations."""
        return [row.op for row in self._history(table, key).changes.orderBy(*PLACE).collect()]

    def missing_of_row(self, table, key):
        """Run row_history; give what it says is missing."""
        return self._history(table, key).missing

    def _history(self, table, key):
        job = self.job("row_history", self.folder.with_name("history"))
        return row_history(job, self.spark, (self.world.database, table), parse_key(key))

    def state(self, tables, at):
        """Run it; give the rows by table as :func:`rows_now` does, and the summary."""
        job = self.job("table_state", self.folder)
        names = parse_tables(f"{self.world.database}.{table}" for table in tables)
        until, states = table_state(job, self.spark, names, parse_moment("--at", at))
        job.finish(summary(until, states), report(job, until, states))
        found = {}
        for state, table in zip(states, tables, strict=True):
            written = pq.read_table(self.folder / state.table / "rows")
            *names, _ = written.column_names
            columns = (written.column(name).to_pylist() for name in names)
            found[table] = names, Counter(map(plain, zip(*columns, strict=True)))
            assert found[table][1].total() == state.rows
        return found, json.loads((self.folder / "summary.json").read_text())


def wait_for_states(world):
    """Wait until each service has taken something: a snapshot asks where they stand."""

    def has_state(name):
        stored = read_state(world.settings, world.source, name)
        return stored is not None and stored.value is not None

    wait_for(lambda: all(map(has_state, SERVICES)), None, "the states")


@pytest.mark.parametrize(
    ("database", "every"),
    [
        ("mysql", 40),
        pytest.param("mysql", 1, marks=pytest.mark.slow),
        pytest.param("mariadb", 1, marks=pytest.mark.slow),
    ],
    indirect=["database"],
)
def test_it_is_what_select_gave(spark, world, tmp_path, every):
    """In the slow runs with values as Debezium has them, which the settings of the job do not say."""
    if every == 1:
        world.environment |= {"MILLRACE_ROWS_TEMPORAL": "debezium", "MILLRACE_ROWS_BIT": "debezium"}
    world.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
    run(world, BEFORE)
    expected = []
    with world.service("run"):
        world.wait_for_start()
        wait_for_states(world)
        jobs = Jobs(spark, world, tmp_path / "results")
        take(world, MILLRACE_SNAPSHOT_TABLES=f"{world.database}.old")
        wait_until_merged(world)
        tables = rows_now(world)
        found, told = jobs.state(list(tables), "latest")  # without any transaction
        assert found["old"] == tables["old"]
        of_old, of_bag = (told["tables"][f"{world.database}.{name}"]["doubts"] for name in ("old", "bag"))
        assert (of_old, len(of_bag), "there is no snapshot of it" in of_bag[0]) == ([], 1, True)
        assert jobs.history("old", "id=1") == ["r"]
        run(world, "UPDATE old SET n = 9 WHERE id = 3")
        _, early, _ = moments_now(world)
        before = rows_now(world)
        run(world, "UPDATE old SET n = 10 WHERE id = 3")
        take(world)
        wait_until_merged(world)
        for step in STEPS:
            run(world, step)
            expected.append((*moments_now(world), rows_now(world)))
        run(world, "INSERT INTO old (id) VALUES (1000); INSERT INTO sack VALUES ('last', NULL)")
        world.wait_for_row("sack", 2)
        for at, (when, place, gtids, tables) in enumerate(expected[::every]):
            for wanted in [(when, place, gtids)[at % 3]] if at else (when, place, gtids):
                found, told = jobs.state(list(tables), wanted)
                for table, (names, rows) in tables.items():
                    assert found[table][1] == rows, (at, wanted, table)
                    assert found[table][0] == names
                    about = told["tables"][f"{world.database}.{table}"]
                    assert not about["doubts"], about
                    assert not about["untold_values"], about
                    assert not about["unknown_rows"] + about["faulty_records"], about
        found, told = jobs.state(["old"], "latest")
        assert found["old"][1].total() == rows_now(world)["old"][1].total()

        with pytest.raises(UserError, match=r"are known from a snapshot up to .*: name a moment after it"):
            jobs.state(["bag"], early)
        found, told = jobs.state(["old"], early)
        assert found["old"] == before["old"]
        (doubt,) = told["tables"][f"{world.database}.old"]["doubts"]
        assert "of which it is no longer known whether it was complete" in doubt
        with pytest.raises(UserError, match=r"\.nothing did not exist at .*: check the name"):
            jobs.state(["nothing"], "latest")
        with pytest.raises(UserError, match="belongs to that moment: the log begins later"):
            jobs.state(["old"], "2001-01-01")
