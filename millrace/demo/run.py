"""The course of the demo: servers, services, workload, reports, check."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pymysql

from millrace.avro.registry import SchemaRegistry
from millrace.contract import Topics
from millrace.demo.display import Display
from millrace.demo.pipeline import Endpoints, Services, demo_settings
from millrace.demo.workload import MARKER_TABLE, Workload
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.read import read_topic, source_topics
from millrace.local import LocalError, LocalStack
from millrace.local.processes import Process, WorkFolder
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.tables import Comparison, Records, compare_tables, table_names

_POLL_S: Final = 0.5
_STALL_S: Final = 120
_JOB_TIMEOUT_S: Final = 600
_SHORT_LIVED_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""So little data does not repay the optimising compiler, which takes half of a small machine."""
_NEEDED_VARIABLES: Final = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    database_server: MysqlAddress | None
    bootstrap_servers: str | None
    registry_url: str | None
    large_rows: int
    output: Path
    stay: bool


class Demo:
    """One run. As a context manager it leaves nothing running, whatever happens."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.display = Display()
        stamp = time.strftime("%Y%m%d_%H%M%S")
        self._own_server = options.database_server is not None
        own = self._own_server or options.bootstrap_servers is not None
        # On servers that stay, each run has topics and a database of its own.
        self.source = f"demo-{stamp}" if own else "demo"
        self.database = f"millrace_demo_{stamp}" if self._own_server else "shop"
        wanted = {
            "kafka": options.bootstrap_servers is None,
            "registry": options.registry_url is None,
            "database": not self._own_server,
        }
        parts = [name for name, here in wanted.items() if here]
        self._stack = LocalStack(parts=parts, say=self.display.say)
        self._folder = WorkFolder("demo")
        self._services: Services | None = None
        self._jobs: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._jobs:
            process.stop()
        if self._services is not None:
            self._services.kill()
        self._stack.kill()
        self._folder.remove()

    def run(self) -> bool:
        """Run the demo and return whether the row topics equal the tables."""
        # What cannot be is told before anything is started.
        brokers, registry = self.options.bootstrap_servers, self.options.registry_url
        demo_settings("here" if brokers is None else brokers, "http://here" if registry is None else registry)
        endpoints = self._start_servers()
        admin = connect(endpoints.kafka())
        with self._connect(endpoints) as connection, _server_in_words("the database server"):
            self._check_server(connection)
            self.display.say("starting reader, decoder and row mapper")
            self._services = Services(endpoints.environment(), self._folder.path)
            self._services.start()
            workload = self._run_workload(endpoints, admin, connection)
            self._stop_services()
            reports = self._start_job(endpoints, "analytics")
            comparisons = self._compare(endpoints, connection)
            self._finish_job(*reports)
            loops = self._finish_job(*self._start_job(endpoints, "loop_detection"))
            equal = are_equal(comparisons)
            self._tell(admin, workload, comparisons, loops)
            if self._own_server and not self.options.stay:
                connection.query(f"DROP DATABASE `{self.database}`", doing="drop the demo's database")
                self.display.plain(f"The database {self.database} has been dropped.")
        self.display.plain(f"row topics equal the tables: {'yes' if equal else 'NO'}")
        if self.options.stay:
            self._stay(endpoints)
        return equal

    def _start_servers(self) -> Endpoints:
        options, stack = self.options, self._stack
        if stack.components:
            names = ", ".join(f"{component.name} {component.version}" for component in stack.components)
            self.display.say(f"starting {names} on this machine")
            stack.start()
        server = stack.database
        return Endpoints(
            source=self.source,
            database=options.database_server or server.address,
            bootstrap_servers=options.bootstrap_servers or stack.kafka.bootstrap_servers,
            registry_url=options.registry_url or stack.registry.url,
            start="latest" if self._own_server else "earliest",
        )

    def _connect(self, endpoints: Endpoints) -> MysqlConnection:
        """Connect with an account that may create tables."""
        return MysqlConnection(endpoints.database if self._own_server else self._stack.database.root_address)

    def _check_server(self, connection: MysqlConnection) -> None:
        """Make sure that the server's log holds all that the check needs."""
        for name, needed in _NEEDED_VARIABLES.items():
            value = connection.variable(name)
            if value != needed:
                how = "in its configuration" if name == "log_bin" else f"with SET GLOBAL {name} = {needed}"
                raise UserError(
                    f"the demo needs {name} = {needed}, on this server it is {value or 'not known to it'}; "
                    f"change it {how}",
                    ExitCode.SOURCE,
                )

    def _run_workload(
        self, endpoints: Endpoints, admin: AdminClient, connection: MysqlConnection
    ) -> Workload:
        """Run the workload, show how the topics follow, and return it once all has arrived."""
        display = self.display
        with display:
            workload = Workload(
                connection.client, self.database, large_rows=self.options.large_rows, say=display.say
            )
            running = _Running(workload.run)
            figures: dict[str, int] = {}
            moved = time.monotonic()
            while True:
                arrived = running.finished() and self._marker_arrived(endpoints, admin)
                assert self._services is not None
                before = figures
                figures = {**before, "rows changed": workload.changed, **self._services.written()}
                display.figures(figures, final=arrived)
                if arrived:
                    break
                self._services.check()
                self._stack.check()
                if figures != before:
                    moved = time.monotonic()
                elif time.monotonic() - moved > _STALL_S:
                    tails = "\n".join(self._services.log_tails())
                    raise LocalError(f"the pipeline has made no progress for {_STALL_S} s:\n{tails}")
                time.sleep(_POLL_S)
        display.say("every change has arrived in the row topics")
        return workload

    def _marker_arrived(self, endpoints: Endpoints, admin: AdminClient) -> bool:
        """Whether the last row of the workload is in its topic, and with it all before."""
        topic = Topics(self.source).table(self.database, MARKER_TABLE)
        if topic not in source_topics(admin, self.source):
            return False
        with SchemaRegistry(endpoints.registry()) as registry:
            records = Records(registry)
            values = [message.value() for message in read_topic(endpoints.kafka(), topic)]
            envelopes = [records.read(value) for value in values if isinstance(value, bytes)]
        return any((envelope["after"] or {}).get("state") == "finished" for envelope in envelopes)

    def _stop_services(self) -> None:
        assert self._services is not None
        codes = self._services.stop()
        if any(codes.values()):
            ended = ", ".join(f"{name} with {code}" for name, code in codes.items() if code)
            raise LocalError(f"asked to stop, these ended with an error: {ended}")
        self.display.say("reader, decoder and row mapper have stopped in order")

    def _compare(self, endpoints: Endpoints, connection: MysqlConnection) -> list[Comparison]:
        comparisons = []
        with SchemaRegistry(endpoints.registry()) as registry:
            for comparison in compare_tables(
                connection,
                endpoints.kafka(),
                registry,
                source=self.source,
                database=self.database,
                tables=table_names(connection, self.database),
            ):
                comparisons.append(comparison)
                self._tell_comparison(comparison)
        return comparisons

    def _tell_comparison(self, comparison: Comparison) -> None:
        name = f"{comparison.database}.{comparison.table}"
        how = "by key" if comparison.keyed else "as a multiset, it has no key"
        outcome = "equal" if comparison.equal else "DIFFERENT"
        folded = f"{comparison.records:,} records folded {how}, {comparison.rows:,} rows"
        self.display.say(f"{name}: {folded}: {outcome}")
        if not comparison.equal:
            self.display.say(f"  {comparison.missing:,} rows missing, {comparison.surplus:,} too many")
        for example in comparison.examples:
            self.display.say(f"  {example}")

    def _start_job(self, endpoints: Endpoints, name: str) -> tuple[str, Process]:
        self.display.say(f"running the Spark job {name}")
        output = self.options.output / name
        command = [sys.executable, "-P", "-m", "millrace.cli", "job", name, "--source", self.source]
        environment = endpoints.environment()
        java_options = [environment.get("JAVA_TOOL_OPTIONS", ""), _SHORT_LIVED_JAVA]
        environment["JAVA_TOOL_OPTIONS"] = " ".join(filter(None, java_options))
        process = Process(
            name,
            [*command, "--output", output],
            log=self._folder.path / f"{name}.log",
            env=environment,
            tree=True,
        )
        self._jobs.append(process)
        return name, process

    def _finish_job(self, name: str, process: Process) -> dict[str, Any]:
        """Wait for a job and return its summary."""
        try:
            code = process.wait(_JOB_TIMEOUT_S)
        except TimeoutError as error:
            raise LocalError(f"the Spark job {error}:\n{process.log_tail(40)}") from error
        if code != 0:
            raise LocalError(f"the Spark job {name} ended with exit code {code}:\n{process.log_tail(40)}")
        summary: dict[str, Any] = json.loads((self.options.output / name / "summary.json").read_text())
        return summary

    def _tell(
        self,
        admin: AdminClient,
        workload: Workload,
        comparisons: list[Comparison],
        loops: dict[str, Any],
    ) -> None:
        topics, output = Topics(self.source), self.options.output
        records = sum(comparison.records for comparison in comparisons)
        rows = sum(comparison.rows for comparison in comparisons)
        tables, large, undone = len(comparisons), self.options.large_rows, workload.rolled_back
        lines = [
            "",
            "What happened:",
            f"  {workload.changed:,} rows of {tables} tables were changed, {large:,} in one transaction;",
            f"  a column was added midway, and {undone:,} further changes were rolled back.",
            f"  The reader copied the binary log to {topics.raw}, byte for byte.",
            f"  The decoder made {topics.events} of it: a typed Avro record per event.",
            f"  The row mapper made {records:,} records of rows before and after in {tables} topics.",
            f"  Folded, they were compared with the {rows:,} rows of SELECT *, value by value.",
            f"  Loop detection has {loops['incidents_total']} incidents; without a loop there should be 0.",
            f"  Its verdict: {loops['verdict']}.",
            f"Report on what was written:  {output / 'analytics' / 'report.html'}",
            f"Report on loops:             {output / 'loop_detection' / 'report.html'}",
        ]
        if not self.options.stay:
            lines.append("To look at topics and change rows, keep the servers running: make demo STAY=1")
        if self.options.bootstrap_servers:
            kept = "" if self.options.registry_url else ", but their schemas end here: see REGISTRY=…"
            count = len(source_topics(admin, self.source))
            lines.append(f"Your Kafka keeps the {count} topics {self.source}.*{kept}")
        self.display.plain("\n".join(lines))

    def _stay(self, endpoints: Endpoints) -> None:
        """Start the services again, print what to try, and wait for Ctrl-C."""
        assert self._services is not None
        self.display.say("starting reader, decoder and row mapper again")
        self._services.start()
        environment = endpoints.environment()
        names = ("MILLRACE_SOURCE", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_REGISTRY_URL")
        program = Path(sys.executable).with_name("millrace")
        row = (
            f"INSERT INTO {self.database}.orders (customer_id, state, placed, total) "  # noqa: S608 - for the user
            "VALUES (1, 'new', NOW(), 9.99)"
        )
        lines = [
            "",
            "Servers and services run until Ctrl-C. To try in another terminal:",
            *(f"  export {name}={environment[name]}" for name in names),
            f"  {program} status",
            f"  {program} topic {Topics(self.source).table(self.database, 'orders')} --follow",
            "and in one more, a row that arrives there:",
            *(f"  {line}" for line in self._insert_commands(row)),
        ]
        self.display.plain("\n".join(lines))
        while True:
            time.sleep(1)
            self._stack.check()
            self._services.check()

    def _insert_commands(self, statement: str) -> list[str]:
        """Return commands that execute a statement; for the user's server, the statement itself."""
        if self._own_server:
            return [f"{statement};"]
        socket = self._stack.database.root_address.unix_socket
        connect = f"pymysql.connect(unix_socket='{socket}', user='root', autocommit=True)"
        return [
            f'{sys.executable} -c "import pymysql; {connect}.cursor().execute(\\"{statement}\\")"',
            f'mysql --user=root --socket={socket} --execute="{statement}"   # the same, with the client',
        ]


def are_equal(comparisons: Sequence[Comparison]) -> bool:
    """Whether tables were compared, and all are equal to their topics."""
    return bool(comparisons) and all(comparison.equal for comparison in comparisons)


class _Running:
    """A function in a thread of its own, which ends with the process."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), name="workload", daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again by finished()
            self._error = error

    def finished(self) -> bool:
        """Whether it has ended; raises what it raised, an error of the server's in words."""
        if self._thread.is_alive():
            return False
        with _server_in_words("the workload: the server"):
            if self._error is not None:
                raise self._error
        return True


@contextmanager
def _server_in_words(who: str) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise UserError(f"{who} says {error.args[-1]}", ExitCode.SOURCE) from error
