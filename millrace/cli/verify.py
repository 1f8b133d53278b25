"""The command ``millrace verify``: raw, rows."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from millrace.avro.service_state import RowMapperState
from millrace.binlog.names import folded
from millrace.cli import SuggestingGroup
from millrace.cli.frame import (
    check_topics,
    command_settings,
    errors_in_words,
    source_option,
    topic_options,
)
from millrace.contract import Topics, first_version, is_of_rows
from millrace.ddl import Server
from millrace.kafka.client import connect
from millrace.kafka.read import source_topics
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.state import decoded_state, newest_offset
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.server_log import ServerAddress, ServerLog, is_server
from millrace.mysql.settings import MysqlSettings
from millrace.rowmapper.selection import Selection
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import ServiceSettings
from millrace.selection.rows import kind_of
from millrace.text import printable
from millrace.verify.history import History
from millrace.verify.raw import LogBytes, compare_raw, folder_log, topic_pieces
from millrace.verify.snapshot import later_transactions, reader_place, take_snapshot, wait_until_mapped
from millrace.verify.tables import (
    Column,
    Comparison,
    Part,
    Records,
    TableNames,
    compare_tables,
    names_by_database,
)

_DIFFERENT: Final = 1


def _say(text: str, *, err: bool = False) -> None:
    """Print a line; names and values in it are other people's."""
    click.echo(printable(text), err=err)


class _Settings(ServiceSettings):
    """What the services are told."""

    mysql: MysqlSettings = MysqlSettings()


class _RowsSettings(RowMapperSettings):
    """Those of the row mapper, whose selection counts, and how the server is reached."""

    mysql: MysqlSettings = MysqlSettings()


@click.group("verify", cls=SuggestingGroup)
def verify() -> None:
    """Compare topics with what they were made from; the exit code is 1 where they differ."""


@verify.command("raw")
@source_option
@topic_options
@click.argument("log", required=False)
@click.option("--epoch", type=click.IntRange(0), help="Which epoch of the topic; the latest without it.")
def raw(*, log: str | None, epoch: int | None) -> None:
    """Compare the raw topic with the server's log, byte for byte, and say where the first difference is.

    LOG is a folder with log files, or a server: mysql://user:password@host:port, which sends its log as to a
    replica. Without it the server of MILLRACE_MYSQL_… is asked.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(_Settings)
        check_topics(settings, Topics(settings.source).raw, Topics(settings.source).state)
        wanted = reader_place(settings.kafka, Topics(settings.source)).epoch if epoch is None else epoch
        read = _server_log(_address(settings, log)) if log is None or is_server(log) else _folder_log(log)
        others: set[int] = set()
        outcome = compare_raw(topic_pieces(settings.kafka, settings.source, wanted, others), read)
        topic = Topics(settings.source).raw
        if outcome.difference is not None:
            _say(f"{topic}, epoch {wanted}: DIFFERENT: {outcome.difference}")
            sys.exit(_DIFFERENT)
        left_out = []
        if outcome.excluded:
            left_out.append(f"{outcome.excluded:,} bytes that MILLRACE_TOPICS_RAW_EXCLUDE leaves out")
        if outcome.goes_on:
            left_out.append("the log after that, which is not in the topic yet")
        if others:
            left_out.append(f"the other epochs of the topic, {', '.join(map(str, sorted(others)))}")
        if not outcome.bytes:
            raise UserError(f"{topic} holds no events of epoch {wanted}", ExitCode.SETTINGS)
        _say(
            f"{topic}, epoch {wanted}: equal: {outcome.bytes:,} bytes of {len(outcome.files)} files, from "
            f"{outcome.first} to {outcome.last}" + "; not compared: " * bool(left_out) + "; ".join(left_out)
        )


def _folder_log(log: str) -> Callable[[str, int], Iterator[LogBytes]]:
    folder = Path(log)
    if not folder.is_dir():
        raise UserError(
            f"{log} is neither a folder with log files nor mysql://user:password@host:port",
            ExitCode.SETTINGS,
        )
    return folder_log(folder)


def _server_log(address: MysqlAddress) -> Callable[[str, int], Iterator[LogBytes]]:
    server = ServerLog(address)

    def read(file: str, position: int) -> Iterator[LogBytes]:
        names = [log.name for log in server.binary_logs()]
        if file not in names:
            raise UserError(
                f"{address} no longer has {file}, where the topic begins; it has {names[0]} to "
                f"{names[-1]}: compare with a folder that has a copy of it",
                ExitCode.SOURCE,
            )
        at, event, passed = "", 0, 0
        for name, start, piece in server.pieces(file, position):
            if piece.first or (name, start) != (at, event):
                at, event, passed = name, start, 0
            yield LogBytes(name, start + passed, piece.data, start)
            passed += len(piece.data)

    return read


def _address(settings: _Settings | _RowsSettings, log: str | None) -> MysqlAddress:
    if log is not None:
        return ServerAddress.parse(log).mysql
    if settings.mysql.host is None:
        raise SettingsError(["no server is named: set MILLRACE_MYSQL_HOST, or name it as mysql://…"])
    return settings.mysql.address()


@verify.command("rows")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
@click.option("--server", help="The server, mysql://user:password@host:port. [MILLRACE_MYSQL_…]")
@click.option("--idle", is_flag=True, help="Nobody writes: take no lock for the moment of the snapshot.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=300,
    show_default=True,
    help="Seconds to wait for the services to reach the moment of the snapshot.",
)
def rows(*, tables: tuple[str, ...], server: str | None, idle: bool, wait_s: float) -> None:
    """Compare row topics with SELECT *, and say by key and column where the first difference is.

    Without a name all tables are compared that the user may SELECT; rows of one without a topic are missing.
    What is not compared is said: tables, columns and rows that settings leave out. The server may be written
    to meanwhile: the tables are read in one consistent snapshot, and the topics folded up to its position.

    The user needs SELECT on the tables; in MySQL also REPLICATION CLIENT ON *.*, and without --idle RELOAD ON
    *.*, to hold all writes for the moment of the snapshot.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(_RowsSettings)
        topics = settings.names
        check_topics(settings, topics.events, topics.transactions, topics.state)
        equal = True
        with (
            open_schemas(settings.kafka, settings.registry, settings.source) as registry,
            MysqlConnection(_address(settings, server)) as connection,
        ):
            selection = Selection(settings)
            read_history = partial(
                History.read,
                settings.kafka,
                topics,
                Records(registry).value_of,
                Server.parse(connection.version),
            )
            listed = names_by_database(connection)
            if not listed:
                raise _nothing_to_compare()
            start = newest_offset(settings.kafka, topics.transactions)
            file, position = take_snapshot(connection, idle=idle)
            place = wait_until_mapped(
                settings.kafka,
                topics,
                file,
                position,
                timeout_s=wait_s,
                say=partial(_say, err=True),
            )
            later = partial(later_transactions, settings.kafka, registry, settings.source, start, place)
            state = decoded_state(settings.kafka, settings.source, "rowmapper", RowMapperState)
            history = read_history(until=place, state=state)
            chosen, skipped = _chosen(settings, selection, listed, tables, history)
            for database, names in chosen.items():
                for found in compare_tables(
                    connection,
                    settings.kafka,
                    registry,
                    source=settings.source,
                    database=database,
                    tables=names,
                    later=later,
                    part_of=partial(_part, selection, database),
                    history=history,
                    topic_of=partial(_topic, settings.source, selection),
                    options=settings.rows.avro,
                ):
                    equal = equal and found.equal
                    _tell(found)
            for name in () if tables else _only_waiting(listed, selection, history, chosen):
                equal = False
                _say(f"{name}: not compared: rows of it wait in the dead letter topic")
        verdict = "equal" if equal else "DIFFERENT"
        left = f"; not compared: {skipped:,} named above" * bool(skipped)
        _say(f"as of {place}, epoch {place.epoch}: {verdict}{left}")
        if not equal:
            sys.exit(_DIFFERENT)


def _pairs(tables: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    return ((database, table) for database, found in tables.items() for table in found)


def _only_waiting(
    listed: Mapping[str, TableNames],
    selection: Selection,
    history: History,
    chosen: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """Yield the tables that have waiting rows and were not compared, such as those without a topic."""
    left = history.waiting().keys() - set(_pairs(chosen))
    for database, names in listed.items():
        for table in names.tables:
            if (database, table) in left and selection.selects(database, table):
                yield f"{database}.{table}"


def _tell(found: Comparison) -> None:
    name = f"{found.database}.{found.table}"
    counts = f"{found.records:,} records, {found.rows:,} rows"
    if found.equal:
        _say(f"{name}: {counts}: equal" + ", as far as the log goes" * bool(found.untold))
    else:
        _say(f"{name}: {counts}: DIFFERENT, {found.missing:,} rows missing, {found.surplus:,} too many")
        if found.first is not None:
            _say(f"  first: {found.first}")
        elif not found.has_topic and not found.lacks.of_table:
            _say(f"  it has no topic: nothing has read its rows; 'millrace snapshot {name}' does")
    for text in found.lacks:
        _say(f"  {text}")
    if found.lacks.statements:
        _say(f"  'millrace snapshot {name}' reads the rows that they left")
    for rows in found.untold:
        _say(f"  not told by the log: {rows}")


def _topic(source: str, selection: Selection, database: str, table: str) -> str:
    return Topics(source).table(*selection.topic_of(database, table))


def _part(selection: Selection, database: str, table: str, columns: Sequence[Column]) -> Part:
    """Say what of a table its topic has, and what cannot be compared."""
    hidden = selection.hidden(database, table, [column.name for column in columns])
    if hidden:
        _say(
            f"{database}.{table}: not compared: {', '.join(hidden)}, which MILLRACE_COLUMNS_… hides", err=True
        )
    kinds = {folded(column.name): kind_of(column.data_type) for column in columns}
    return Part(frozenset(hidden), selection.condition(database, table, kinds))


def _comparable(
    source: str, selection: Selection, listed: Mapping[str, TableNames], history: History
) -> tuple[dict[str, list[str]], dict[str, str], set[str]]:
    """Return the tables that can be compared, by database, why others cannot, and the topics of all.

    The rows of a table that was renamed may all lie in the topic of its earlier name.
    """
    topic_of = partial(_topic, source, selection)
    owners: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    passed: set[str] = set()
    skipped: dict[str, str] = {}
    for database, names in listed.items():
        for table in names.tables:
            passed |= history.of_table(database, table, ()).topics(topic_of).keys()
            if selection.selects(database, table):
                owners[topic_of(database, table)].append((database, table))
            else:
                reason = "MILLRACE_REPLICATE_… or MILLRACE_TOPICS_RAW_EXCLUDE leaves it out"
                skipped[f"{database}.{table}"] = reason
        for sequence in names.sequences:
            passed.add(topic_of(database, sequence))
            skipped[f"{database}.{sequence}"] = "it is a sequence"
    known: dict[str, list[str]] = {}
    for topic, tables in owners.items():
        for database, table in tables:
            if len(tables) > 1:
                skipped[f"{database}.{table}"] = f"{topic} is shared with other tables"
            elif not selection.is_whole(database, table):
                skipped[f"{database}.{table}"] = "MILLRACE_REPLICATE_… leaves changes out"
            else:
                known.setdefault(database, []).append(table)
    return known, skipped, passed


def _nothing_to_compare() -> UserError:
    return UserError(
        "nothing to compare: this user of the server may SELECT from no table that the row mapper publishes",
        ExitCode.SETTINGS,
    )


def _chosen(
    settings: ServiceSettings,
    selection: Selection,
    listed: Mapping[str, TableNames],
    names: Sequence[str],
    history: History,
) -> tuple[dict[str, list[str]], int]:
    """Return the tables to compare, by database, those that are named or all, and how many are left out."""
    known, skipped, seen = _comparable(settings.source, selection, listed, history)
    if names:
        full = {f"{database}.{table}": (database, table) for database, table in _pairs(known)}
        for name in names:
            if name not in full:
                reason = skipped.get(name, "there is no such table, or its user may not SELECT from it")
                raise UserError(f"{name} cannot be compared: {reason}", ExitCode.SETTINGS)
        chosen: dict[str, list[str]] = {}
        for database, table in map(full.__getitem__, names):
            chosen.setdefault(database, []).append(table)
        return chosen, 0
    topics = {
        first_version(name)
        for name in source_topics(connect(settings.kafka), settings.source)
        if is_of_rows(name)
    }
    for topic in sorted(topics - seen):
        skipped[topic] = "there is no such table, or its user may not SELECT from it"
    for name, reason in skipped.items():
        _say(f"{name}: not compared: {reason}", err=True)
    if not known:
        raise _nothing_to_compare()
    return known, len(skipped)
