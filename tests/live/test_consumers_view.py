"""The transactionally consistent views of docs/examples, while sessions transfer between tables."""

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, Self

import pymysql
import pytest
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from millrace.local import MariaDB, Registry
from millrace.local.artifacts import fetch
from millrace.local.java import find_java
from tests.service_process import ServiceProcess, started, wait_for
from tests.shared import PROJECT
from tests.spark_session import SPARK, spark

from .rows_world import RowsWorld

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, *SPARK]

TABLES = ("accounts", "savings", "loans")
ACCOUNTS = 20
TOTAL = 1000 * ACCOUNTS * len(TABLES)
SESSIONS = 4
TRANSFERS = 250

State = dict[str, dict[int, int]]


def transfer(cursor: Any, rng: random.Random) -> None:
    """Move an amount between rows, or a row with its amount to another table or key, or change nothing."""
    source, target = rng.sample(TABLES, 2)
    one, other, amount = rng.randrange(ACCOUNTS), rng.randrange(ACCOUNTS), rng.randrange(100)
    kind = rng.randrange(5)
    if kind == 0:  # all rows of two tables: the counts differ, so the sums come from the server
        cursor.execute(f"SELECT COUNT(*) FROM {source} FOR UPDATE")
        ((count,),) = cursor.fetchall()
        cursor.execute(f"UPDATE {source} SET v = v - 1")
        cursor.execute(
            f"INSERT INTO {target} VALUES ({other}, {count}) ON DUPLICATE KEY UPDATE v = v + {count}"
        )
    elif kind == 1:
        cursor.execute(f"SELECT v FROM {source} WHERE id = {one} FOR UPDATE")
        for (value,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {source} WHERE id = {one}")
            cursor.execute(
                f"INSERT INTO {target} VALUES ({one}, {value}) ON DUPLICATE KEY UPDATE v = v + {value}"
            )
    elif kind == 2:
        with suppress(pymysql.err.IntegrityError):
            cursor.execute(f"UPDATE {source} SET id = {ACCOUNTS + other} WHERE id = {one}")
    else:
        for table, row, change in ((source, one, -amount), (target, other, amount)):
            cursor.execute(
                f"INSERT INTO {table} VALUES ({row}, {change}) ON DUPLICATE KEY UPDATE v = v + {change}"
            )
    if kind == 3:
        cursor.execute("ROLLBACK")


class Bank:
    """Sessions that write to a server, and one that looks, with the GTID at which it did."""

    def __init__(self, world: RowsWorld) -> None:
        self.world = world
        self.seen: dict[str, State] = {}
        self.last = ""
        self.errors: list[BaseException] = []
        values = ",".join(f"({number}, 1000)" for number in range(ACCOUNTS))
        tables = (f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT NOT NULL)" for table in TABLES)
        rows = (f"INSERT INTO {table} VALUES {values}" for table in TABLES)
        world.server.execute(f"USE {world.database}", *tables, "BEGIN", *rows, "COMMIT")
        self._writing = [
            threading.Thread(target=self._run, args=(self._write, seed)) for seed in range(SESSIONS)
        ]
        self._looking = threading.Thread(target=self._run, args=(self._look,))

    def __enter__(self) -> Self:
        for thread in (*self._writing, self._looking):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        assert not self.errors, self.errors

    def wait(self) -> None:
        """Wait until all is written and the last state was seen."""
        for thread in self._writing:
            thread.join()
        self._looking.join()

    @property
    def is_writing(self) -> bool:
        return self._looking.is_alive()

    def _run(self, what: Callable[..., None], *arguments: Any) -> None:
        try:
            what(*arguments)
        except BaseException as error:  # noqa: BLE001 - it is a thread's; the test fails with it
            self.errors.append(error)

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)
        with closing(self.world.server.connect(database=self.world.database)) as connection:
            cursor = connection.cursor()
            # A statement that waits for a row holds up FLUSH TABLES, which holds up the row's session.
            cursor.execute("SET innodb_lock_wait_timeout = 1")
            for _ in range(TRANSFERS):
                try:
                    cursor.execute("BEGIN")
                    transfer(cursor, rng)
                    cursor.execute("COMMIT")
                    time.sleep(rng.random() / 5)  # so that they write while Spark reads, several times
                except pymysql.err.OperationalError:  # a deadlock, or such a wait
                    cursor.execute("ROLLBACK")

    def _look(self) -> None:
        mariadb = isinstance(self.world.server, MariaDB)
        with closing(self.world.server.connect(database=self.world.database)) as connection:
            cursor = connection.cursor()
            is_last = False
            while not is_last:
                time.sleep(0.02)
                is_last = not any(thread.is_alive() for thread in self._writing)
                cursor.execute("FLUSH TABLES WITH READ LOCK")
                cursor.execute(f"SELECT @@GLOBAL.{'gtid_binlog_pos' if mariadb else 'gtid_executed'}")
                ((executed,),) = cursor.fetchall()
                state = {}
                for table in TABLES:
                    cursor.execute(f"SELECT id, v FROM {table}")
                    state[table] = dict(cursor.fetchall())
                cursor.execute("UNLOCK TABLES")
                self.last = executed if mariadb else re.sub(r":(?:1-)?(\d+)$", r":\1", executed)
                self.seen[self.last] = state


@pytest.fixture
def bank(world: RowsWorld) -> Iterator[Bank]:
    world.environment |= {"MILLRACE_TOPICS_TABLE_PARTITIONS": "3"}
    with world.service("reader"), world.service("decoder"):
        world.wait_for_start()
        with Bank(world) as made:
            yield made


def state_of(rows: dict[str, dict[bytes, dict[str, int]]]) -> State:
    return {
        table.rpartition(".")[2]: {after["id"]: after["v"] for after in of_table.values()}
        for table, of_table in rows.items()
    }


def recipe(name: str) -> str:
    """The text of a program."""
    return (PROJECT / "docs" / "examples" / name).read_text(encoding="utf-8")


def run_recipe(text: str, placeholders: dict[str, Any], names: dict[str, Any]) -> None:
    """Run a program with other values in it."""
    for placeholder, value in placeholders.items():
        assert text.count(placeholder) == 1, placeholder
        text = text.replace(placeholder, value if isinstance(value, str) else repr(value))
    exec(compile(text, "docs/examples", "exec"), names)


def show_states(
    bank: Bank, registry: Registry, look: Callable[[int], None] = lambda _: None
) -> dict[str, State]:
    """Run the recipe in Python until it has shown the last state; ``look`` is told how many it has shown."""
    world, states = bank.world, dict[str, State]()
    deadline = time.monotonic() + 600

    def shown(transaction: str, rows: Any) -> None:
        assert transaction not in states
        states[transaction] = state_of(rows)

    def is_wanted() -> bool:
        assert time.monotonic() < deadline, world.logs()
        look(len(states))
        return bank.is_writing or bank.last not in states

    topics = (world.topics.transactions, *(world.topics.table(world.database, table) for table in TABLES))
    placeholders = {
        "http://registry:8081": registry.url,
        "kafka:9092": world.settings.bootstrap_servers,
        '("shop.transactions", "shop.shop.accounts", "shop.shop.savings")': topics,
        '("shop.transactions", 0)': (topics[0], 0),
        '{"shop.accounts", "shop.savings"}': {f"{world.database}.{table}" for table in TABLES},
        "while True:": "while is_wanted():",
        "print(transaction, {table: len(rows) for table, rows in view.rows.items()})": (
            "shown(transaction, view.rows)"
        ),
    }
    names = {"__name__": "__main__", "is_wanted": is_wanted, "shown": shown}
    run_recipe(recipe("view.py"), placeholders, names)
    names["consumer"].close()  # type: ignore[attr-defined]
    names["client"].__exit__()  # type: ignore[attr-defined]
    bank.wait()
    assert {sum(sum(rows.values()) for rows in state.values()) for state in states.values()} == {TOTAL}
    assert len(states) > SESSIONS * TRANSFERS / 2
    assert {gtid: states.get(gtid) for gtid in bank.seen} == bank.seen
    assert len(bank.seen) > 3
    return states


def test_every_state_is_one_of_the_database(bank: Bank, registry: Registry) -> None:
    """Also where the row mapper is killed, between its commits: a transaction is then published in parts."""
    with ExitStack() as stack:

        def start() -> ServiceProcess:
            return stack.enter_context(bank.world.service("rowmapper"))

        running = [start()]
        bank.world.wait_for_row("loans")

        def look(shown: int) -> None:
            if shown > 40 * len(running) and len(running) < 4:
                running[-1].kill()
                running[-1].wait()
                running.append(start())

        show_states(bank, registry, look)
        assert len(running) > 1
        # Only then does it end as it is told to.
        wait_for(lambda: "mapping rows" in running[-1].output, running[-1])


def test_sparks_states_are_those_of_the_database(bank: Bank, registry: Registry, spark: SparkSession) -> None:
    world, found = bank.world, dict[str, State]()
    topics = {f"{world.database}.{table}": world.topics.table(world.database, table) for table in TABLES}
    placeholders = {
        "kafka:9092": world.settings.bootstrap_servers,
        '"shop.transactions"': world.topics.transactions.__repr__(),
        '{"shop.accounts": "shop.shop.accounts", "shop.savings": "shop.shop.savings"}': topics,
    }
    with SchemaRegistryClient({"url": registry.url}) as client, world.service("rowmapper"):

        def newest_of(topic: str) -> str:
            return str(client.get_latest_version(f"{topic}-value").schema.schema_str)

        def schema_of(schema_id: int) -> str:
            return str(client.get_schema(schema_id).schema_str)

        names: dict[str, Any] = {"spark": spark, "newest_of": newest_of, "schema_of": schema_of}
        for table in TABLES:
            world.wait_for_row(table)
        while bank.is_writing or bank.last not in found:
            run_recipe(recipe("view_in_spark.py"), placeholders, names)
            found[names["last"]] = {
                table.rpartition(".")[2]: {row["id"]: row["v"] for row in frame.collect()}
                for table, frame in names["tables"].items()
            }
        states = show_states(bank, registry)
    assert found == {transaction: states[transaction] for transaction in found}
    print(len(found), "states")


def test_kafka_streams_states_are_those_of_the_database(bank: Bank, registry: Registry, admin: Any) -> None:
    """Each record that the recipe writes is a transaction; applied one by one they give the states."""
    world, commits = bank.world, f"{bank.world.source}-commits"
    program = recipe("View.java")
    topics = [world.topics.transactions, *(world.topics.table(world.database, table) for table in TABLES)]
    for placeholder, value in {
        '"shop.accounts", "shop.savings"': ", ".join(f'"{world.database}.{table}"' for table in TABLES),
        '"shop.transactions", "shop.shop.accounts", "shop.shop.savings"': ", ".join(
            f'"{topic}"' for topic in topics
        ),
        '"application.id", "view"': f'"application.id", "{commits}"',
        "kafka:9092": world.settings.bootstrap_servers,
        "http://registry:8081": registry.url,
        "shop-commits": commits,
    }.items():
        assert program.count(placeholder) == 1, placeholder
        program = program.replace(placeholder, value)
    (world.folder / "View.java").write_text(program, encoding="utf-8")
    (made,) = admin.create_topics([NewTopic(commits, 1, 1)]).values()
    made.result()
    jars = ":".join(f"{fetch(name)}/*" for name in ("kafka-streams", "kafka", "connect-avro"))
    command = [find_java(17, 21).program, "-cp", jars, str(world.folder / "View.java")]
    with world.service("rowmapper"):
        for table in TABLES:
            world.wait_for_row(table)
        with started("View", {}, command=command, ends_with=143, log=world.folder / "streams.log") as process:
            states = show_states(bank, registry)
            last = bank.last.encode()
            messages = wait_for(
                lambda: [] if world.topic_reader.last(commits, last) is None else world.messages(commits),
                process,
                world.logs,
            )
    state: State = {table: {} for table in TABLES}
    found = {}
    for message in messages:
        for row in json.loads(message.value()):
            before, after = row["before"] or {}, row["after"] or {}
            rows = state[row["source"]["table"]]
            rows.pop(before.get("id"), None)
            rows.update({after["id"]: after["v"]} if after else {})
        found[message.key().decode()] = {table: dict(rows) for table, rows in state.items()}
    assert found == states
