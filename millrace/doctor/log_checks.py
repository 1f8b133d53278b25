"""Checks of the binary log: that it is written, what is in it, how long it stays, where the reader stands."""

import time
from collections.abc import Iterator
from typing import Final

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.binlog.gtid_set import MariadbBinlogState
from millrace.doctor.server import Server
from millrace.finding import CheckResult, error, listed, ok, warning
from millrace.mysql import checks
from millrace.mysql.connection import Row, advice_to_set
from millrace.mysql.dump import WRITE_TIMEOUT_S
from millrace.mysql.errors import RefusedError
from millrace.mysql.semisync import semi_sync_findings
from millrace.mysql.status import first_with_gtids

_DAY_S: Final = 86_400
_TELLS_SESSIONS: Final = (5, 7)
_PACKET: Final = 64 << 20
_MIB: Final = 1 << 20


def log_bin(server: Server) -> Iterator[CheckResult]:
    """Look whether there is a binary log, and one that replicas can read."""
    found = list(checks.log_bin(server.variables))
    yield from found
    if not found:
        size = sum(log.size for log in server.logs)
        yield ok(f"{len(server.logs)} files, {size // _MIB} MiB")


def binlog_format(server: Server) -> Iterator[CheckResult]:
    """Look whether changes are logged as rows."""
    return checks.binlog_format(server.variables, allow_statements=server.allow_statements)


def sessions(server: Server) -> Iterator[CheckResult]:
    """Look for sessions and routines that log otherwise than the server does."""
    if not server.is_mariadb and server.version >= _TELLS_SESSIONS and server.is_on("performance_schema"):
        rows = server.connection.query(
            "SELECT t.PROCESSLIST_ID AS id, t.PROCESSLIST_USER AS user, v.VARIABLE_VALUE AS format "
            "FROM performance_schema.variables_by_thread v "
            "JOIN performance_schema.threads t ON t.THREAD_ID = v.THREAD_ID "
            "WHERE v.VARIABLE_NAME = 'binlog_format' AND v.VARIABLE_VALUE <> 'ROW'",
            doing="look at other sessions",
        )
        if rows:
            names = [f"{row.text('user')} ({row.text('id')}, {row.text('format')})" for row in rows]
            yield warning(
                f"sessions log statements, whose changes come without rows: {listed(names)}",
                "make them reconnect; if they set binlog_format themselves, change the program",
                names,
            )
    rows = server.connection.query(
        "SELECT ROUTINE_SCHEMA AS `database`, ROUTINE_NAME AS name FROM information_schema.ROUTINES "
        "WHERE ROUTINE_SCHEMA <> 'sys' AND (ROUTINE_DEFINITION LIKE '%binlog\\_format%' "
        "OR ROUTINE_DEFINITION LIKE '%sql\\_log\\_bin%')",
        doing="look at routines",
    )
    names = [f"{row.text('database')}.{row.text('name')}" for row in rows]
    if "binlog_format" in server.variables.get("init_connect", "") or "sql_log_bin" in server.variables.get(
        "init_connect", ""
    ):
        names.append("init_connect")
    if names:
        yield warning(
            f"binlog_format or sql_log_bin is set by {listed(names)}: what it changes may be missing in the "
            "log",
            "look whether it writes to tables that you want",
            names,
        )


def binlog_row_image(server: Server) -> Iterator[CheckResult]:
    """Look whether rows are logged whole."""
    return checks.binlog_row_image(server.variables)


def binlog_row_metadata(server: Server) -> Iterator[CheckResult]:
    """Look whether the names of columns are in the log."""
    if "binlog_row_metadata" in server.variables:
        yield from checks.binlog_row_metadata(server.variables)
    else:
        yield warning(
            f"this version does not log the names of columns: {checks.NAMES_FROM_DEFINITIONS}",
            "upgrade to MySQL 8.0 or MariaDB 10.5, and set binlog_row_metadata=FULL",
        )


def binlog_row_value_options(server: Server) -> Iterator[CheckResult]:
    """Look whether JSON is logged in parts that need the row before."""
    if "PARTIAL_JSON" not in server.variables.get("binlog_row_value_options", ""):
        return
    image = server.variables.get("binlog_row_image")
    if image == "FULL":
        yield ok("PARTIAL_JSON: put together from the row before, which is logged")
    else:
        yield warning(
            f"PARTIAL_JSON with binlog_row_image={image}: without the row before, JSON columns cannot be put "
            "together",
            advice_to_set("binlog_row_image", "FULL"),
        )


def binlog_checksum(server: Server) -> Iterator[CheckResult]:
    """Look whether damage would be found."""
    value = server.variables.get("binlog_checksum")
    if value in {None, "NONE"}:
        yield warning(
            "events have no checksum: damage on disk or on the way may go unseen",
            advice_to_set("binlog_checksum", "CRC32") if value else "upgrade to MySQL 5.6 or MariaDB 10.2",
        )
    else:
        yield ok(str(value))


def binlog_filters(server: Server) -> Iterator[CheckResult]:
    """Look for databases that are left out of the log."""
    rows = server.connection.first_of(
        "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", doing="ask where the binary log ends"
    )
    row = rows[0] if rows else Row()
    only, without = (row.text(name) if row else "" for name in ("Binlog_Do_DB", "Binlog_Ignore_DB"))
    if only:
        yield warning(f"binlog_do_db: only changes in {only} are logged", "remove it if you want the others")
    if without:
        yield warning(f"binlog_ignore_db: changes in {without} are not logged", "remove it if you want them")


def replicated_changes(server: Server) -> Iterator[CheckResult]:
    """Look whether a server that is a replica itself logs what it gets."""
    if server.is_on("log_slave_updates") or server.is_on("log_replica_updates"):
        return
    advice = (
        "set log_slave_updates (log_replica_updates) in the configuration and restart, or read the primary"
    )
    statements = (
        ("SHOW ALL SLAVES STATUS",) if server.is_mariadb else ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
    )
    try:
        rows = server.connection.first_of(*statements, doing="ask whether the server is a replica")
    except RefusedError:
        yield warning("if this server is a replica, what it gets from its primary is not in its log", advice)
        return
    if rows:
        yield error("this server is a replica, and what it gets from its primary is not in its log", advice)


def gtids(server: Server) -> Iterator[CheckResult]:
    """Look whether transactions have GTIDs that can be relied on."""
    if server.is_mariadb:
        galera = list(checks.galera(server.variables))
        yield from galera
        if server.is_on("gtid_strict_mode"):
            yield ok("of MariaDB, strict")
        elif not galera:
            yield warning(
                "gtid_strict_mode is OFF: servers may log a domain in different orders, and the reader "
                "refuses to continue on another one where that would leave out transactions",
                "docs/how-to/server.md#strict-gtids says when it can be turned on",
            )
        return
    mode = server.variables.get("gtid_mode")
    if mode is None:
        yield warning(
            "this version has no GTIDs: the reader cannot switch to another server",
            "upgrade to MySQL 5.6 or later",
        )
    elif mode != "ON":
        yield from checks.gtid_mode(server.variables)
    else:
        yield ok(f"gtid_mode {mode}")


def durability(server: Server) -> Iterator[CheckResult]:
    """Look whether a crash of the machine may take back what was read."""
    loose = [
        f"{name}={server.variables[name]}"
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit")
        if server.variables.get(name, "1") != "1"
    ]
    if loose:
        yield warning(
            f"{' and '.join(loose)}: when its machine crashes, the server may lose changes that are in the "
            "topics already, and its log then is another one",
            "; ".join(advice_to_set(name.partition("=")[0], "1") for name in loose),
        )
    else:
        yield ok("each commit is on disk before it is read")


def retention(server: Server) -> Iterator[CheckResult]:
    """Look for how long logs are kept: what is purged unread is lost."""
    seconds = _kept_s(server)
    total = server.number("max_binlog_total_size")
    if total:
        yield warning(
            f"max_binlog_total_size is {total // _MIB} MiB: logs are purged by size, however far the reader "
            "is",
            "leave room for the longest outage at the highest rate of writing",
        )
    if seconds is None:
        yield ok("logs are kept until somebody purges them; watch the disk")
    elif seconds < _DAY_S:
        yield warning(
            f"logs are kept for {seconds} s: an outage of the reader or of Kafka that lasts longer loses "
            "changes",
            advice_to_set("binlog_expire_logs_seconds", "604800")
            if "binlog_expire_logs_seconds" in server.variables
            else advice_to_set("expire_logs_days", "7"),
        )
    else:
        yield ok(f"logs are kept for {seconds / _DAY_S:g} days")


def reader_position(server: Server) -> Iterator[CheckResult]:
    """Look whether the log that the reader needs next is still there, and for how long."""
    state = server.state
    if state is None:
        text = f"the reader has not run yet, and begins at {server.start}"
        yield from _first_place(server, server.start, text)
        return
    place = state.place
    if state.reset is not None:
        text = f"the reader was moved from {place}, and starts at {state.reset} the next time"
        yield from _first_place(server, state.reset, text)
        return
    if _is_another(server, state.identity):
        yield from _other_server(server, f"the reader stood at {place} of another server")
        return
    names = [log.name for log in server.logs]
    if state.log_file not in names:
        yield from _other_server(server, f"{state.log_file}, where the reader stands, is no longer there")
        return
    later = server.logs[names.index(state.log_file) :]
    behind = sum(log.size for log in later) - state.position
    kept_s, idle_s = _kept_s(server), time.time() - state.last_timestamp / 1000
    text = f"{place}, {max(behind, 0)} bytes behind"
    if behind < 0:
        yield from _other_server(
            server, f"{state.log_file} ends before {state.position}, where the reader stands"
        )
    elif behind > 0 and kept_s is not None and idle_s > kept_s / 2:
        yield error(
            f"{text}: its last event is {idle_s:.0f} s old, and logs are kept for {kept_s} s",
            "let the reader catch up now, or keep logs for longer until it has",
        )
    else:
        unread = later if state.position < later[0].size else later[1:]
        yield _with_gtids(server, unread[0].name if unread else None, text)


def _with_gtids(server: Server, log_file: str | None, text: str) -> CheckResult:
    """Look whether what is to be read from a file on has GTIDs: with gtid_mode=ON nothing else is sent."""
    names = [log.name for log in server.logs]
    mode = server.variables.get("gtid_mode")
    if server.is_mariadb or mode not in {"ON", "ON_PERMISSIVE"} or log_file not in names:
        return ok(text)
    index = first_with_gtids(server.connection, server.logs)
    if names.index(log_file) >= index:
        return ok(text)
    first = f"{names[index]}:4" if index < len(names) else "latest"
    if mode == "ON_PERMISSIVE":
        return warning(
            f"{text}, and the logs before {first} hold transactions without GTIDs",
            "let the reader pass them before you set gtid_mode=ON, with which the server sends them to no "
            "replica",
        )
    return error(
        f"{text}, and the logs before {first} hold transactions without GTIDs, which a server with "
        "gtid_mode=ON sends to no replica",
        "SET GLOBAL gtid_mode=ON_PERMISSIVE until the reader has passed them, then ON again; or continue "
        f"without them: MILLRACE_START={first}, or 'millrace source reset' where there is a state",
    )


def _first_place(server: Server, start: str, text: str) -> Iterator[CheckResult]:
    """Look whether a reader that has not run yet, or was moved, finds the place that it is to start at."""
    kind, _, rest = start.partition(":")
    log_file = server.logs[0].name if kind == "earliest" and server.logs else None
    if kind == "gtid":
        missing = "" if server.is_mariadb else _purged_but(server, rest)
        if missing:
            yield error(f"{text}: of what follows, this is purged: {missing}", "set MILLRACE_START again")
            return
    elif kind != "time" and rest:
        log_file, _, position = start.rpartition(":")
        size = next((log.size for log in server.logs if log.name == log_file), None)
        if size is None or size < int(position):
            why = f"there is no {log_file}" if size is None else f"{log_file} ends at {size}"
            yield error(f"{text}, but {why}", "set MILLRACE_START to a place that SHOW BINARY LOGS lists")
            return
    yield _with_gtids(server, log_file, text)


def _purged_but(server: Server, gtid_set: str) -> str:
    """Return which transactions that are not in ``gtid_set`` a MySQL has purged."""
    purged = server.variables.get("gtid_purged", "").replace("\n", "")
    row = server.connection.row(
        "SELECT GTID_SUBTRACT(%s, %s) AS missing", [purged, gtid_set], doing="compare GTID sets"
    )
    return row.text("missing").replace("\n", "")


def net_write_timeout(server: Server) -> Iterator[CheckResult]:
    """Ask the server, as the reader does, to wait for a reader that Kafka makes wait."""
    server.connection.query(
        f"SET SESSION net_write_timeout = {WRITE_TIMEOUT_S}", doing="wait for slow writes"
    )
    row = server.connection.row("SELECT @@SESSION.net_write_timeout AS value", doing="read a variable")
    yield ok(f"{row.text('value')} s for the reader, {server.number('net_write_timeout')} s for others")


def max_allowed_packet(server: Server) -> Iterator[CheckResult]:
    """Look whether large events get through."""
    value = server.number("max_allowed_packet") or 0
    if value < _PACKET:
        yield warning(
            f"max_allowed_packet is {value} bytes: the server stops the dump at an event that is larger "
            "(error 1236), and an UPDATE of a large row makes an event of twice its size",
            advice_to_set("max_allowed_packet", "1073741824"),
        )
    else:
        yield ok(f"{value // _MIB} MiB")


def query_texts(server: Server) -> Iterator[CheckResult]:
    """Look whether statements are logged, where rows are to have them."""
    name = "binlog_annotate_row_events" if server.is_mariadb else "binlog_rows_query_log_events"
    if server.include_query and not server.is_on(name):
        yield warning(
            f"MILLRACE_ROWS_INCLUDE_QUERY is true and {name} is OFF: rows will have no source.query",
            advice_to_set(name, "ON"),
        )


def semi_sync(server: Server) -> Iterator[CheckResult]:
    """Look whether every commit waits for the reader, where it must: docs/semi-sync.md tells when."""
    if not server.semi_sync:
        return
    try:
        connected = server.replicas.get(server.server_id) == server.replica_name
    except RefusedError:
        # Then the replicas that the server counts are all that can be told.
        connected = True
    yield from semi_sync_findings(server.connection, connected=connected)


def _other_server(server: Server, text: str) -> Iterator[CheckResult]:
    """Yield whether the reader can continue by GTID."""
    state = server.state
    assert state is not None
    with_gtids = server.is_mariadb or server.variables.get("gtid_mode") == "ON"
    advice = "bring back the log, or start under another MILLRACE_SOURCE; see docs/how-to/fail-over.md"
    if not (state.gtid_set and with_gtids):
        yield error(f"{text}, and without GTIDs it is not known where to continue", advice)
        return
    another = _is_another(server, state.identity)
    read_server_id = state.identity.server_id if another and state.identity else None
    if words := checks.own_gtids(server.variables, read_server_id):
        yield error(f"{text}, and {words}", advice)
        return
    if not server.is_mariadb:
        missing = _purged_but(server, state.gtid_set)
        if missing:
            yield error(
                f"{text}, and transactions that were not read are purged: {missing}",
                "bring back their logs, or start over; see docs/how-to/recover.md",
            )
            return
    if lost := _not_executed(server, state):
        yield error(f"{text}, and its history does not hold {lost}, which was read", advice)
        return
    if server.is_mariadb:
        text += "; its gtid_binlog_state holds all that was read, the order of its log was not compared"
    if server.one_of_several:
        yield ok(f"{text}: it can continue here by GTID")
    else:
        yield warning(f"{text}: the reader continues by GTID, in a new epoch", "nothing, if you expect this")


def _is_another(server: Server, known: LogIdentity | None) -> bool:
    """Return whether the reader read another server, by its own name for itself, or else its number."""
    if known is None:
        return False
    for name, was in (("server_uuid", known.server_uuid), ("server_uid", known.server_uid)):
        if was:
            return was != server.variables.get(name)
    return server.is_mariadb and server.variables.get("server_id") != str(known.server_id)


def _not_executed(server: Server, state: ReaderState) -> str:
    """Return which of the transactions that were read the server does not have."""
    doing = "compare GTID sets"
    if server.is_mariadb:
        row = server.connection.row("SELECT @@GLOBAL.gtid_binlog_state AS held", doing=doing)
        read = state.gtid_set if state.binlog_state is None else state.binlog_state
        held = MariadbBinlogState.parse(row.text("held"))
        return ",".join(map(str, held.lacking(MariadbBinlogState.parse(read))))
    row = server.connection.row(
        "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed) AS missing", [state.gtid_set], doing=doing
    )
    return row.text("missing").replace("\n", "")


def _kept_s(server: Server) -> int | None:
    """Return for how many seconds logs are kept; None forever."""
    if server.variables.get("binlog_expire_logs_auto_purge") == "OFF":
        return None
    seconds = server.number("binlog_expire_logs_seconds")
    if seconds:
        return seconds
    return int((server.amount("expire_logs_days") or 0) * _DAY_S) or None


CHECKS: Final = (
    log_bin,
    binlog_format,
    sessions,
    binlog_row_image,
    binlog_row_metadata,
    binlog_row_value_options,
    binlog_checksum,
    binlog_filters,
    replicated_changes,
    gtids,
    durability,
    retention,
    reader_position,
    net_write_timeout,
    max_allowed_packet,
    query_texts,
    semi_sync,
)
"""In the order of a log's life: that it is written, what is in it, how long it stays, how it is sent."""
