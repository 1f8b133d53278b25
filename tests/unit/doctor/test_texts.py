"""What the checks say, word for word; tests/live/test_doctor.py has them look at real servers."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.contract import Topics
from millrace.doctor import access_checks, kafka_checks, log_checks, registry_checks, table_checks
from millrace.doctor.examine import Sides, findings
from millrace.doctor.finding import Outcome, error, ok, warning
from millrace.doctor.kafka_checks import Cluster
from millrace.doctor.server import Server, Table
from millrace.installation import install_command
from millrace.kafka.inspect import ClusterView, TopicView
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.status import LogFile
from millrace.runtime.settings import TopicsSettings
from tests.mysql_stub import StubConnection

SAME = ", and the same in the configuration"
NOW_MS = int(time.time() * 1000)
ALTERED = (
    "the names of columns come from the definitions that the reader reads and the DDL after them, and a "
    "table whose DDL is not understood is quarantined"
)


def test_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "the reference codec does the work, several times as slowly"
    how = f"{install_command('kernel')} && {sys.executable} -m millrace.kernel.build"
    missing = "no C compiler: gcc is not on PATH"
    for state, lacks, outcome in (
        ("on", None, ok("on")),
        ("off", None, warning(f"turned off, {slow}", "unset MILLRACE_KERNEL")),
        ("not built", None, warning(f"not built: Cython was not there; {slow}", f"run: {how}")),
        ("not built", missing, warning(f"not built: {missing}; {slow}", f"provide that, then run: {how}")),
    ):
        monkeypatch.setattr("millrace.kernel.state", lambda found=state: found)
        monkeypatch.setattr("millrace.kernel.build.what_is_missing", lambda found=lacks: found)
        (finding,) = (one for one in findings(Sides(problems=["x"])) if one.check == "kernel")
        assert finding.outcome == outcome


def server(
    *,
    mariadb: bool = False,
    version: str = "8.0.40",
    address: MysqlAddress = MysqlAddress("db"),  # noqa: B008 - it never changes
    answers: dict[str, Any] | None = None,
    tables: list[Table] | None = None,
    logs: list[LogFile] | None = None,
    replicas: dict[int, str] | None = None,
    settings: dict[str, Any] | None = None,
    link: dict[str, Any] | None = None,
    **variables: str,
) -> Server:
    """A server that would say this of itself."""
    connection = StubConnection(
        answers={"SELECT CURRENT_USER": [{"user": "u@%"}], **(answers or {})},
        flavour=Flavour.MARIADB if mariadb else Flavour.MYSQL,
        version=version,
        address=address,
        **(link or {}),
    )
    made = Server(cast("MysqlConnection", connection), 7, "millrace-shop", **(settings or {}))
    given = {"variables": variables, "tables": tables, "logs": logs, "replicas": replicas}
    vars(made).update({name: value for name, value in given.items() if value is not None})
    return made


def grants(*lines: str) -> dict[str, Any]:
    return {"SHOW GRANTS": [{"g": line} for line in lines]}


LOGS = [LogFile("bin.000007", 3 << 20), LogFile("bin.000008", 1 << 20)]
STATE = ReaderState(
    0,
    "bin.000007",
    4,
    identity=LogIdentity(1, "8.0.40", 0, server_uuid="u1"),
    last_timestamp=NOW_MS,
    gtid_set="u1:1-7",
)
OTHER = replace(STATE, identity=LogIdentity(1, "8.0.40", 0, server_uuid="u2"))
NOTHING_PURGED = {"SELECT GTID_SUBTRACT": [{"missing": ""}]}
PURGED = {"SELECT GTID_SUBTRACT": [{"missing": "u1:8-9"}]}
TLS_ADVICE = (
    "set MILLRACE_MYSQL_SSL_CA to the file of the CA that signed the server's certificate, and set up TLS on "
    "the server if it has none"
)
REPLICA_ADVICE = (
    "set log_slave_updates (log_replica_updates) in the configuration and restart, or read the primary"
)

SERVERS: list[tuple[Callable[[Server], Iterator[Outcome]], Server, list[Outcome]]] = [
    (
        access_checks.version,
        server(version="5.1.73-log"),
        [error("MySQL 5.1.73-log is older than 5.5 to 9.7, which are supported", "upgrade the server")],
    ),
    (
        access_checks.version,
        server(mariadb=True, version="13.0.1-MariaDB"),
        [
            warning(
                "MariaDB 13.0.1-MariaDB is newer than 10.2 to 11.8, which are known",
                "events of kinds that are new in it go to the dead letter topic; nothing is lost in the raw "
                "topic",
            )
        ],
    ),
    (
        access_checks.encryption,
        server(answers={"SHOW SESSION STATUS": [{"Value": ""}]}),
        [warning("the connection is not encrypted: passwords and rows can be read on the way", TLS_ADVICE)],
    ),
    (
        access_checks.encryption,
        server(answers={"SHOW SESSION STATUS": [{"Value": "TLS_AES_256_GCM_SHA384"}]}),
        [
            warning(
                "TLS_AES_256_GCM_SHA384, but the server's certificate is not verified: it may be an "
                "impostor's",
                TLS_ADVICE,
            )
        ],
    ),
    (
        access_checks.encryption,
        server(answers={"SHOW SESSION STATUS": [{"Value": "TLS_X"}]}, link={"verified": True}),
        [ok("TLS_X")],
    ),
    (
        access_checks.login,
        server(link={"login_method": "caching_sha2_password"}),
        [
            warning(
                "caching_sha2_password: it went by what the server remembers; once it has restarted it asks "
                "for the password itself, which is not sent where nobody can tell whose server it is",
                f"{TLS_ADVICE}; see docs/security.md for other ways",
            )
        ],
    ),
    (
        access_checks.login,
        server(link={"login_method": "caching_sha2_password", "may_give_password": True}),
        [ok("caching_sha2_password")],
    ),
    (
        access_checks.encryption,
        server(answers={"SHOW SESSION STATUS": []}, address=MysqlAddress("127.0.0.1")),
        [ok("none, on this machine")],
    ),
    (
        access_checks.privileges,
        server(answers=grants("GRANT USAGE ON *.* TO `u`")),
        [
            error(
                "'u'@'%' lacks REPLICATION SLAVE and REPLICATION CLIENT",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'u'@'%'",
                ["REPLICATION SLAVE", "REPLICATION CLIENT"],
            )
        ],
    ),
    (
        access_checks.privileges,
        server(
            answers=grants(
                "GRANT REPLICATION SLAVE, SUPER ON *.* TO `u`", "GRANT SELECT, INSERT ON `shop`.* TO `u`"
            )
        ),
        [
            warning(
                "'u'@'%' has SELECT on some databases only: the definitions of other tables cannot be read",
                "GRANT SELECT ON *.* TO 'u'@'%'",
            )
        ],
    ),
    (
        access_checks.privileges,
        server(answers=grants("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`"), mariadb=True),
        [
            warning(
                "'u'@'%' has no SELECT: definitions of tables cannot be read, and names of columns come from "
                "binlog_row_metadata=FULL alone",
                "GRANT SELECT ON *.* TO 'u'@'%'",
            )
        ],
    ),
    (
        access_checks.privileges,
        server(answers=grants("GRANT ALL PRIVILEGES ON *.* TO `u`")),
        [ok("'u'@'%' has all privileges")],
    ),
    (
        access_checks.server_id,
        server(server_id="0"),
        [
            error(
                "the server has no server_id, and will not serve replicas",
                "set server_id in its configuration",
            )
        ],
    ),
    (
        access_checks.server_id,
        server(server_id="7"),
        [
            error(
                "the server has server_id 7, the one that we would use",
                "set MILLRACE_MYSQL_SERVER_ID to a number that no server of the topology has",
            )
        ],
    ),
    (
        access_checks.replicas,
        server(),
        [
            warning(
                "cannot be listed, so that another replica may have server id 7: db: we may not list the "
                "replicas",
                "GRANT REPLICATION SLAVE ON *.* TO 'u'@'%', or look yourself",
            )
        ],
    ),
    (
        access_checks.replicas,
        server(replicas={7: ""}),
        [
            error(
                "replica without a name uses server id 7, the one that we would use",
                "set MILLRACE_MYSQL_SERVER_ID to a number of its own",
            )
        ],
    ),
    (access_checks.replicas, server(replicas={8: "x"}), [ok("1, none with our server id 7")]),
    (
        log_checks.log_bin,
        server(log_bin="OFF"),
        [error("the binary log is off", "set log_bin=mysql-bin in the configuration and restart the server")],
    ),
    (
        log_checks.log_bin,
        server(log_bin="ON", binlog_storage_engine="InnoDB"),
        [
            error(
                "the binary log is kept in InnoDB (binlog_storage_engine): only MariaDB's own replicas "
                "read that",
                "start the server without binlog_storage_engine",
            )
        ],
    ),
    (
        log_checks.binlog_format,
        server(binlog_format="STATEMENT"),
        [
            error(
                "binlog_format is STATEMENT: the log holds no rows, and the reader will not start",
                f"SET GLOBAL binlog_format='ROW'{SAME}; sessions keep theirs until they reconnect",
            )
        ],
    ),
    (
        log_checks.binlog_format,
        server(binlog_format="STATEMENT", settings={"allow_statements": True}),
        [
            warning(
                "binlog_format is STATEMENT: statements are carried, but no rows",
                f"SET GLOBAL binlog_format='ROW'{SAME}; sessions keep theirs until they reconnect",
            )
        ],
    ),
    (
        log_checks.binlog_format,
        server(binlog_format="MIXED"),
        [
            warning(
                "binlog_format is MIXED: some changes are logged as statements, without rows",
                f"SET GLOBAL binlog_format='ROW'{SAME}; sessions keep theirs until they reconnect",
            )
        ],
    ),
    (
        log_checks.sessions,
        server(
            answers={
                "SELECT t.PROCESSLIST_ID": [{"id": 9, "user": "app", "format": "STATEMENT"}],
                "SELECT ROUTINE_SCHEMA": [{"database": "shop", "name": "quiet"}],
            },
            performance_schema="ON",
            init_connect="SET sql_log_bin=0",
        ),
        [
            warning(
                "sessions log statements, whose changes come without rows: app (9, STATEMENT)",
                "make them reconnect; if they set binlog_format themselves, change the program",
                ["app (9, STATEMENT)"],
            ),
            warning(
                "binlog_format or sql_log_bin is set by shop.quiet, init_connect: what it changes may be "
                "missing in the log",
                "look whether it writes to tables that you want",
                ["shop.quiet", "init_connect"],
            ),
        ],
    ),
    (log_checks.binlog_row_image, server(), [ok("whole rows, as always in this version")]),
    (
        log_checks.binlog_row_image,
        server(binlog_row_image="MINIMAL"),
        [
            warning(
                "binlog_row_image is MINIMAL: columns that did not change are missing, and listed in "
                "before_missing and after_missing",
                f"SET GLOBAL binlog_row_image='FULL'{SAME}",
            )
        ],
    ),
    (
        log_checks.binlog_row_metadata,
        server(),
        [
            warning(
                "this version does not log the names of columns: they come from the definitions that the "
                "reader reads and the DDL after them, and a table whose DDL is not understood is quarantined",
                "upgrade to MySQL 8.0 or MariaDB 10.5, and set binlog_row_metadata=FULL",
            )
        ],
    ),
    (
        log_checks.binlog_row_metadata,
        server(binlog_row_metadata="MINIMAL"),
        [
            warning(
                f"binlog_row_metadata is MINIMAL: {ALTERED}",
                f"SET GLOBAL binlog_row_metadata='FULL'{SAME}",
            )
        ],
    ),
    (
        log_checks.binlog_row_value_options,
        server(binlog_row_value_options="PARTIAL_JSON", binlog_row_image="MINIMAL"),
        [
            warning(
                "PARTIAL_JSON with binlog_row_image=MINIMAL: without the row before, JSON columns cannot be "
                "put together",
                f"SET GLOBAL binlog_row_image='FULL'{SAME}",
            )
        ],
    ),
    (
        log_checks.binlog_row_value_options,
        server(binlog_row_value_options="PARTIAL_JSON", binlog_row_image="FULL"),
        [ok("PARTIAL_JSON: put together from the row before, which is logged")],
    ),
    (
        log_checks.binlog_checksum,
        server(binlog_checksum="NONE"),
        [
            warning(
                "events have no checksum: damage on disk or on the way may go unseen",
                f"SET GLOBAL binlog_checksum='CRC32'{SAME}",
            )
        ],
    ),
    (
        log_checks.binlog_checksum,
        server(),
        [
            warning(
                "events have no checksum: damage on disk or on the way may go unseen",
                "upgrade to MySQL 5.6 or MariaDB 10.2",
            )
        ],
    ),
    (
        log_checks.binlog_filters,
        server(answers={"SHOW MASTER STATUS": [{"Binlog_Do_DB": "shop", "Binlog_Ignore_DB": "audit"}]}),
        [
            warning("binlog_do_db: only changes in shop are logged", "remove it if you want the others"),
            warning("binlog_ignore_db: changes in audit are not logged", "remove it if you want them"),
        ],
    ),
    (
        log_checks.replicated_changes,
        server(),
        [
            warning(
                "if this server is a replica, what it gets from its primary is not in its log", REPLICA_ADVICE
            )
        ],
    ),
    (
        log_checks.replicated_changes,
        server(answers={"SHOW REPLICA STATUS": [{}]}),
        [
            error(
                "this server is a replica, and what it gets from its primary is not in its log",
                REPLICA_ADVICE,
            )
        ],
    ),
    (log_checks.gtids, server(mariadb=True, gtid_strict_mode="ON"), [ok("of MariaDB, strict")]),
    (
        log_checks.gtids,
        server(mariadb=True, gtid_strict_mode="OFF"),
        [
            warning(
                "gtid_strict_mode is OFF: a server may log GTIDs out of order, and a fail-over may then skip "
                "some",
                f"SET GLOBAL gtid_strict_mode=ON{SAME}",
            )
        ],
    ),
    (
        log_checks.gtids,
        server(),
        [
            warning(
                "this version has no GTIDs: the reader cannot switch to another server",
                "upgrade to MySQL 5.6 or later",
            )
        ],
    ),
    (
        log_checks.gtids,
        server(gtid_mode="OFF"),
        [
            warning(
                "gtid_mode is OFF: the reader cannot switch to another server, or past a reset of this one",
                "SET GLOBAL enforce_gtid_consistency=ON, then gtid_mode OFF_PERMISSIVE, ON_PERMISSIVE and "
                "ON, "
                "and the same in the configuration",
            )
        ],
    ),
    (
        log_checks.gtids,
        server(gtid_mode="ON", enforce_gtid_consistency="WARN"),
        [
            warning(
                "enforce_gtid_consistency is WARN: statements may be logged that GTIDs cannot hold together",
                f"SET GLOBAL enforce_gtid_consistency=ON{SAME}",
            )
        ],
    ),
    (
        log_checks.durability,
        server(sync_binlog="0", innodb_flush_log_at_trx_commit="2"),
        [
            warning(
                "sync_binlog=0 and innodb_flush_log_at_trx_commit=2: when its machine crashes, the server "
                "may "
                "lose changes that are in the topics already, and its log then is another one",
                "set both to 1, in the configuration too",
            )
        ],
    ),
    (log_checks.durability, server(), [ok("each commit is on disk before it is read")]),
    (
        log_checks.retention,
        server(max_binlog_total_size=str(5 << 20)),
        [
            warning(
                "max_binlog_total_size is 5 MiB: logs are purged by size, however far the reader is",
                "leave room for the longest outage at the highest rate of writing",
            ),
            ok("logs are kept until somebody purges them; watch the disk"),
        ],
    ),
    (
        log_checks.retention,
        server(binlog_expire_logs_seconds="600"),
        [
            warning(
                "logs are kept for 600 s: an outage of the reader or of Kafka that lasts longer loses "
                "changes",
                f"SET GLOBAL binlog_expire_logs_seconds=604800{SAME}",
            )
        ],
    ),
    (
        log_checks.retention,
        server(expire_logs_days="0.5"),
        [
            warning(
                "logs are kept for 43200 s: an outage of the reader or of Kafka that lasts longer loses "
                "changes",
                f"SET GLOBAL expire_logs_days=7{SAME}",
            )
        ],
    ),
    (log_checks.retention, server(expire_logs_days="7"), [ok("logs are kept for 7 days")]),
    (
        log_checks.reader_position,
        server(logs=LOGS, settings={"start": "bin.000001:4"}),
        [
            error(
                "the reader has not run yet, and begins at bin.000001:4, but there is no bin.000001",
                "set MILLRACE_START to a place that SHOW BINARY LOGS lists",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(logs=LOGS, settings={"start": f"bin.000008:{2 << 20}"}),
        [
            error(
                f"the reader has not run yet, and begins at bin.000008:{2 << 20}, but bin.000008 ends at "
                f"{1 << 20}",
                "set MILLRACE_START to a place that SHOW BINARY LOGS lists",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(answers=PURGED, settings={"start": "gtid:u1:1-3"}),
        [
            error(
                "the reader has not run yet, and begins at gtid:u1:1-3: of what follows, this is purged: "
                "u1:8-9",
                "set MILLRACE_START again",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(logs=LOGS, server_uuid="u1", settings={"state": STATE}),
        [ok(f"bin.000007:4, {(4 << 20) - 4} bytes behind")],
    ),
    (
        log_checks.reader_position,
        server(
            logs=LOGS,
            server_uuid="u1",
            binlog_expire_logs_seconds="3600",
            settings={"state": replace(STATE, last_timestamp=0)},
        ),
        [
            error(
                f"bin.000007:4, {(4 << 20) - 4} bytes behind: its last event is ",
                "let the reader catch up now, or keep logs for longer until it has",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(logs=LOGS, settings={"state": OTHER}),
        [
            error(
                "the reader stood at bin.000007:4 of another server, and without GTIDs it is not known "
                "where to continue",
                "bring back the log, or start under another MILLRACE_SOURCE; see docs/operations.md",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(logs=LOGS[1:], server_uuid="u1", gtid_mode="ON", answers=PURGED, settings={"state": STATE}),
        [
            error(
                "bin.000007, where the reader stands, is no longer there, and transactions that were not "
                "read "
                "are purged: u1:8-9",
                "bring back their logs, or start over; see docs/operations.md",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(
            logs=LOGS[:1],
            server_uuid="u1",
            gtid_mode="ON",
            answers=NOTHING_PURGED,
            settings={"state": replace(STATE, position=9 << 20)},
        ),
        [
            warning(
                f"bin.000007 ends before {9 << 20}, where the reader stands: the reader continues by "
                "GTID, in a new epoch",
                "nothing, if you expect this",
            )
        ],
    ),
    (
        log_checks.reader_position,
        server(gtid_mode="ON", answers=NOTHING_PURGED, settings={"state": OTHER, "one_of_several": True}),
        [ok("the reader stood at bin.000007:4 of another server: it can continue here by GTID")],
    ),
    (
        log_checks.net_write_timeout,
        server(
            net_write_timeout="5",
            answers={
                "SET SESSION net_write_timeout = 600": [],
                "SELECT @@SESSION.net_write_timeout": [{"value": 600}],
            },
        ),
        [ok("600 s for the reader, 5 s for others")],
    ),
    (
        log_checks.max_allowed_packet,
        server(max_allowed_packet="4194304"),
        [
            warning(
                "max_allowed_packet is 4194304 bytes: the server stops the dump at an event that is larger "
                "(error 1236), and an UPDATE of a large row makes an event of twice its size",
                f"SET GLOBAL max_allowed_packet=1073741824{SAME}",
            )
        ],
    ),
    (
        log_checks.query_texts,
        server(settings={"include_query": True}),
        [
            warning(
                "MILLRACE_ROWS_INCLUDE_QUERY is true and binlog_rows_query_log_events is OFF: rows will "
                "have no "
                "source.query",
                f"SET GLOBAL binlog_rows_query_log_events=ON{SAME}",
            )
        ],
    ),
    (
        table_checks.tables,
        server(tables=[]),
        [
            warning(
                "no table can be seen: there are none yet, or our user may not SELECT from them",
                "GRANT SELECT ON *.* TO our user",
            )
        ],
    ),
    (
        table_checks.tables_without_key,
        server(tables=[Table("shop", "a", "InnoDB", keyed=False)]),
        [
            warning(
                "1 tables have no primary key, so that their records have no key, cannot be compacted, and "
                "equal "
                "rows cannot be told apart: shop.a",
                "give them a primary key",
                ["shop.a"],
            )
        ],
    ),
    (
        table_checks.topic_names,
        server(
            tables=[
                Table("a", "b_c", "InnoDB", keyed=True),
                Table("a_b", "c", "InnoDB", keyed=True),
                Table("x", "raw", "InnoDB", keyed=True),
                Table("x", "y", "InnoDB", keyed=True),
            ],
            settings={"source": "shop", "topics": frozenset({"shop_x.raw", "shop.x.y", "shop.raw"})},
        ),
        [
            warning(
                "Kafka cannot have the topics of these beside each other, since they differ in '.' and '_' "
                "alone: the rows of the second wait in the dead letter topic: a.b_c and a_b.c, x.raw and "
                "shop_x.raw",
                "give one of them another topic with MILLRACE_TOPICS_NAMES",
                ["a.b_c and a_b.c", "x.raw and shop_x.raw"],
            )
        ],
    ),
    (
        table_checks.topic_names,
        server(
            tables=[Table("a", "b_c", "InnoDB", keyed=True), Table("a_b", "c", "InnoDB", keyed=True)],
            settings={"source": "shop", "topic_named": {"a_b.c": ("a_b", "c_2")}.get},
        ),
        [ok("each table can have its own")],
    ),
    (
        table_checks.cascades,
        server(innodb_native_foreign_keys="OFF"),
        [ok("the server logs the rows that foreign keys change")],
    ),
    (
        table_checks.cascades,
        server(
            innodb_native_foreign_keys="ON",
            answers={
                "SELECT CONSTRAINT_SCHEMA": [
                    {"database": "shop", "table": "a", "on_delete": "CASCADE", "on_update": "RESTRICT"}
                ]
            },
        ),
        [
            warning(
                "rows of 1 tables are changed by ON DELETE or ON UPDATE of foreign keys, which the server "
                "does "
                "not log: shop.a",
                "start the server without innodb_native_foreign_keys",
                ["shop.a"],
            )
        ],
    ),
    (
        table_checks.cascades,
        server(
            tables=[Table("shop", "a", "InnoDB", keyed=True)],
            answers={
                "SELECT CONSTRAINT_SCHEMA": [],
                "SHOW CREATE TABLE `shop`.`a`": [
                    {"Create Table": "x\n  CONSTRAINT `c` FOREIGN KEY (`p`) REFERENCES `p` ON DELETE CASCADE"}
                ],
            },
            mariadb=True,
        ),
        [
            warning(
                "rows of 1 tables are changed by ON DELETE or ON UPDATE of foreign keys, which the server "
                "does "
                "not log: shop.a",
                "change these rows by statements instead",
                ["shop.a"],
            )
        ],
    ),
    (
        table_checks.engines,
        server(tables=[Table("shop", "a", "MyISAM", keyed=True)]),
        [
            warning(
                "1 tables have an engine without transactions: a rollback does not undo their changes, and "
                "after "
                "a crash table and log may differ: shop.a (MyISAM)",
                "ALTER TABLE … ENGINE=InnoDB",
                ["shop.a (MyISAM)"],
            )
        ],
    ),
]


@pytest.mark.parametrize(("check", "subject", "expected"), SERVERS)
def test_a_server(
    check: Callable[[Server], Iterator[Outcome]], subject: Server, expected: list[Outcome]
) -> None:
    found = list(check(subject))
    if expected[0].text.endswith(" is "):  # a time follows
        assert found[0].text.startswith(expected[0].text)
        assert found[0].text.endswith(" s old, and logs are kept for 3600 s")
        expected = [replace(expected[0], text=found[0].text)]
    assert found == expected


@pytest.mark.parametrize(("ahead", "way"), [(100, "ahead of"), (-100, "behind")])
def test_another_clock(ahead: int, way: str) -> None:
    answers = {"SELECT UNIX_TIMESTAMP": [{"now": int(time.time()) + ahead}]}
    (found,) = access_checks.clock(server(answers=answers))
    assert found.text.startswith("the server's clock is ")
    assert found.text.endswith(f" s {way} ours: lags are reported wrongly")
    assert found.advice == "synchronize both with a time server"


def cluster(*, brokers: int = 3, semi_sync: bool = False, **fields: Any) -> Cluster:
    view = ClusterView(brokers, {1: {}}, {}, frozenset(), ())
    return Cluster(Topics("shop"), replace(view, **fields), TopicsSettings.model_validate({}), semi_sync)


def topic(
    name: str = "shop.raw", *, replicas: int = 3, in_sync: int = 3, **config: str
) -> dict[str, TopicView]:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return {name: TopicView(name, 1, replicas, in_sync, settings, frozenset({"READ"}))}


def broker(**config: str) -> dict[int, dict[str, str]]:
    return {1: {key.replace("_", "."): value for key, value in config.items()}}


CLUSTERS: list[tuple[Callable[[Cluster], Iterator[Outcome]], Cluster, list[Outcome]]] = [
    (
        kafka_checks.brokers,
        cluster(refusals=("settings of 1: no",)),
        [
            warning(
                "3; not all can be checked: settings of 1: no",
                "allow DescribeConfigs on the cluster and on the source's topics",
                ["settings of 1: no"],
            )
        ],
    ),
    (
        kafka_checks.kafka_version,
        cluster(),
        [
            error(
                "Kafka is older than 3.6: its topics cannot promise to take events of any age",
                "upgrade the brokers",
            )
        ],
    ),
    (
        kafka_checks.transactions,
        cluster(
            broker_configs=broker(
                transaction_max_timeout_ms="9000", transaction_state_log_replication_factor="1"
            )
        ),
        [
            error(
                "transaction.max.timeout.ms is 9000, and our transactions ask for 30000: no service can "
                "start",
                "set it to 30000 or more on the brokers",
            ),
            warning(
                "transaction.state.log.replication.factor is 1: with one broker down no transaction may "
                "commit",
                "set it to 3 before __transaction_state is made, or reassign that topic's partitions",
            ),
        ],
    ),
    (
        kafka_checks.promises,
        cluster(topics=topic(cleanup_policy="compact")),
        [
            error(
                "shop.raw: cleanup.policy is compact, must be delete",
                "alter it with kafka-configs, or delete it while it is empty; the services refuse it as it "
                "is",
                ["shop.raw"],
            )
        ],
    ),
    (
        kafka_checks.missing_topics,
        replace(
            cluster(
                operations=frozenset({"CREATE"}),
                all_topics=frozenset({"old.raw"}),
                topics={
                    name: view
                    for kind in ("events", "transactions", "ddl", "schemas", "deadletter", "state")
                    for name, view in topic(f"shop.{kind}").items()
                },
            ),
            names=Topics("shop", "old"),
        ),
        [
            error(
                "old.catalog: decoder and row mapper cannot start without what they read",
                "let MILLRACE_INPUT_SOURCE name a source whose reader has run",
                ["old.catalog"],
            ),
            ok("none"),
        ],
    ),
    (
        kafka_checks.missing_topics,
        cluster(
            topics={
                name: view
                for kind in ("raw", "events", "transactions", "catalog", "ddl", "deadletter")
                for name, view in topic(f"shop.{kind}").items()
            }
        ),
        [
            warning(
                "shop.schemas, shop.state: we may not create topics everywhere",
                "create them as docs/topics.md describes, or allow Create on topics with the prefix shop.",
                ["shop.schemas", "shop.state"],
            )
        ],
    ),
    (
        kafka_checks.replication,
        cluster(brokers=1),
        [
            warning(
                "1 brokers: what is in Kafka is lost with a disk, and the server's logs are purged",
                "run three brokers or more, with MILLRACE_TOPICS_REPLICATION_FACTOR=3",
            )
        ],
    ),
    (
        kafka_checks.replication,
        cluster(
            broker_configs=broker(default_replication_factor="1"),
            topics=topic(replicas=2, in_sync=2) | topic("shop.events", min_insync_replicas="3"),
        ),
        [
            warning("new topics get 1 replicas", "set MILLRACE_TOPICS_REPLICATION_FACTOR=3"),
            warning(
                "fewer than three replicas: shop.raw",
                "add replicas with kafka-reassign-partitions",
                ["shop.raw"],
            ),
            warning(
                "min.insync.replicas is 1: a record may be on one broker alone when it counts as written: "
                "shop.raw",
                "kafka-configs --alter --topic … --add-config min.insync.replicas=2",
                ["shop.raw"],
            ),
            warning(
                "min.insync.replicas is as high as the number of replicas, so that one broker down stops the "
                "services: shop.events",
                "lower it by one, or add a replica",
                ["shop.events"],
            ),
        ],
    ),
    (kafka_checks.replication, cluster(), [ok("3 brokers, no topic on fewer than three")]),
    (
        kafka_checks.semi_sync,
        cluster(semi_sync=True, topics=topic()),
        [
            error(
                "MILLRACE_SEMI_SYNC is true and shop.raw has min.insync.replicas=1: a transaction may be "
                "acknowledged to the server and be lost with one broker",
                "run three brokers with three replicas of it, and set min.insync.replicas=2",
            )
        ],
    ),
    (
        kafka_checks.semi_sync,
        cluster(semi_sync=True, topics=topic(min_insync_replicas="2")),
        [ok("min.insync.replicas of shop.raw is 2")],
    ),
    (
        kafka_checks.in_sync,
        cluster(topics=topic(in_sync=2)),
        [warning("not all replicas are in sync: shop.raw", "look whether all brokers run", ["shop.raw"])],
    ),
    (
        kafka_checks.unclean_elections,
        cluster(topics=topic(unclean_leader_election_enable="true")),
        [
            error(
                "unclean.leader.election.enable is true: records that were acknowledged may be lost: "
                "shop.raw",
                "kafka-configs --alter --topic … --add-config unclean.leader.election.enable=false",
                ["shop.raw"],
            )
        ],
    ),
    (
        kafka_checks.unclean_elections,
        cluster(broker_configs=broker(unclean_leader_election_enable="true")),
        [
            warning(
                "unclean.leader.election.enable is true on the brokers: records of new topics that were "
                "acknowledged may be lost",
                "set it to false",
            )
        ],
    ),
    (
        kafka_checks.compression,
        cluster(topics=topic(compression_type="zstd") | topic("shop.events", compression_type="producer")),
        [
            warning(
                "brokers compress again what the services send, as lz4: shop.raw",
                "kafka-configs --alter --topic … --add-config compression.type=producer, or set "
                "MILLRACE_KAFKA_COMPRESSION to what the topics have",
                ["shop.raw"],
            )
        ],
    ),
    (kafka_checks.compression, cluster(topics=topic(compression_type="lz4")), []),
    (
        kafka_checks.automatic_topics,
        cluster(broker_configs=broker(auto_create_topics_enable="true")),
        [
            warning(
                "auto.create.topics.enable is true: a consumer that comes before its topic creates it with "
                "Kafka's defaults, which the services then refuse",
                "set it to false on the brokers",
            )
        ],
    ),
    (
        kafka_checks.retention,
        cluster(topics=topic(retention_ms="1000", retention_bytes="9")),
        [
            warning(
                "shop.raw has retention.ms=1000 and retention.bytes=9: what it deletes cannot be decoded or "
                "mapped again",
                "nothing, if you know that nobody reads that far back; else set retention.ms=-1, "
                "retention.bytes=-1",
                ["shop.raw"],
            )
        ],
    ),
    (
        kafka_checks.rights,
        cluster(topics=topic()),
        [
            warning(
                "these credentials lack rights: shop.raw (WRITE)",
                "fine where each service has credentials of its own; docs/topics.md lists what each one "
                "needs",
                ["shop.raw (WRITE)"],
            )
        ],
    ),
]


@pytest.mark.parametrize(("check", "subject", "expected"), CLUSTERS)
def test_a_cluster(
    check: Callable[[Cluster], Iterator[Outcome]], subject: Cluster, expected: list[Outcome]
) -> None:
    assert list(check(subject)) == expected


class Registry:
    """A registry that would say this of itself."""

    def compatibility(self) -> str:
        return "NONE"

    def mode(self) -> str:
        return "READONLY_OVERRIDE"


def test_a_registry() -> None:
    found = [outcome for check in registry_checks.CHECKS[1:] for outcome in check(cast("Any", Registry()))]
    assert found == [
        warning(
            "the global level is NONE: a schema that old consumers cannot read would be accepted silently",
            'set it to BACKWARD: PUT /config with {"compatibility": "BACKWARD"}',
        ),
        error("its mode is READONLY_OVERRIDE: schemas cannot be registered", "set it to READWRITE"),
    ]
