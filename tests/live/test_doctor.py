"""`millrace doctor` on real servers, set up rightly and then wrongly on purpose, one thing at a time."""

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.contract import Topics
from millrace.doctor import access_checks, examine, kafka_checks, log_checks, table_checks
from millrace.doctor.kafka_checks import Cluster
from millrace.doctor.server import Server
from millrace.finding import CheckResult, Level, error
from millrace.kafka.client import connect
from millrace.kafka.inspect import look_at_cluster
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, MariaDB, MySQL
from millrace.local.processes import release_port, reserve_port
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.status import log_status
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from tests.service_process import server_environment, wait_for
from tests.shared import run_python

from .reader_world import settle

OUR_ID = 0x4D00BEEF
DOCTOR = "doctor_tests"


@contextmanager
def looking_at(server: MySQL | MariaDB, **fields: Any) -> Iterator[Server]:
    account = {name: fields.pop(name) for name in ("user", "password") if name in fields}
    address = replace(server.address, **account)
    with MysqlConnection(address) as connection:
        yield Server(connection, **{"server_id": OUR_ID, "replica_name": "millrace-shop", **fields})


def outcomes(server: MySQL | MariaDB, check: Any, **fields: Any) -> list[CheckResult]:
    with looking_at(server, **fields) as view:
        return list(check(view))


def only(server: MySQL | MariaDB, check: Any, **fields: Any) -> CheckResult:
    (outcome,) = outcomes(server, check, **fields)
    return outcome


@contextmanager
def set_global(server: MySQL | MariaDB, name: str, value: str) -> Iterator[None]:
    ((before,),) = server.query(f"SELECT @@GLOBAL.{name}")
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = {before!r}")


@pytest.fixture
def schema(database: MySQL | MariaDB) -> Iterator[MySQL | MariaDB]:
    """A server with a database for this test's own tables."""
    database.execute(f"CREATE DATABASE {DOCTOR}")
    yield database
    database.execute(f"DROP DATABASE {DOCTOR}")


# -- a server that is set up as our own are -----------------------------------------------------------


def test_a_server_as_it_should_be_has_no_errors(database):
    """It has the variables by which tests/unit/doctor says what may be wrong."""
    told = {}
    with looking_at(database) as server:
        for check in (*access_checks.CHECKS, *log_checks.CHECKS, *table_checks.CHECKS):
            for outcome in check(server):
                assert outcome.level is not Level.ERROR, (check.__name__, outcome)
                told[check.__name__] = outcome.text
    names = ("binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_checksum")
    assert [told[name] for name in names] == ["ROW", "FULL", "FULL", "CRC32"]
    assert told["server_id"] == f"{database.server_id}; ours is {OUR_ID}"
    assert "sync_binlog=" in told["durability"]
    assert told["max_allowed_packet"].endswith(" MiB")


# -- settings that are wrong ---------------------------------------------------------------------------


def test_the_server_waits_for_the_reader(database):
    with set_global(database, "net_write_timeout", "5"):
        outcome = only(database, log_checks.net_write_timeout)
    assert (outcome.level, outcome.text) == (Level.OK, "600 s for the reader, 5 s for others")


def test_gtid_mode(mysql):
    assert only(mysql, log_checks.gtids).level is Level.OK
    mysql.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        outcome = only(mysql, log_checks.gtids)
    finally:
        mysql.execute("SET GLOBAL gtid_mode = ON")
    assert (outcome.level, "gtid_mode is ON_PERMISSIVE" in outcome.text) == (Level.WARNING, True)


def test_gtid_strict_mode(mariadb):
    with set_global(mariadb, "gtid_strict_mode", "1"):
        assert only(mariadb, log_checks.gtids).level is Level.OK
    with set_global(mariadb, "gtid_strict_mode", "0"):
        assert "gtid_strict_mode is OFF" in only(mariadb, log_checks.gtids).text


def test_partial_json(mysql):
    assert outcomes(mysql, log_checks.binlog_row_value_options) == []
    with set_global(mysql, "binlog_row_value_options", "'PARTIAL_JSON'"):
        assert only(mysql, log_checks.binlog_row_value_options).level is Level.OK
        with set_global(mysql, "binlog_row_image", "'MINIMAL'"):
            assert only(mysql, log_checks.binlog_row_value_options).level is Level.WARNING


def test_logs_purged_by_size(mariadb):
    with set_global(mariadb, "max_binlog_total_size", str(1 << 40)):
        assert any("purged by size" in outcome.text for outcome in outcomes(mariadb, log_checks.retention))


def test_statements_for_rows(database):
    assert outcomes(database, log_checks.query_texts) == []
    name = "binlog_annotate_row_events" if isinstance(database, MariaDB) else "binlog_rows_query_log_events"
    with set_global(database, name, "0"):
        assert name in only(database, log_checks.query_texts, include_query=True).text


def test_a_session_that_logs_statements(mysql):
    with mysql.connect() as root, root.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        ((number,),) = cursor.fetchall()
        mine = f"root ({number}, STATEMENT)"
        assert not any(mine in outcome.items for outcome in outcomes(mysql, log_checks.sessions))
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        (outcome,) = outcomes(mysql, log_checks.sessions)
        assert outcome.level is Level.WARNING
        assert mine in outcome.items


def test_a_routine_that_turns_the_log_off(schema):
    schema.execute(f"CREATE PROCEDURE {DOCTOR}.quiet() SET SESSION sql_log_bin = 0")
    assert f"{DOCTOR}.quiet" in only(schema, log_checks.sessions).items


def test_semi_sync(mysql, mariadb):
    assert outcomes(mysql, log_checks.semi_sync) == []
    without = only(mysql, log_checks.semi_sync, semi_sync=True)
    assert (without.level, "no semi-synchronous replication" in without.text) == (Level.ERROR, True)
    off = only(mariadb, log_checks.semi_sync, semi_sync=True)
    assert (off.level, "no commit waits" in off.text) == (Level.ERROR, True)


# -- where the reader stands ---------------------------------------------------------------------------


def state_of(server: MySQL | MariaDB, **changes: Any) -> ReaderState:
    """The state of a reader that has read everything, some transactions among it."""
    server.execute(f"CREATE DATABASE {DOCTOR}", f"DROP DATABASE {DOCTOR}")
    settle(server)
    with looking_at(server) as view:
        status = log_status(view.connection)
        uuid_ = view.variables.get("server_uuid")
    identity = LogIdentity(1, server.version, 0, server_uuid=uuid_)
    now = int(time.time() * 1000)
    state = ReaderState(0, status.log_file, status.position, identity=identity, last_timestamp=now)
    return replace(state, gtid_set=status.gtid_set, **changes)


def test_a_reader_that_has_read_all(database):
    outcome = only(database, log_checks.reader_position, state=state_of(database))
    assert (outcome.level, outcome.text.endswith(" 0 bytes behind")) == (Level.OK, True)


def test_a_reader_that_has_not_run(database):
    log_file, position = log_status_of(database)
    for start in ("earliest", "latest", "time:2026-01-31T12:00:00Z", f"{log_file}:{position}"):
        outcome = only(database, log_checks.reader_position, start=start)
        assert outcome == CheckResult(Level.OK, f"the reader has not run yet, and begins at {start}")
    gone = only(database, log_checks.reader_position, start="mysql-bin.999999:4")
    assert (gone.level, gone.text.endswith("but there is no mysql-bin.999999")) == (Level.ERROR, True)
    beyond = only(database, log_checks.reader_position, start=f"{log_file}:{1 << 40}")
    assert (beyond.level, f"but {log_file} ends at " in beyond.text) == (Level.ERROR, True)
    assert only(database, log_checks.reader_position, start="gtid:").level is Level.OK


def test_a_reader_far_behind(database):
    state = state_of(database, position=4, last_timestamp=int((time.time() - 4000) * 1000))
    with set_global(database, "binlog_expire_logs_seconds", "3600"):
        outcome = only(database, log_checks.reader_position, state=state)
    assert outcome.level is Level.ERROR
    assert "logs are kept for 3600 s" in outcome.text


def test_a_log_that_is_gone(database):
    state = state_of(database, log_file="mysql-bin.999999")
    outcome = only(database, log_checks.reader_position, state=state)
    assert (outcome.level, "continues by GTID" in outcome.text) == (Level.WARNING, True)
    outcome = only(database, log_checks.reader_position, state=state, one_of_several=True)
    assert outcome.level is Level.OK
    outcome = only(database, log_checks.reader_position, state=replace(state, gtid_set=""))
    assert (outcome.level, "without GTIDs it is not known" in outcome.text) == (Level.ERROR, True)


def test_a_log_that_was_cut(database):
    outcome = only(database, log_checks.reader_position, state=state_of(database, position=1 << 40))
    assert "ends before" in outcome.text


def test_another_server(mysql):
    identity = LogIdentity(1, "8.0.15", 0, server_uuid=str(uuid.uuid4()))
    outcome = only(mysql, log_checks.reader_position, state=state_of(mysql, identity=identity))
    assert "of another server" in outcome.text


def test_another_mariadb(mariadb):
    identity = LogIdentity(4711, "11.4.5-MariaDB", 0, server_uid="another")
    ((held,),) = mariadb.query("SELECT @@GLOBAL.gtid_binlog_state")
    state = replace(state_of(mariadb, identity=identity), binlog_state=held)
    outcome = only(mariadb, log_checks.reader_position, state=state, one_of_several=True)
    assert (outcome.level, "order of its log was not compared" in outcome.text) == (Level.OK, True)
    unknown = ",".join(filter(None, (held, "0-4711-1")))
    outcome = only(mariadb, log_checks.reader_position, state=replace(state, binlog_state=unknown))
    assert outcome.level is Level.ERROR
    assert "its history does not hold 0-4711-1, which was read" in outcome.text
    with looking_at(mariadb, state=state) as server:
        # As a node of Galera has it.
        server.variables = {**server.variables, "wsrep_on": "ON", "wsrep_gtid_mode": "OFF"}
        (outcome,) = log_checks.reader_position(server)
        gtids = next(log_checks.gtids(server))
    assert {outcome.level, gtids.level} == {Level.ERROR}
    assert "numbers transactions by itself" in outcome.text
    assert "wsrep_gtid_mode=ON" in gtids.advice


def test_transactions_that_are_purged(mysql):
    read, purged = f"{uuid.uuid4()}:1-7", f"{uuid.uuid4()}:1-5"
    state = replace(state_of(mysql, log_file="mysql-bin.999999"), gtid_set=read)
    for fields in ({"state": state}, {"start": f"gtid:{read}"}):
        with looking_at(mysql, **fields) as server:
            # The shared server keeps its logs: it is asked what it would be if it had said this.
            server.variables = {**server.variables, "gtid_purged": purged}
            (outcome,) = log_checks.reader_position(server)
        assert outcome.level is Level.ERROR
        assert f"purged: {purged}" in outcome.text


# -- who we are ----------------------------------------------------------------------------------------


@pytest.fixture
def nobody(database: MySQL | MariaDB) -> Iterator[SimpleNamespace]:
    """A user that may log in, no more."""
    user = SimpleNamespace(user="nobody", password="secret-1", server=database)
    database.execute("CREATE USER 'nobody'@'%' IDENTIFIED BY 'secret-1'")
    yield user
    database.execute("DROP USER 'nobody'@'%'")


def test_privileges_that_are_missing(nobody):
    def look(check: Any) -> CheckResult:
        return only(nobody.server, check, user=nobody.user, password=nobody.password)

    outcome = look(access_checks.privileges)
    assert outcome.level is Level.ERROR
    assert outcome.advice == "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'nobody'@'%'"
    assert look(access_checks.replicas).level is Level.WARNING
    nobody.server.execute(outcome.advice)
    outcome = look(access_checks.privileges)
    assert (outcome.level, "no SELECT" in outcome.text) == (Level.WARNING, True)
    assert look(table_checks.tables).level is Level.WARNING
    nobody.server.execute(outcome.advice)
    assert look(access_checks.privileges).level is Level.OK


def test_privileges_of_a_role(mysql):
    mysql.execute(
        "CREATE ROLE r",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO r",
        "CREATE USER 'member'@'%' IDENTIFIED BY 'secret-1'",
        "GRANT r TO 'member'@'%'",
        "SET DEFAULT ROLE r TO 'member'@'%'",
    )
    try:
        outcome = only(mysql, access_checks.privileges, user="member", password="secret-1")
        assert outcome.level is Level.OK
    finally:
        mysql.execute("DROP USER 'member'@'%'", "DROP ROLE r")


def test_a_check_that_may_not_look_says_so(nobody):
    with looking_at(nobody.server, user=nobody.user, password=nobody.password) as server:
        found = list(examine._server("here", server))
    (line,) = [finding.outcome for finding in found if finding.check == "log_bin"]
    assert line.level is Level.UNCHECKED
    assert "GRANT REPLICATION CLIENT" in line.text.replace("BINLOG MONITOR", "REPLICATION CLIENT")


def test_a_replica_with_our_server_id(mysql):
    address = mysql.address
    status = log_status_of(mysql)
    for name, level in (("another", Level.ERROR), ("millrace-shop", Level.OK)):
        with MysqlConnection(address) as connection:
            Dump.at_position(connection, ReplicaIdentity(OUR_ID, str(uuid.uuid4()), name), *status)
            outcome = only(mysql, access_checks.replicas)
            assert outcome.level is level, outcome


def log_status_of(server: MySQL | MariaDB) -> tuple[str, int]:
    with looking_at(server) as view:
        status = log_status(view.connection)
    return status.log_file, status.position


# -- tables --------------------------------------------------------------------------------------------


def test_tables_that_have_less(schema):
    schema.execute(
        f"CREATE TABLE {DOCTOR}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {DOCTOR}.child (id INT PRIMARY KEY, parent INT, "
        f"FOREIGN KEY (parent) REFERENCES {DOCTOR}.parent (id) ON DELETE CASCADE)",
        f"CREATE TABLE {DOCTOR}.other (id INT PRIMARY KEY, parent INT, "
        f"FOREIGN KEY (parent) REFERENCES {DOCTOR}.parent (id))",
        f"CREATE TABLE {DOCTOR}.keyless (id INT)",
        f"CREATE TABLE {DOCTOR}.old (id INT PRIMARY KEY) ENGINE=MyISAM",
    )
    assert only(schema, table_checks.tables_without_key).items == (f"{DOCTOR}.keyless",)
    assert only(schema, table_checks.cascades).items == (f"{DOCTOR}.child",)
    assert only(schema, table_checks.engines).items == (f"{DOCTOR}.old (MyISAM)",)


def test_cascades_are_not_in_the_log(schema):
    """What the check of cascades says of these servers."""
    schema.execute(
        f"CREATE TABLE {DOCTOR}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {DOCTOR}.child (id INT PRIMARY KEY, parent INT, "
        f"FOREIGN KEY (parent) REFERENCES {DOCTOR}.parent (id) ON DELETE CASCADE)",
        f"INSERT INTO {DOCTOR}.parent VALUES (1)",
        f"INSERT INTO {DOCTOR}.child VALUES (1, 1), (2, 1)",
    )
    log_file, position = log_status_of(schema)
    schema.execute(f"DELETE FROM {DOCTOR}.parent")
    assert schema.query(f"SELECT COUNT(*) FROM {DOCTOR}.child") == [(0,)]
    events = schema.query(f"SHOW BINLOG EVENTS IN '{log_file}' FROM {position}")
    assert sum("Delete_rows" in kind for _, _, kind, *_ in events) == 1


# -- servers that are started wrongly ------------------------------------------------------------------


def test_a_server_without_a_log():
    options = {"log-bin": None, "skip-log-bin": True, "gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
    with MySQL(options=options) as server, looking_at(server) as view:
        found = list(examine._server("here", view))
    (line,) = [finding.outcome for finding in found if finding.check == "log_bin"]
    assert (line.level, line.text) == (Level.ERROR, "the binary log is off")
    assert "binlog_format" not in {finding.check for finding in found}


def test_a_server_that_leaves_things_out():
    options = {"binlog-ignore-db": "audit", "log-slave-updates": None, "skip-log-slave-updates": True}
    with MariaDB(options=options) as server:
        server.execute("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'")
        outcome = only(server, log_checks.binlog_filters)
        assert (outcome.level, "changes in audit are not logged" in outcome.text) == (Level.WARNING, True)
        server.execute(f"GRANT SLAVE MONITOR ON *.* TO '{server.user}'@'%'")
        outcome = only(server, log_checks.replicated_changes)
        assert (outcome.level, "this server is a replica" in outcome.text) == (Level.ERROR, True)


# -- Kafka ---------------------------------------------------------------------------------------------


def cluster_of(kafka: Kafka, source: str) -> Cluster:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    return Cluster(Topics(source), look_at_cluster(connect(settings), f"{source}."), TopicsSettings())


def by_level(cluster: Cluster, check: Any) -> dict[Level, CheckResult]:
    return {outcome.level: outcome for outcome in check(cluster)}


def test_a_cluster_before_anything_runs(kafka, source_name):
    cluster = cluster_of(kafka, source_name)
    assert Level.ERROR not in {o.level for check in kafka_checks.CHECKS for o in check(cluster)}
    (missing,) = kafka_checks.missing_topics(cluster)
    assert f"{source_name}.raw" in missing.items
    assert missing.text.endswith("will be created")
    (copies,) = kafka_checks.replication(cluster)
    assert (copies.level, copies.text.startswith("1 brokers")) == (Level.WARNING, True)
    assert by_level(cluster, kafka_checks.kafka_version).keys() == {Level.OK}
    assert by_level(cluster, kafka_checks.transactions).keys() == {Level.OK}


def alter(kafka: Kafka, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)

    def has_heard() -> bool:
        (told,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        found = {name: entry.value for name, entry in told.result(60).items()}
        return all(found[entry.name] == entry.value for entry in entries)

    wait_for(has_heard, None, f"{settings} of {topic}")


def test_topics_that_break_promises(kafka, source_name):
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    raw, events = f"{source_name}.raw", f"{source_name}.events"
    ensure_topics(connect(settings), TopicsSettings(), {raw: "raw", events: "events"})
    cluster = cluster_of(kafka, source_name)
    assert by_level(cluster, kafka_checks.promises)[Level.OK].text == "2 topics are correct"
    alter(kafka, raw, cleanup_policy="compact", retention_ms="3600000")
    alter(kafka, events, max_message_bytes="100000")
    cluster = cluster_of(kafka, source_name)
    broken = " ".join(outcome.text for outcome in kafka_checks.promises(cluster))
    assert f"{raw}: cleanup.policy is compact, must be delete" in broken
    assert f"{events}: max.message.bytes is 100000, must be 1048588 or more" in broken
    assert "retention.ms=3600000" in by_level(cluster, kafka_checks.retention)[Level.WARNING].text
    assert list(kafka_checks.rights(cluster)) == []


# -- the command ---------------------------------------------------------------------------------------


def run_doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "15", **environment}
    return run_python("-m", "millrace.cli", "doctor", *arguments, settings=settings)


def test_the_command(kafka, registry, mysql, source_name):
    done = run_doctor(
        MILLRACE_SOURCE=source_name,
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MILLRACE_REGISTRY_URL=registry.url,
        **server_environment(mysql),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # In a pipe: no colours, a line for each finding, and the last one counts.
    lines = done.stdout.splitlines()
    headings = [line for line in lines if line and not line.startswith(" ")]
    places = [f"server {mysql.host}:{mysql.port}", "Kafka", "schema registry"]
    assert headings[:-1] == ["settings", "Millrace here", *places]
    for line in ("binlog_format: ROW", "log_bin: ", "mode: READWRITE", "missing_topics: ", "encryption: "):
        assert any(found.startswith(f"  ok         {line}") for found in lines), line
    assert any(found.startswith("  warning    durability: ") for found in lines)
    assert lines[-1].startswith("no errors, ")
    assert "\x1b" not in done.stdout
    assert mysql.password not in done.stdout


def test_a_state_is_compared_with_the_server(kafka, mysql, source_name):
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    ensure_topics(connect(settings), TopicsSettings(), {f"{source_name}.state": "state"})
    state = state_of(mysql, log_file="mysql-bin.999999", identity=None)
    with TransactionalProducer(settings, source_name, "reader") as producer:
        producer.open()
        producer.commit(replace(state, gtid_set="").to_bytes())
    done = run_doctor(
        "--problems",
        "--json",
        MILLRACE_SOURCE=source_name,
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MILLRACE_REGISTRY_URL="nowhere",
        **server_environment(mysql),
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    errors = {found["check"]: found["text"] for found in report["findings"] if found["level"] == "error"}
    assert errors.keys() == {"settings", "reader_position"}
    assert report["errors"] == 2
    assert errors["settings"].startswith("MILLRACE_REGISTRY_URL is wrong")
    assert errors["reader_position"].startswith(
        "mysql-bin.999999, where the reader stands, is no longer there"
    )
    assert "ok" not in {found["level"] for found in report["findings"]}


def test_nothing_answers():
    port = reserve_port()
    try:
        done = run_doctor(
            MILLRACE_SOURCE="shop",
            MILLRACE_KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{port}",
            MILLRACE_KAFKA_CONNECT_TIMEOUT_S="1",
            MILLRACE_REGISTRY_URL=f"http://127.0.0.1:{port}",
            MILLRACE_MYSQL_HOST="127.0.0.1",
            MILLRACE_MYSQL_PORT=str(port),
        )
    finally:
        release_port(port)
    assert done.returncode == 1
    assert done.stderr == ""
    errors = [line for line in done.stdout.splitlines() if line.startswith("  error")]
    assert [line.split()[1] for line in errors] == ["connection:"] * 3
    advice = [line.strip() for line in done.stdout.splitlines() if "→" in line]
    assert [line for line in advice if "millrace.kernel.build" not in line] == [
        f"→ see what the line names; without a connection nothing at 127.0.0.1:{port} is checked",
        "→ no service can start without Kafka",
        "→ decoder and row mapper cannot start without it; the reader can",
    ]
    assert "settings: complete for all three services" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("3 errors")


def test_settings_that_are_wrong():
    done = run_doctor(MILLRACE_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == 1
    assert "error      settings: MILLRACE_SOURCE is missing" in done.stdout
    assert "             → see docs/configuration.md\n" in done.stdout


def test_files(tmp_path):
    patterns = str(tmp_path / "mysql-bin.*")
    assert examine._files(patterns) == error(
        "no file matches MILLRACE_FILES", "give paths, globs or a log's .index file"
    )
    (tmp_path / "mysql-bin.000001").write_bytes(b"\xfebin")
    assert examine._files(patterns).text == "1 can be read"
    outcome = examine._files(f"{patterns}, {tmp_path}")
    unreadable = f"{tmp_path}: Is a directory"
    assert outcome == error(f"cannot be read: {unreadable}", "let the reader's user read them", [unreadable])
