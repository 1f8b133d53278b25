"""What the checks find, and say; tests/live/test_doctor.py has them look at real servers."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.contract import Topics
from millrace.doctor import access_checks, kafka_checks, log_checks, registry_checks, table_checks
from millrace.doctor.examine import Sides, findings
from millrace.doctor.kafka_checks import Cluster
from millrace.doctor.server import Server, Table
from millrace.finding import CheckResult, ok, warning
from millrace.installation import install_command
from millrace.kafka.inspect import ClusterView, TopicView
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.status import LogFile
from millrace.runtime.settings import TopicsSettings
from tests.mysql_stub import StubConnection

NOW_MS = int(time.time() * 1000)


def assert_found(outcomes: Iterable[CheckResult], *expected: str) -> None:
    """``level: text → advice [items]``, where … stands for anything."""
    found = []
    for one in outcomes:
        items = f" [{', '.join(one.items)}]" if one.items else ""
        found.append(
            f"{one.level}: {one.text} → {one.advice}{items}" if one.advice else f"{one.level}: {one.text}"
        )
    assert len(found) == len(expected), found
    for said, wanted in zip(found, expected, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), said), said


def of(check: Callable[[Any], Iterator[CheckResult]], *cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """What a check is to say of each subject."""
    return [(check, subject, expected) for subject, *expected in cases]


def test_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "the reference codec does the work, several times as slowly"
    how = f"{install_command('kernel')} && {sys.executable} -P -m millrace.kernel.build"
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
    return {"SHOW GRANTS": [{"g": f"GRANT {line} TO `u`"} for line in lines]}


def table(database: str, name: str, engine: str = "InnoDB", *, keyed: bool = True) -> Table:
    return Table(database, name, engine, keyed=keyed)


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
CASCADE = {"database": "shop", "table": "a", "on_delete": "CASCADE", "on_update": "RESTRICT"}
CASCADES = "SELECT CONSTRAINT_SCHEMA"
SHOWN = {"Create Table": "x\n  CONSTRAINT `c` FOREIGN KEY (`p`) REFERENCES `p` ON DELETE CASCADE"}


def tls(cipher: str) -> dict[str, Any]:
    return {"SHOW SESSION STATUS": [{"Value": cipher}]}


SERVERS = [
    *of(
        access_checks.version,
        (server(version="5.1.73-log"), "error: MySQL 5.1.73-log is older than 5.5… → upgrade…"),
        (server(version="5.7.22"), "ok: …5.7.22"),
        (server(version="9.7.4"), "ok: …9.7.4"),
        (server(mariadb=True, version="13.0.1-MariaDB"), "warning: MariaDB 13…is newer than 10… → events…"),
        (server(version="26.7.0"), "warning: …26.7.0 is newer than…"),
    ),
    *of(
        access_checks.encryption,
        (server(answers=tls("")), "warning: …is not encrypted:… → set MILLRACE_MYSQL_SSL_CA…"),
        (server(answers=tls("TLS_X")), "warning: TLS_X, but…is not verified:… → set MILLRACE_MYSQL_SSL_CA…"),
        (server(answers=tls("TLS_X"), link={"verified": True}), "ok: TLS_X"),
        (
            server(answers={"SHOW SESSION STATUS": []}, address=MysqlAddress("127.0.0.1")),
            "ok: none, on this machine",
        ),
    ),
    *of(
        access_checks.login,
        (
            server(link={"login_method": "caching_sha2_password"}),
            "warning: caching_sha2_password:… → …docs/security.md…",
        ),
        (
            server(link={"login_method": "caching_sha2_password", "may_give_password": True}),
            "ok: caching_sha2_password",
        ),
    ),
    *of(
        access_checks.privileges,
        (
            server(answers=grants("USAGE ON *.*")),
            "error: …lacks… → GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'u'@'%' […SLAVE, …]",
        ),
        (
            server(answers=grants("REPLICATION SLAVE, SUPER ON *.*", "SELECT, INSERT ON `shop`.*")),
            "warning: …SELECT on some databases only:… → GRANT SELECT ON *.* TO 'u'@'%'",
        ),
        (
            server(answers=grants("REPLICATION SLAVE, BINLOG MONITOR ON *.*"), mariadb=True),
            "warning: 'u'@'%' has no SELECT:… → GRANT SELECT ON *.* TO 'u'@'%'",
        ),
        (server(answers=grants("ALL PRIVILEGES ON *.*")), "ok: 'u'@'%' has all privileges"),
    ),
    *of(
        access_checks.server_id,
        (server(server_id="0"), "error: the server has no server_id,… → set server_id…"),
        (server(server_id="7"), "error: the server has server_id 7,… → set MILLRACE_MYSQL_SERVER_ID…"),
    ),
    *of(
        access_checks.replicas,
        (server(), "warning: cannot be listed,… → GRANT REPLICATION SLAVE ON *.* TO 'u'@'%',…"),
        (server(replicas={7: ""}), "error: …uses server id 7,… → set MILLRACE_MYSQL_SERVER_ID…"),
        (server(replicas={8: "x"}), "ok: 1, none with our server id 7"),
    ),
    *of(
        log_checks.binlog_format,
        (server(binlog_format="STATEMENT", settings={"allow_statements": True}), "warning: …counted…"),
        (server(binlog_format="MIXED", settings={"allow_statements": True}), "warning: …some …counted…"),
        (server(binlog_format="MIXED"), "error: …some changes are logged without rows, and…"),
    ),
    *of(
        log_checks.sessions,
        (
            server(
                answers={
                    "SELECT t.PROCESSLIST_ID": [{"id": 9, "user": "app", "format": "STATEMENT"}],
                    "SELECT ROUTINE_SCHEMA": [{"database": "shop", "name": "quiet"}],
                },
                performance_schema="ON",
                init_connect="SET sql_log_bin=0",
            ),
            "warning: sessions log statements,… → make them reconnect;… [app (9, STATEMENT)]",
            "warning: …is set by shop.quiet, init_connect:… → look whether… [shop.quiet, init_connect]",
        ),
    ),
    *of(log_checks.binlog_row_image, (server(), "ok: whole rows, as always in this version")),
    *of(
        log_checks.binlog_row_metadata,
        (server(), "warning: this version does not log the names… → upgrade to…binlog_row_metadata=FULL"),
    ),
    *of(
        log_checks.binlog_row_value_options,
        (
            server(binlog_row_value_options="PARTIAL_JSON", binlog_row_image="MINIMAL"),
            "warning: PARTIAL_JSON with binlog_row_image=MINIMAL:… → SET GLOBAL binlog_row_image='FULL'…",
        ),
        (server(binlog_row_value_options="PARTIAL_JSON", binlog_row_image="FULL"), "ok: PARTIAL_JSON:…"),
    ),
    *of(
        log_checks.binlog_checksum,
        (server(binlog_checksum="NONE"), "warning: …no checksum:… → …binlog_checksum='CRC32'…"),
        (server(), "warning: events have no checksum:… → upgrade to MySQL 5.6 or MariaDB 10.2"),
    ),
    *of(
        log_checks.binlog_filters,
        (
            server(answers={"SHOW MASTER STATUS": [{"Binlog_Do_DB": "shop", "Binlog_Ignore_DB": "audit"}]}),
            "warning: binlog_do_db: only changes in shop are logged → remove it…",
            "warning: binlog_ignore_db: changes in audit are not logged → remove it…",
        ),
    ),
    *of(
        log_checks.replicated_changes,
        (server(), "warning: if this server is a replica,… → set log_slave_updates…"),
        (server(answers={"SHOW REPLICA STATUS": [{}]}), "error: …is a replica,… → set log_slave_…"),
    ),
    *of(
        log_checks.gtids,
        (server(mariadb=True, gtid_strict_mode="ON"), "ok: of MariaDB, strict"),
        (
            server(mariadb=True, gtid_strict_mode="OFF"),
            "warning: …is OFF:… → docs/how-to/server.md#strict-gtids…",
        ),
        (server(), "warning: this version has no GTIDs:… → upgrade to MySQL 5.6 or later"),
    ),
    *of(
        log_checks.durability,
        (
            server(sync_binlog="0", innodb_flush_log_at_trx_commit="2"),
            "warning: sync_binlog=0 and innodb_flush_log_at_trx_commit=2:… → SET…log=1…_commit=1…",
        ),
        (server(), "ok: each commit is on disk before it is read"),
    ),
    *of(
        log_checks.retention,
        (
            server(max_binlog_total_size=str(5 << 20)),
            "warning: max_binlog_total_size is 5 MiB:… → leave room…",
            "ok: logs are kept until somebody purges them;…",
        ),
        (server(binlog_expire_logs_seconds="600"), "warning: …for 600 s:… → …_seconds=604800…"),
        (server(expire_logs_days="0.5"), "warning: …for 43200 s:… → SET GLOBAL expire_logs_days=7…"),
        (server(expire_logs_days="7"), "ok: logs are kept for 7 days"),
    ),
    *of(
        log_checks.reader_position,
        (
            server(logs=LOGS, settings={"start": "bin.000001:4"}),
            "error: …begins at bin.000001:4, but there is no bin.000001 → set MILLRACE_START…",
        ),
        (
            server(logs=LOGS, settings={"start": f"bin.000008:{2 << 20}"}),
            "error: …begins at bin.000008:2097152, but bin.000008 ends at 1048576 → set MILLRACE_START…",
        ),
        (
            server(answers=PURGED, settings={"start": "gtid:u1:1-3"}),
            "error: …begins at gtid:u1:1-3: of what follows, this is purged: u1:8-9 → set MILLRACE_START…",
        ),
        (
            server(logs=LOGS, server_uuid="u1", settings={"state": STATE}),
            f"ok: bin.000007:4, {(4 << 20) - 4} bytes behind",
        ),
        (
            server(
                logs=LOGS,
                server_uuid="u1",
                binlog_expire_logs_seconds="3600",
                settings={"state": replace(STATE, last_timestamp=0)},
            ),
            "error: bin.000007:4,… bytes behind: its last event is … s old,… kept for 3600 s → let…",
        ),
        (
            server(logs=LOGS, settings={"state": OTHER}),
            "error: …stood at bin.000007:4 of another server, and without GTIDs… → bring back…",
        ),
        (
            server(
                logs=LOGS[1:], server_uuid="u1", gtid_mode="ON", answers=PURGED, settings={"state": STATE}
            ),
            "error: bin.000007, where the reader stands, is no longer there,… purged: u1:8-9 → bring back…",
        ),
        (
            server(
                logs=LOGS[:1],
                server_uuid="u1",
                gtid_mode="ON",
                answers=NOTHING_PURGED,
                settings={"state": replace(STATE, position=9 << 20)},
            ),
            "warning: bin.000007 ends before 9437184,… by GTID, in a new epoch → nothing…",
        ),
        (
            server(gtid_mode="ON", answers=NOTHING_PURGED, settings={"state": OTHER, "one_of_several": True}),
            "ok: the reader stood at bin.000007:4 of another server: it can continue here by GTID",
        ),
    ),
    *of(
        log_checks.max_allowed_packet,
        (server(max_allowed_packet="4194304"), "warning: …is 4194304 bytes:… → …=1073741824…"),
    ),
    *of(
        log_checks.query_texts,
        (server(settings={"include_query": True}), "warning: …log_events is OFF:… → …log_events=ON…"),
    ),
    *of(
        table_checks.tables,
        (server(tables=[]), "warning: no table can be seen:… → GRANT SELECT ON *.* TO 'u'@'%'"),
    ),
    *of(
        table_checks.tables_without_key,
        (server(tables=[table("shop", "a", keyed=False)]), "warning: 1 tables…: shop.a → … [shop.a]"),
    ),
    *of(
        table_checks.topic_names,
        (
            server(
                tables=[table("a", "b_c"), table("a_b", "c"), table("x", "raw"), table("x", "y")],
                settings={"source": "shop", "topics": frozenset({"shop_x.raw", "shop.x.y", "shop.raw"})},
            ),
            "warning: …: a.b_c and a_b.c, x.raw and shop_x.raw → …_TOPICS_NAMES [a.b_c and a_b.c, x.raw…]",
        ),
        (
            server(
                tables=[table("a", "b_c"), table("a_b", "c")],
                settings={"source": "shop", "topic_named": {"a_b.c": ("a_b", "c_2")}.get},
            ),
            "ok: each table can have its own",
        ),
    ),
    *of(
        table_checks.cascades,
        (server(innodb_native_foreign_keys="OFF"), "ok: the server logs the rows that foreign keys change"),
        (
            server(innodb_native_foreign_keys="ON", answers={CASCADES: [CASCADE]}),
            "warning: rows of 1 tables…: shop.a → …innodb_native_foreign_keys [shop.a]",
        ),
        (
            server(
                tables=[table("shop", "a")],
                answers={CASCADES: [], "SHOW CREATE TABLE `shop`.`a`": [SHOWN]},
                mariadb=True,
            ),
            "warning: rows of 1 tables…: shop.a → change these rows by… [shop.a]",
        ),
    ),
    *of(
        table_checks.engines,
        (server(tables=[table("shop", "a", "MyISAM")]), "warning: …: shop.a (MyISAM) → ALTER… [shop.a…]"),
    ),
]


@pytest.mark.parametrize(("ahead", "way"), [(100, "ahead of"), (-100, "behind")])
def test_another_clock(ahead: int, way: str) -> None:
    answers = {"SELECT UNIX_TIMESTAMP": [{"now": int(time.time()) + ahead}]}
    said = f"warning: the server's clock is … s {way} ours: lags are reported wrongly → synchronize both…"
    assert_found(access_checks.clock(server(answers=answers)), said)


def cluster(
    *, brokers: int = 3, semi_sync: bool = False, source: Topics | None = None, **fields: Any
) -> Cluster:
    view = ClusterView(brokers, {1: {}}, {}, frozenset(), ())
    names = source or Topics("shop")
    return Cluster(names, replace(view, **fields), TopicsSettings.model_validate({}), semi_sync)


def topic(
    name: str = "shop.raw", *, replicas: int = 3, in_sync: int = 3, **config: str
) -> dict[str, TopicView]:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return {name: TopicView(name, 1, replicas, in_sync, settings, frozenset({"READ"}))}


def topics(*kinds: str) -> dict[str, TopicView]:
    return {name: view for kind in kinds for name, view in topic(f"shop.{kind}").items()}


def broker(**config: str) -> dict[int, dict[str, str]]:
    return {1: {key.replace("_", "."): value for key, value in config.items()}}


CLUSTERS = [
    *of(
        kafka_checks.brokers,
        (
            cluster(refusals=("settings of 1: no",)),
            "unchecked: 3;… settings of 1: no → allow DescribeConfigs… [settings of 1: no]",
        ),
    ),
    *of(kafka_checks.kafka_version, (cluster(), "error: Kafka is older than 3.6:… → upgrade the brokers")),
    *of(
        kafka_checks.transactions,
        (
            cluster(
                broker_configs=broker(
                    transaction_max_timeout_ms="9000", transaction_state_log_replication_factor="1"
                )
            ),
            "error: …is 9000, and our transactions ask for 30000:… → set it to 30000…",
            "warning: …factor is 1:… → set it to 3…",
        ),
    ),
    *of(
        kafka_checks.promises,
        (cluster(topics=topic(cleanup_policy="compact")), "error: shop.raw: …compact, must… → … [shop.raw]"),
    ),
    *of(
        kafka_checks.missing_topics,
        (
            cluster(
                operations=frozenset({"CREATE"}),
                all_topics=frozenset({"old.raw"}),
                topics=topics("events", "transactions", "ddl", "schemas", "deadletter", "state"),
                source=Topics("shop", "old"),
            ),
            "error: old.catalog:… cannot start… → let MILLRACE_INPUT_SOURCE name… [old.catalog]",
            "ok: none",
        ),
        (
            cluster(topics=topics("raw", "events", "transactions", "catalog", "ddl", "deadletter")),
            "warning: shop.schemas, shop.state: we may not… → …prefix shop. [shop.schemas, shop.state]",
        ),
    ),
    *of(
        kafka_checks.replication,
        (cluster(brokers=1), "warning: 1 brokers:… → …MILLRACE_TOPICS_REPLICATION_FACTOR=3"),
        (
            cluster(
                broker_configs=broker(default_replication_factor="1"),
                topics=topic(replicas=2, in_sync=2) | topic("shop.events", min_insync_replicas="3"),
            ),
            "warning: new topics get 1 replicas → set MILLRACE_TOPICS_REPLICATION_FACTOR=3",
            "warning: fewer than three replicas: shop.raw → add replicas… [shop.raw]",
            "warning: min.insync.replicas is 1:…: shop.raw → …min.insync.replicas=2 [shop.raw]",
            "warning: min.insync.replicas is as high as…: shop.events → lower it by one,… [shop.events]",
        ),
        (cluster(), "ok: 3 brokers, no topic on fewer than three"),
    ),
    *of(
        kafka_checks.semi_sync,
        (cluster(semi_sync=True, topics=topic()), "error: …shop.raw has…=1:… → …=2"),
        (cluster(semi_sync=True, topics=topic(min_insync_replicas="2")), "ok: …of shop.raw is 2"),
    ),
    *of(kafka_checks.in_sync, (cluster(topics=topic(in_sync=2)), "warning: …: shop.raw → … [shop.raw]")),
    *of(
        kafka_checks.unclean_elections,
        (cluster(topics=topic(unclean_leader_election_enable="true")), "error: …: shop.raw → … [shop.raw]"),
        (
            cluster(broker_configs=broker(unclean_leader_election_enable="true")),
            "warning: …on the brokers:… → …",
        ),
    ),
    *of(
        kafka_checks.compression,
        (
            cluster(
                topics=topic(compression_type="zstd") | topic("shop.events", compression_type="producer")
            ),
            "warning: brokers compress again…lz4: shop.raw → …compression.type=producer,… [shop.raw]",
        ),
        (cluster(topics=topic(compression_type="lz4")),),
        (cluster(topics=topic(compression_type="uncompressed")),),
    ),
    *of(
        kafka_checks.automatic_topics,
        (cluster(broker_configs=broker(auto_create_topics_enable="true")), "warning: …is true:… → …"),
    ),
    *of(
        kafka_checks.retention,
        (
            cluster(topics=topic(retention_ms="1000", retention_bytes="9")),
            "warning: shop.raw has…ms=1000 and…bytes=9:… → …ms=-1,…bytes=-1 [shop.raw]",
        ),
    ),
    *of(
        kafka_checks.rights, (cluster(topics=topic()), "warning: …: shop.raw (WRITE) → … [shop.raw (WRITE)]")
    ),
]


@pytest.mark.parametrize(("check", "subject", "expected"), SERVERS + CLUSTERS)
def test_what_a_check_finds(
    check: Callable[[Any], Iterator[CheckResult]], subject: Server | Cluster, expected: list[str]
) -> None:
    assert_found(check(subject), *expected)


class Registry:
    """A registry that would say this of itself."""

    def compatibility(self) -> str:
        return "NONE"

    def mode(self) -> str:
        return "READONLY_OVERRIDE"


def test_a_registry() -> None:
    assert_found(
        [outcome for check in registry_checks.CHECKS[1:] for outcome in check(cast("Any", Registry()))],
        'warning: the global level is NONE:… → …PUT /config with {"compatibility": "BACKWARD"}',
        "error: its mode is READONLY_OVERRIDE:… → set it to READWRITE",
    )
