"""The options of ``millrace binlog``: in groups, and with mysqlbinlog's names where it has them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from millrace.binlog.encryption import MariadbCipher
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import RowsOperation
from millrace.binlog_command.criteria import (
    Criteria,
    Domains,
    FilePosition,
    Gtids,
    MariadbPosition,
    NamePattern,
    TablePattern,
    parse_event_type,
    parse_gtids,
    parse_ids,
    parse_operations,
    parse_position,
    parse_time,
)
from millrace.binlog_command.tool_options import tool_arguments

_SHIFTS: Final = {"": 0, "K": 10, "M": 20, "G": 30}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    json: bool
    stats: bool
    verify: bool
    raw: bool
    flashback: bool
    result_file: str | None
    verbose: int
    base64_output: str
    hexdump: bool
    short_form: bool
    skip_gtids: bool
    rewrite_db: tuple[str, ...]
    local_load: str | None
    disable_log_bin: bool
    set_charset: str | None
    idempotent: bool
    require_row_format: bool
    print_table_metadata: bool
    print_row_count: bool
    print_row_event_positions: bool
    skip_annotate_row_events: bool
    start_position: FilePosition | MariadbPosition | None
    stop_position: FilePosition | MariadbPosition | None
    offset: int
    start_datetime: float | None
    stop_datetime: float | None
    include_gtids: Gtids | None
    exclude_gtids: Gtids | None
    database: tuple[str, ...]
    table: tuple[str, ...]
    operation: tuple[frozenset[RowsOperation], ...]
    server_id: tuple[frozenset[int], ...]
    ignore_server_ids: tuple[frozenset[int], ...]
    do_domain_ids: tuple[frozenset[int], ...]
    ignore_domain_ids: tuple[frozenset[int], ...]
    event_type: tuple[int, ...]
    transaction: str | None
    follow: bool
    to_last_log: bool
    after_gtids: str | None
    read_from_remote_server: bool
    read_from_remote_source: str | None
    host: str | None
    port: int | None
    socket: str | None
    protocol: str | None
    user: str | None
    password: str | None
    ssl_mode: str | None
    ssl: bool | None
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None
    ssl_verify_server_cert: bool | None
    get_server_public_key: bool
    server_public_key_path: str | None
    connection_server_id: int | None
    key_file: str | None
    key_cipher: MariadbCipher | None
    max_event_size: int | None
    verify_binlog_checksum: bool
    force_if_open: bool
    force_read: bool
    color: str
    pager: bool

    def criteria(self) -> Criteria:
        """Return what is asked for as the filter has it."""
        start, stop = self.start_position, self.stop_position
        domains = Domains(
            only=frozenset().union(*self.do_domain_ids),
            ignored=frozenset().union(*self.ignore_domain_ids),
            after=start if isinstance(start, MariadbPosition) else None,
            until=stop if isinstance(stop, MariadbPosition) else None,
        )
        return Criteria(
            start=start if isinstance(start, FilePosition) else None,
            stop=stop if isinstance(stop, FilePosition) else None,
            offset=self.offset,
            domains=None if domains == Domains() else domains,
            start_time=self.start_datetime,
            stop_time=self.stop_datetime,
            include_gtids=self.include_gtids,
            exclude_gtids=self.exclude_gtids,
            databases=tuple(map(NamePattern, self.database)),
            tables=tuple(map(TablePattern.parse, self.table)),
            operations=frozenset().union(*self.operation),
            server_ids=frozenset().union(*self.server_id),
            ignored_server_ids=frozenset().union(*self.ignore_server_ids),
            types=frozenset(self.event_type),
            transaction=self.transaction,
        )


class GroupedOption(click.Option):
    """An option that stands under a heading of the help."""

    def __init__(self, *args: Any, group: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


def option(group: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """Declare an option under a heading."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


class GroupedCommand(click.Command):
    """A command whose help has its options under headings, and examples at its end as they are written."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line, in the forms of mysqlbinlog and mariadb-binlog too."""
        return super().parse_args(ctx, tool_arguments(self.get_params(ctx), args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group in the order of their declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        others = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            if isinstance(parameter, GroupedOption):
                groups.setdefault(parameter.group, []).append(record)
            else:
                others.append(record)
        groups["Other"] = others
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        with formatter.section("Examples"):
            for purpose, command in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}# {purpose}\n")
                formatter.write(f"{'':{formatter.current_indent}}{command}\n")


def parse_size(text: str) -> int:
    """Read a number of bytes, which may end in K, M or G."""
    match = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes, such as 67108864 or 64M")
    return int(match[1]) << _SHIFTS[match[2].upper()]


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 alone
    """A parameter read by a function that raises ValueError or BinlogError for what it cannot read."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a value, unless that has been done."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ValueError, BinlogError) as error:
            self.fail(str(error), param, ctx)


def parse_charset(text: str) -> str:
    """Read the name of a character set; raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", text):
        raise ValueError(f"{text!r} is not the name of a character set")
    return text


CHARSET = Parsed("name", parse_charset)
IDS = Parsed("numbers", parse_ids)
POSITION = Parsed("[file:]position", parse_position)
TIME = Parsed("time", parse_time)
GTIDS = Parsed("gtids", parse_gtids)
EVENT_TYPE = Parsed("type", parse_event_type)
SIZE = Parsed("size", parse_size)
OPERATIONS = Parsed("insert,update,delete", parse_operations)
