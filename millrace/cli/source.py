"""``millrace source``: what is done to a source as a whole, on purpose.

``reset`` moves the reader to another place in its log, forwards or back. It writes into the reader's state
where to start the next time, and no more: the reader finds that place as it finds MILLRACE_START, opens a
new epoch there and marks it with a gap record, so that consumers see that the log does not continue.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import click

from millrace.avro.service_state import ReaderState, stored_state
from millrace.binlog.errors import BinlogError
from millrace.binlog.header import FIRST_POSITION
from millrace.cli import SuggestingGroup
from millrace.cli.frame import check_topics, command_settings, errors_in_words, kafka_option
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.errors import FencedError
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import decoded_state, held_range, last_record
from millrace.kafka.topics import topic_ids
from millrace.log_files import file_order
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import RetriableError
from millrace.mysql.status import LogFile, binary_logs, log_status
from millrace.reader.gtids import GtidProgress
from millrace.reader.history import missing
from millrace.reader.settings import ReaderSettings, checked_start
from millrace.reader.start_position import seconds_of
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.text import printable


@click.group("source", cls=SuggestingGroup)
def source() -> None:
    """Do something to a source as a whole."""


@source.command("reset")
@click.argument("name")
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="Where to start: earliest, latest, FILE:POSITION, gtid:SET or time:2026-01-31T12:00:00Z.",
)
@kafka_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(*, name: str, to: str, yes: bool) -> None:
    """Have the reader of a source start at another place the next time, in a new epoch.

    What lies between the place where it stands and the new one is left out, or read a second time. Settings
    are the reader's own. It need not run; one that does is fenced, and continues at the new place.
    """
    configure_logging("CRITICAL")  # who is fenced is said in the error
    with errors_in_words():
        settings = command_settings(ReaderSettings, source=name)
        _check(settings, to)
        topics = Topics(settings.source)
        check_topics(settings, topics.state)
        state = _state(settings)
        if state.log_file:
            _say(f"{name} stands at {state.place.with_epoch()}, and is to start at {to}")
        else:
            epoch = state.epoch + 1
            _say(f"the position of {name} was lost; it is to start at {to}, in epoch {epoch}")
        for line in _effects(settings, state, to) if state.log_file else ():
            _say(line)
        if state.open_gtid is not None:
            _say(f"transaction {state.open_gtid} was read in part: that part is marked as abandoned")
        if not yes:
            click.confirm("Move it?", abort=True)
        try:
            in_place_of_service(lambda: _write(settings, topics, to))
        except FencedError as error:
            raise UserError(
                f"{error.message}. Run this again, before a reader is started", ExitCode.FENCED
            ) from error
        _say("done; a reader that runs continues there")


def _check(settings: ReaderSettings, to: str) -> None:
    try:
        checked_start(to)
        if to.startswith("gtid:"):
            GtidProgress(to.removeprefix("gtid:"))
    except (ValueError, BinlogError) as error:
        raise UserError(f"--to is wrong: {error}", ExitCode.SETTINGS) from None
    if settings.files and to.startswith("gtid:"):
        raise UserError(
            "--to is wrong: files can be read from earliest, latest, FILE:POSITION or a time",
            ExitCode.SETTINGS,
        )


def _say(text: str) -> None:
    click.echo(printable(text))


def _state(settings: ReaderSettings) -> ReaderState:
    state = decoded_state(settings.kafka, settings.source, "reader", ReaderState)
    return _state_of_none(settings) if state is None else state


def _state_of_none(settings: ReaderSettings) -> ReaderState:
    """Return a state before a new epoch, where the state and all raw records are lost.

    Each epoch but the first begins with a record, so that none is as high as the topic's end. Raises
    UserError where the reader never ran, or raw records say where it stood.
    """
    source, raw = settings.source, Topics(settings.source).raw
    held = held_range(settings.kafka, raw) if topic_ids(connect(settings.kafka), [raw]) else range(0)
    if held.start == 0:
        raise UserError(
            f"the reader of {source} has no state, so it starts at MILLRACE_START",
            ExitCode.SETTINGS,
        )
    if last_record(settings.kafka, raw) is not None:
        raise UserError(
            f"the reader of {source} has no state, but {raw} holds records: 'millrace state rebuild reader "
            f"--source {source}' makes the state from them",
            ExitCode.DATA,
        )
    return ReaderState(held.stop, "", 0)


def _write(settings: ReaderSettings, topics: Topics, to: str) -> None:
    """Fence the reader, and write into the state that it has by then where to start."""
    at_once = Event()
    at_once.set()
    with TransactionalProducer(
        settings.kafka, settings.source, "reader", stop=at_once, role="source reset"
    ) as producer:
        (stored,) = producer.open()
        state = stored_state(ReaderState, None if stored is None else stored.value, topics.state)
        state = _state_of_none(settings) if state is None else state
        guard = ContinuityGuard(settings.kafka, connect(settings.kafka), Topics(settings.source), "reader")
        producer.commit(replace(state, reset=to, continuity=guard.adopt()).to_bytes())


# -- what it comes to -------------------------------------------------------------------------------


def _effects(settings: ReaderSettings, state: ReaderState, to: str) -> Iterator[str]:
    """Say what is left out, and what is read a second time; raise where the server has no such place."""
    kind, _, rest = to.partition(":")
    if kind == "gtid":
        yield from _by_gtid(state, rest)
    elif kind == "time":
        yield from _by_time(state, rest)
    elif settings.files:
        yield "what lies between the two places is left out, or read a second time if it goes back"
    else:
        yield from _by_position(settings.mysql.addresses(), state, to)


def _by_gtid(state: ReaderState, gtids: str) -> Iterator[str]:
    if not state.gtid_set:
        yield "no GTIDs were read so far, so that it is not known what is left out or read a second time"
        return
    try:
        left_out, twice = missing(state.gtid_set, gtids), missing(gtids, state.gtid_set)
    except BinlogError:
        raise UserError(
            f"--to is wrong: {gtids} is of another kind of server than {state.gtid_set}, which was read",
            ExitCode.SETTINGS,
        ) from None
    if left_out:
        yield f"left out: transactions {left_out}, which were not read: their changes go to no topic"
    if twice:
        yield f"read a second time: transactions {twice}, as far as the server still has them"


def _by_time(state: ReaderState, text: str) -> Iterator[str]:
    if seconds_of(text) * 1000 > state.last_timestamp:
        yield f"left out: what was committed before {text} and was not read: it goes to no topic"
    else:
        yield f"read a second time: what was committed at {text} or later, as far as the server still has it"


def _by_position(addresses: Sequence[MysqlAddress], state: ReaderState, to: str) -> Iterator[str]:
    for address in addresses:
        try:
            with MysqlConnection(address) as connection:
                logs, end = binary_logs(connection), log_status(connection)
        except RetriableError as error:
            yield f"{error}"
            continue
        if not logs:
            raise UserError(f"{address} has no binary logs", ExitCode.SOURCE)
        if to == "earliest":
            file, position = logs[0].name, FIRST_POSITION
        elif to == "latest":
            file, position = end.log_file, end.position
        else:
            file, _, number = to.rpartition(":")
            position = int(number)
        yield _between(address, logs, state, file, position)
        return
    yield "as no server can be asked, it is not known what is left out or read a second time"


def _between(
    address: MysqlAddress, logs: Sequence[LogFile], state: ReaderState, file: str, position: int
) -> str:
    """Compare the place where the reader stands with the new one."""
    sizes = {log.name: log.size for log in logs}
    if file not in sizes or position > sizes[file]:
        listed = f"is not among {logs[0].name} to {logs[-1].name}"
        why = f"ends at {sizes[file]}" if file in sizes else listed
        raise UserError(f"{address}: {file} {why}; nothing was changed", ExitCode.SETTINGS)
    here, new = state.place, f"{file}:{position}"
    if state.log_file not in sizes:
        forwards = file_order(Path(state.log_file)) < file_order(Path(file))
        what = "left out" if forwards else "left out, or read a second time"
        return f"{what}: what lies between {here}, whose file {address} no longer has, and {new}"
    begins = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    count = begins[file] + position - begins[state.log_file] - state.position
    if count > 0:
        return f"left out: {count:,} bytes of the log, from {here} to {new}: their changes go to no topic"
    if count < 0:
        return (
            f"read a second time: {-count:,} bytes of the log, from {new} to {here}: their changes come into "
            "all topics again"
        )
    return f"nothing is left out or read a second time: {new} is where it stands"
