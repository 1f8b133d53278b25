"""``millrace binlog``: the command itself, from its options to its exit code."""

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, cast

import click

from millrace import __version__
from millrace.binlog.errors import BinlogError
from millrace.binlog.file import MAX_EVENT_SIZE
from millrace.binlog_command.criteria import Criteria
from millrace.binlog_command.filters import Filter
from millrace.binlog_command.inputs import FileInput, find_files
from millrace.binlog_command.key_file import read_keys
from millrace.binlog_command.options import (
    CHARSET,
    EVENT_TYPE,
    GTIDS,
    IDS,
    OPERATIONS,
    POSITION,
    SIZE,
    TIME,
    GroupedCommand,
    Options,
    option,
)
from millrace.binlog_command.records import (
    MAX_UNPACKED_ROWS,
    LogDecoder,
    LogRecord,
    Output,
    RawEvent,
    unpacked_limit,
)
from millrace.binlog_command.remote import is_remote, of_servers, server_address
from millrace.binlog_command.seeking import Seeker, placed_head
from millrace.binlog_command.terminal import (
    Buffer,
    coloured,
    deliver,
    note,
    progress,
    shown,
    tell,
    use_colour,
    use_pager,
)
from millrace.binlog_command.tool_options import ASK
from millrace.mysql.address import SslMode
from millrace.mysql.errors import SourceError
from millrace.runtime.config_option import CONFIG
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_FAILED: Final = 1
_INTERRUPTED: Final = 130

_OF_FLASHBACK: Final = ("--verbose", "--rewrite-db")

_OUTPUT = "Output (SQL text as mysqlbinlog writes it, unless one of these is given)"
_TEXT = "Text"
_EVENTS = "Which events"
_INPUT = "Input"
_SERVER = "Server"
_SCREEN = "Screen"

_EXAMPLES: Final = (
    ("Read a log, with the rows as comments", "millrace binlog -v binlog.000042"),
    ("What fills the logs? Compressed ones too", "millrace binlog --stats binlog.0000*.gz"),
    (
        "Deletes from one table, for jq",
        "millrace binlog --json --table shop.orders --op delete binlog.000042 | jq .rows",
    ),
    (
        "Undo what a transaction did",
        "millrace binlog --flashback --transaction 0-1-2305 mariadb-bin.000042 | mariadb",
    ),
    ("Is a backup intact?", "millrace binlog --verify /backup/binlog.index"),
    ("Watch a server", "millrace binlog -vv --follow mysql://repl@db1/binlog.000042"),
    (
        "Copy all its logs, and resume where the last run stopped",
        "millrace binlog --raw --result-file /backup/ --follow mysql://repl@db1/",
    ),
    ("Read what the reader wrote to Kafka", "millrace binlog kafka://localhost:9092/shop"),
)


class Input(Protocol):
    """Where events come from."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all that will be read, 0 where that is not known."""

    @property
    def done_bytes(self) -> int:
        """Bytes that have been read."""

    @property
    def last_path(self) -> str:
        """Path of the last log that will be read, as far as is known."""

    def logs(self) -> Iterator[Iterator[list[RawEvent]]]:
        """Return the logs, each as its events, in batches as they come."""


@click.command(
    "binlog",
    cls=GroupedCommand,
    examples=_EXAMPLES,
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", "-V", prog_name="millrace binlog")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@option(_OUTPUT, "--json", is_flag=True, help="One JSON object per event, a line each.")
@option(
    _OUTPUT,
    "--stats",
    is_flag=True,
    help="Events, rows and bytes by type, table and operation, and the extreme transactions; "
    "with --json as one object.",
)
@option(_OUTPUT, "--verify", is_flag=True, help="Check the logs: a line per finding; exit code 1 if any.")
@option(_OUTPUT, "--flashback", "-B", is_flag=True, help="SQL that undoes the row changes, newest first.")
@option(_OUTPUT, "--raw", is_flag=True, help="Copy a server's log files as they are, with resume.")
@option(
    _OUTPUT,
    "--result-file",
    "-r",
    metavar="FILE",
    help="Write to FILE; with --raw the folder, or the beginning of the names, of the copies.",
)
@option(_TEXT, "--verbose", "-v", count=True, help="Rows as comments; -vv with types and statements.")
@option(
    _TEXT,
    "--base64-output",
    type=click.Choice(["auto", "never", "decode-rows"], case_sensitive=False),
    default="auto",
    help="BINLOG statements where they are needed; an error instead; or none for rows.",
)
@option(_TEXT, "--hexdump", "-H", is_flag=True, help="The bytes of each event, in comments.")
@option(_TEXT, "--short-form", "-s", is_flag=True, help="The statements alone.")
@option(_TEXT, "--skip-gtids", is_flag=True, help="No SET GTID_NEXT: the server assigns its own GTIDs.")
@option(_TEXT, "--disable-log-bin", "-D", is_flag=True, help="SET SQL_LOG_BIN=0 around all.")
@option(_TEXT, "--set-charset", type=CHARSET, help="SET NAMES at the beginning.")
@option(_TEXT, "--idempotent", "-i", is_flag=True, help="SET RBR_EXEC_MODE=IDEMPOTENT around all.")
@option(
    _TEXT,
    "--require-row-format",
    is_flag=True,
    help="An error for statements that change rows; SET REQUIRE_ROW_FORMAT=1.",
)
@option(_TEXT, "--print-table-metadata", is_flag=True, help="Columns and primary keys with the table maps.")
@option(
    _TEXT,
    "--print-row-count/--skip-print-row-count",
    default=True,
    help="Whether MariaDB's text counts rows (the default).",
)
@option(
    _TEXT,
    "--print-row-event-positions/--skip-print-row-event-positions",
    default=True,
    help="Whether MariaDB's text has the positions of events (the default).",
)
@option(_TEXT, "--skip-annotate-row-events", is_flag=True, help="MariaDB's text without annotations.")
@option(_TEXT, "--rewrite-db", multiple=True, metavar="'OLD->NEW'", help="Rename a database; repeatable.")
@option(_TEXT, "--local-load", "-l", metavar="FOLDER", help="Where the files of LOAD DATA are put.")
@option(
    _EVENTS,
    "--start-position",
    "-j",
    type=POSITION,
    help="Begin at a position, of the first log unless one is named; or after GTIDs of MariaDB.",
)
@option(
    _EVENTS,
    "--stop-position",
    type=POSITION,
    help="Stop before a position, of the last log unless one is named; or after GTIDs of MariaDB.",
)
@option(_EVENTS, "--offset", "-o", type=click.IntRange(0), default=0, help="Leave out the first events.")
@option(
    _EVENTS,
    "--start-datetime",
    type=TIME,
    help="Begin at the first event of this time or later: 'YYYY-MM-DD hh:mm:ss', local, or epoch seconds.",
)
@option(_EVENTS, "--stop-datetime", type=TIME, help="Stop at the first event of this time or later.")
@option(
    _EVENTS,
    "--include-gtids",
    type=GTIDS,
    help="Only these transactions: uuid:1-5, uuid:tag:7; of MariaDB 0-1-100 or 0-1-100-200.",
)
@option(_EVENTS, "--exclude-gtids", type=GTIDS, help="No transactions of this set.")
@option(
    _EVENTS,
    "--transaction",
    metavar="ID",
    help="One transaction: its GTID, or file:position of its first event.",
)
@option(
    _EVENTS,
    "--database",
    "-d",
    multiple=True,
    metavar="NAME",
    help="Rows in this database, statements with it as default; * and ? as wildcards; repeatable.",
)
@option(
    _EVENTS,
    "--table",
    "-T",
    multiple=True,
    metavar="[DB.]NAME",
    help="Rows and DDL of this table; * and ? as wildcards; repeatable.",
)
@option(
    _EVENTS,
    "--op",
    "operation",
    multiple=True,
    type=OPERATIONS,
    help="Rows that were inserted, updated, deleted, and statements that do so; commas between; repeatable.",
)
@option(
    _EVENTS,
    "--server-id",
    "--do-server-ids",
    "server_id",
    multiple=True,
    type=IDS,
    help="Events that began on this server; commas between; repeatable.",
)
@option(_EVENTS, "--ignore-server-ids", multiple=True, type=IDS, help="No events that began on this server.")
@option(_EVENTS, "--do-domain-ids", multiple=True, type=IDS, help="Only transactions of MariaDB's domain.")
@option(_EVENTS, "--ignore-domain-ids", multiple=True, type=IDS, help="No transactions of MariaDB's domain.")
@option(
    _EVENTS,
    "--type",
    "event_type",
    multiple=True,
    type=EVENT_TYPE,
    help="Events of this type, by name or number; repeatable.",
)
@option(_INPUT, "--follow", "--stop-never", is_flag=True, help="Wait at the end for what is written next.")
@option(_INPUT, "--to-last-log", "-t", is_flag=True, help="Read a server's logs after the named one as well.")
@option(
    _INPUT,
    "--after-gtids",
    metavar="SET",
    help="Make a server send what comes after a GTID set, or position.",
)
@option(_INPUT, "--config", **CONFIG)
@option(
    _SERVER,
    "--read-from-remote-server",
    "-R",
    is_flag=True,
    help="LOG is a log of the server at --host, as with mysql://.",
)
@option(
    _SERVER,
    "--read-from-remote-source",
    type=click.Choice(["BINLOG-DUMP-NON-GTIDS", "BINLOG-DUMP-GTIDS"], case_sensitive=False),
    help="The same.",
)
@option(_SERVER, "--host", "-h", metavar="NAME", help="The server's host. [localhost]")
@option(_SERVER, "--port", "-P", type=click.IntRange(0, 65535), help="Its port. [3306]")
@option(_SERVER, "--socket", "-S", metavar="FILE", help="Its Unix socket.")
@option(
    _SERVER,
    "--protocol",
    type=click.Choice(["tcp", "socket"], case_sensitive=False),
    help="TCP also for localhost; or a socket.",
)
@option(_SERVER, "--user", "-u", metavar="NAME", help="The user. [or MILLRACE_MYSQL_USER]")
@option(
    _SERVER,
    "--password",
    "-p",
    is_flag=False,
    flag_value=ASK,
    metavar="[=PASSWORD]",
    help="The password; without one it is asked for. [or MILLRACE_MYSQL_PASSWORD]",
)
@option(
    _SERVER,
    "--ssl-mode",
    type=click.Choice([mode.value for mode in SslMode], case_sensitive=False),
    help="How TLS is used. [VERIFY_IDENTITY with --ssl-ca, else PREFERRED]",
)
@option(_SERVER, "--ssl/--skip-ssl", default=None, help="--ssl-mode=REQUIRED, or DISABLED.")
@option(_SERVER, "--ssl-ca", metavar="FILE", help="The CA certificates that sign the server's.")
@option(_SERVER, "--ssl-cert", metavar="FILE", help="Our certificate.")
@option(_SERVER, "--ssl-key", metavar="FILE", help="Our private key.")
@option(
    _SERVER,
    "--ssl-verify-server-cert/--skip-ssl-verify-server-cert",
    default=None,
    help="--ssl-mode=VERIFY_IDENTITY, or not.",
)
@option(_SERVER, "--get-server-public-key", is_flag=True, help="Take the server's RSA key on trust.")
@option(_SERVER, "--server-public-key-path", metavar="FILE", help="The server's RSA key.")
@option(
    _SERVER,
    "--connection-server-id",
    type=click.IntRange(1, 0xFFFFFFFF),
    help="Our server id as a replica. [a number of our own]",
)
@option(
    _INPUT, "--key-file", metavar="FILE", help="Keys of encrypted log files, a line each: id;hexadecimal key."
)
@option(
    _INPUT,
    "--key-cipher",
    type=click.Choice(["AES_CBC", "AES_CTR"]),
    help="MariaDB's file_key_management_encryption_algorithm; found out if it is not given.",
)
@option(
    _INPUT,
    "--max-event-size",
    type=SIZE,
    help="Largest event, in bytes or with K, M, G. [1G where it is sent; where it is unpacked 16M, "
    "or 16 times what it is packed into]",
)
@option(
    _INPUT,
    "--verify-binlog-checksum/--no-verify-binlog-checksum",
    "-c",
    default=True,
    help="Whether a wrong checksum is an error (the default).",
)
@option(
    _INPUT,
    "--force-if-open/--no-force-if-open",
    "-F",
    default=True,
    help="Whether a log that was not closed is read (the default).",
)
@option(
    _INPUT,
    "--force-read",
    "-f",
    is_flag=True,
    help="Continue after events that cannot be read, or, with --flashback, undone.",
)
@option(
    _SCREEN,
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colours; auto: on a terminal, unless NO_COLOR is set.",
)
@option(_SCREEN, "--pager/--no-pager", default=True, help="Whether text is paged on a terminal.")
def binlog(logs: tuple[str, ...], **given: Any) -> None:
    """Look into binary logs of MySQL and MariaDB: text, JSON, statistics, checks, copies.

    \b
    LOG is
      a log file or relay log of any version, also compressed (gzip, zstd);
      an index file or a folder for the files that it lists or holds; - for standard input;
      mysql://user:password@host:port/ for all logs of a server, with a file's name after it for one;
      kafka://host:port/SOURCE for what the reader has written to SOURCE.raw.
    """  # noqa: D301 - click's mark for lines that stay as they are
    options = Options(**given)
    _check(options, logs)
    try:
        sys.exit(_run(options, logs))
    except BrokenPipeError:
        _forget_output()  # whoever read this has seen enough
        sys.exit(0)
    except OSError as error:
        tell(f"{error.filename or 'the output'} cannot be written: {error.strerror or error}")
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        _forget_output()
        sys.exit(_INTERRUPTED)
    except UserError as error:
        for line in error.lines:
            tell(line)
        sys.exit(error.exit_code)
    except SourceError as error:
        tell(str(error))
        sys.exit(ExitCode.SOURCE)


def _forget_output() -> None:
    """Write what is still buffered, unless nobody reads it any more, which must not be told at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(options: Options, logs: tuple[str, ...]) -> None:
    """Refuse options that contradict each other."""
    modes = [name for name in ("stats", "verify", "flashback", "raw") if getattr(options, name)]
    if options.json and modes != ["stats"]:
        modes.append("json")
    if len(modes) > 1:
        raise click.UsageError(f"--{modes[0]} and --{modes[1]} exclude each other")
    if (options.verify or options.raw) and options.criteria() != Criteria():
        raise click.UsageError(f"--{modes[0]} works on whole logs, without filters")
    remote = is_remote(options)
    if remote and any(_is_server(name) or name.startswith("kafka://") for name in logs):
        raise click.UsageError(
            "with --read-from-remote-server LOG is the name of a log, such as binlog.000042"
        )
    if options.raw and not remote and (len(logs) != 1 or not _is_server(logs[0])):
        raise click.UsageError("--raw copies from one server: mysql://user@host:port/LOGFILE")
    if options.raw and options.after_gtids is not None:
        raise click.UsageError("--raw copies whole logs, without --after-gtids")
    if options.flashback and options.follow:
        raise click.UsageError("--flashback starts at the end of the log, and --follow has none")
    for name in _of_text(options):
        if modes and (modes[0] != "flashback" or name not in _OF_FLASHBACK):
            raise click.UsageError(f"{name} is for SQL text, not for --{modes[0]}")
    _check_inputs(options, logs)


def _check_inputs(options: Options, logs: tuple[str, ...]) -> None:
    """Refuse options that contradict the kind of logs."""
    remote = is_remote(options)
    in_order = options.after_gtids is None and not any(name.startswith("kafka://") for name in logs)
    stop = options.criteria().stop
    if not in_order and stop is not None and stop.file is None:
        raise click.UsageError("which log is the last is not known here: --stop-position FILE:POSITION")
    if options.after_gtids is not None and not remote and not all(map(_is_server, logs)):
        raise click.UsageError("--after-gtids is for servers; --exclude-gtids is for any log")
    if options.to_last_log and not remote and not any(map(_is_server, logs)):
        raise click.UsageError("--to-last-log is for servers: mysql://user@host:port/LOGFILE")
    if not remote and (idle := _idle(options, logs)):
        note(f"{', '.join(idle)}: only --read-from-remote-server uses it")


def _idle(options: Options, logs: tuple[str, ...]) -> list[str]:
    """Name the options given about a server, as far as they have no effect; with a URL the password has."""
    used = {"--password"} if any(map(_is_server, logs)) else set()
    return [name for name in of_servers(options) if name not in used]


def _of_text(options: Options) -> list[str]:
    """Name the options given that say how SQL text is written."""
    given = {
        "--verbose": options.verbose > 0,
        "--base64-output": options.base64_output != "auto",
        "--hexdump": options.hexdump,
        "--short-form": options.short_form,
        "--skip-gtids": options.skip_gtids,
        "--rewrite-db": bool(options.rewrite_db),
        "--local-load": options.local_load is not None,
        "--disable-log-bin": options.disable_log_bin,
        "--set-charset": options.set_charset is not None,
        "--idempotent": options.idempotent,
        "--require-row-format": options.require_row_format,
        "--print-table-metadata": options.print_table_metadata,
        "--skip-print-row-count": not options.print_row_count,
        "--skip-print-row-event-positions": not options.print_row_event_positions,
        "--skip-annotate-row-events": options.skip_annotate_row_events,
    }
    return [name for name, is_given in given.items() if is_given]


def _is_server(name: str) -> bool:
    return name.startswith(("mysql://", "mariadb://"))


def _run(options: Options, logs: tuple[str, ...]) -> int:
    if options.raw:
        return _download(options, logs)
    inputs = _inputs(options, logs)
    with ExitStack() as stack:
        stream: BinaryIO = sys.stdout.buffer
        if options.result_file is not None:
            stream = stack.enter_context(_created(options.result_file))
        to_file = options.result_file is not None
        colour = use_colour(options.color, to_file=to_file)
        is_text = not (options.json or options.stats or options.verify)
        pager = is_text and not options.follow and use_pager(wanted=options.pager, to_file=to_file)
        screen = is_text and (pager or colour or stream.isatty())
        run = _Run(options, inputs, Buffer(None if screen else stream, live=options.follow))
        chunks = run.chunks()
        if screen:
            chunks = shown(chunks)
            if colour:
                chunks = coloured(chunks)
        deliver(chunks, stream, pager=pager, colour=colour, live=options.follow)
        return run.exit_code


def _created(name: str) -> BinaryIO:
    try:
        return Path(name).open("wb")
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}", ExitCode.SETTINGS) from error


# ------------------------------------------------------------------------------------------------- the inputs


def _inputs(options: Options, logs: tuple[str, ...]) -> list[Input]:
    """Make an input of each run of arguments of one kind; only the last is followed."""
    inputs: list[Input] = []
    files: list[str] = []
    for number, name in enumerate(logs):
        is_last = number == len(logs) - 1
        if is_remote(options) or _is_server(name) or name.startswith("kafka://"):
            if files:
                inputs.append(_files(options, files, follow=False))
                files = []
            inputs.append(_remote(options, name, is_last=is_last))
        else:
            files += find_files(name)
    if files:
        inputs.append(_files(options, files, follow=options.follow, alone=not inputs))
    return inputs


def _files(options: Options, names: list[str], *, follow: bool, alone: bool = False) -> Input:
    return FileInput(
        names,
        follow=follow,
        note=note,
        accept_in_use=options.force_if_open,
        keys=None if options.key_file is None else read_keys(options.key_file, options.key_cipher),
        max_event_size=options.max_event_size,
        seeker=Seeker(options.criteria()) if alone else None,
    )


def _remote(options: Options, name: str, *, is_last: bool) -> Input:
    follow = options.follow and is_last
    if name.startswith("kafka://"):
        from millrace.binlog_command.topic import TopicInput  # noqa: PLC0415 - Kafka's client loads slowly
        from millrace.runtime.logging import configure_logging  # noqa: PLC0415 - likewise

        configure_logging("ERROR")
        return TopicInput(name, follow=follow, note=note, max_event_size=_max_event_size(options))
    from millrace.binlog_command.server import ServerInput  # noqa: PLC0415 - likewise

    return ServerInput(
        server_address(options, name, note),
        after_gtids=options.after_gtids,
        to_last_log=options.to_last_log and (is_last or not is_remote(options)),
        follow=follow,
        note=note,
        max_event_size=_max_event_size(options),
        server_id=options.connection_server_id,
    )


def _max_event_size(options: Options) -> int:
    return MAX_EVENT_SIZE if options.max_event_size is None else options.max_event_size


# --------------------------------------------------------------------------------------------- from in to out


class _Run:
    """One pass over the inputs; :attr:`exit_code` is known after it."""

    def __init__(self, options: Options, inputs: list[Input], buffer: Buffer) -> None:
        self.exit_code = 0
        self._options = options
        self._inputs = inputs
        self._buffer = buffer
        files_alone = all(isinstance(one, FileInput) for one in inputs)
        self._output = _output(options, buffer, files_alone=files_alone)
        self._filter = Filter(
            options.criteria(),
            context=not (options.json or options.stats),
            is_last=lambda path: path == inputs[-1].last_path,
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum(one.total_bytes for one in self._inputs)

    @property
    def done_bytes(self) -> int:
        """Bytes that have been read of them."""
        return sum(one.done_bytes for one in self._inputs)

    def chunks(self) -> Iterator[bytes]:
        """Yield what the output writes, as it writes it."""
        source = self._records()
        records: Iterable[LogRecord] = source
        if not (self._options.verify or self._options.stats or self._options.json or self._options.flashback):
            records = placed_head(records, self._options.criteria().start)
        records = records if self._options.verify else self._filter.apply(records)
        if self._options.stats or self._options.verify:
            records = progress(records, self)
        is_plain = self._buffer.is_plain
        try:
            with closing(source):  # an error may keep all of this alive
                for number, record in enumerate(records):
                    if isinstance(record.event, BinlogError) and not self._goes_on(record.event):
                        if not number:
                            return
                        break
                    self._output.write(record)
                    if not is_plain:
                        self._buffer.flush()
                        yield from self._buffer.take()
        except KeyboardInterrupt:
            if not self._options.stats:
                raise
            # Whoever stops the counting wants to see what was counted.
            self.exit_code = _INTERRUPTED
        if self._filter.missed is not None:
            note(f"no event that was read begins at or after {self._filter.missed}")
        for message in self._filter.unmatched():
            note(f"{message}, in what was read")
        self._output.close()
        yield from self._buffer.take()
        if getattr(self._output, "findings", 0):
            self.exit_code = _FAILED
        elif getattr(self._output, "unchecked", 0) and not self.exit_code:
            self.exit_code = ExitCode.FAULTY

    def _records(self) -> Generator[LogRecord, None, None]:
        decoder = LogDecoder(
            verify=self._options.verify_binlog_checksum,
            max_event_size=self._options.max_event_size,
            large_rows=self._options.verify or self._is_text_without_rows(),
        )
        has_no_events = getattr(self._output, "has_no_events", None)
        for one in self._inputs:
            for log in one.logs():
                record = None
                for record in decoder.records(log):
                    yield record
                if record is None and has_no_events is not None:
                    has_no_events(one.last_path)

    def _is_text_without_rows(self) -> bool:
        options = self._options
        return not (options.json or options.stats or options.flashback or options.verbose)

    def _goes_on(self, error: BinlogError) -> bool:
        """Decide about an event that cannot be read: whether it goes to the output and others follow."""
        if self._options.verify or (self._options.flashback and not self._options.force_read):
            return True  # a finding; or refused by the output, for nothing can be undone across a gap
        self.exit_code = _FAILED
        tell(str(error))
        return self._options.force_read


def _output(options: Options, buffer: Buffer, *, files_alone: bool) -> Output:
    # Imported when they are used: each brings much of the codec with it.
    if options.verify:
        from millrace.binlog_command.verify import VerifyOutput  # noqa: PLC0415

        max_rows = options.max_event_size or MAX_UNPACKED_ROWS
        return VerifyOutput(buffer.line, may_be_open=not files_alone, max_rows=max_rows)
    if options.stats:
        from millrace.binlog_command.stats import StatsOutput  # noqa: PLC0415

        return StatsOutput(buffer.line, as_json=options.json)
    if options.json:
        from millrace.binlog_command.json_output import JsonOutput  # noqa: PLC0415

        return JsonOutput(cast("BinaryIO", buffer), max_unpacked=unpacked_limit(0, options.max_event_size))
    if options.flashback:
        return _flashback_output(options, buffer)
    return _text_output(options, buffer)


def _flashback_output(options: Options, buffer: Buffer) -> Output:
    from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput  # noqa: PLC0415
    from millrace.binlog_command.rewrite import DatabaseRewrite  # noqa: PLC0415

    flashback_options = FlashbackOptions(
        verbose=options.verbose,
        force=options.force_read,
        rewrite_db=DatabaseRewrite.parse(options.rewrite_db),
    )
    return FlashbackOutput(cast("BinaryIO", buffer), flashback_options)


def _text_output(options: Options, buffer: Buffer) -> Output:
    from millrace.binlog_command.rewrite import DatabaseRewrite  # noqa: PLC0415
    from millrace.binlog_command.text import TextOptions, TextOutput  # noqa: PLC0415

    criteria = options.criteria()
    text_options = TextOptions(
        verbose=options.verbose,
        base64_output=cast("Literal['auto', 'decode-rows', 'never']", options.base64_output),
        hexdump=options.hexdump,
        short_form=options.short_form,
        skip_gtids=options.skip_gtids,
        local_load=None if options.local_load is None else Path(options.local_load),
        rewrite_db=DatabaseRewrite.parse(options.rewrite_db),
        disable_log_bin=options.disable_log_bin,
        set_charset=options.set_charset,
        idempotent=options.idempotent,
        require_row_format=options.require_row_format,
        table_metadata=options.print_table_metadata,
        row_count=options.print_row_count,
        positions=options.print_row_event_positions,
        annotations=not options.skip_annotate_row_events,
        by_gtid=bool(criteria.domains or criteria.server_ids or criteria.ignored_server_ids),
        max_unpacked=unpacked_limit(0, options.max_event_size),
    )
    return TextOutput(cast("BinaryIO", buffer), text_options)


def _download(options: Options, logs: tuple[str, ...]) -> int:
    from millrace.binlog_command.raw_download import RawDownload  # noqa: PLC0415 - likewise

    for number, name in enumerate(logs, 1):
        download = RawDownload(
            server_address(options, name, note),
            options.result_file or "",
            to_last_log=options.to_last_log and number == len(logs),
            follow=options.follow and number == len(logs),
            note=note,
            server_id=options.connection_server_id,
        )
        for _ in download.copy() if options.follow else progress(download.copy(), download):
            pass
    return 0
