"""The options of mysqlbinlog and mariadb-binlog, and their forms on a command line.

A script that runs either program runs with ``millrace binlog`` in its place, or is told in one line which
option is not there and why. :data:`TOOL_OPTIONS` has all options of both; those that are neither ignored nor
refused are options of our own command, of the same name.

Both programs read their command line by ``my_getopt.c`` and ``my_default.c`` of the servers:

- ``_`` in a name stands for ``-``, and a beginning that only one option has stands for its name;
- ``--skip-NAME``, ``--disable-NAME`` and ``--NAME=0`` turn a switch off, ``--enable-NAME`` and ``--NAME=1``
  turn it on;
- ``--loose-NAME`` is no error where the option is not known;
- ``--password`` and ``-p`` have no value but the one that follows without a space;
- the groups of option files come before the command line: those of the files that ``--defaults-file`` and
  ``--defaults-extra-file`` name, and those of ``my.cnf`` where a server is read.
"""

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

__all__ = ["ASK", "TOOL_OPTIONS", "ToolOption", "Tools", "tool_arguments"]

ASK: Final = "\0"
"""A password that is to be asked for."""


class Tools(enum.Flag):
    """The programs that have an option."""

    MYSQL = enum.auto()
    MARIADB = enum.auto()
    BOTH = MYSQL | MARIADB


@dataclass(frozen=True, slots=True)
class ToolOption:
    """An option of the programs; one that is neither ``ignored`` nor ``refused``, for a reason, is ours.

    ``instead`` is the option that it is with us, and ``harmless`` a value that changes nothing.
    """

    name: str
    tools: Tools = Tools.BOTH
    short: str = ""
    takes_value: bool = False
    instead: str = ""
    ignored: str = ""
    refused: str = ""
    harmless: str | None = None


def _ours(names: str, tools: Tools = Tools.BOTH) -> Iterator[ToolOption]:
    """Yield options of our own command: ``-s name``, with ``=`` where a value follows."""
    for text in names.split():
        name, value, _ = text.partition("=")
        long, _, short = name.partition(",")
        yield ToolOption(long, tools, short, bool(value))


_TLS_LIBRARY: Final = "TLS versions and ciphers are those of the system's OpenSSL"
_OF_ITSELF: Final = "it is about the program itself"
_PACKED: Final = "the connection is not compressed; the events are the same"
_LOGIN: Final = "the ways to log in are built in, and the server says which it wants"

TOOL_OPTIONS: Final[tuple[ToolOption, ...]] = (
    *_ours(
        "help,? base64-output= database,d= disable-log-bin,D force-if-open,F force-read,f hexdump,H host,h= "
        "local-load,l= offset,o= password,p port,P= protocol= raw read-from-remote-server,R result-file,r= "
        "rewrite-db= server-id= set-charset= short-form,s socket,S= ssl-ca= ssl-cert= ssl-key= "
        "start-datetime= start-position,j= stop-datetime= stop-position= stop-never to-last-log,t user,u= "
        "verbose,v verify-binlog-checksum,c version,V print-table-metadata"
    ),
    *_ours(
        "read-from-remote-source= connection-server-id= exclude-gtids= include-gtids= skip-gtids "
        "get-server-public-key server-public-key-path= idempotent,i require-row-format ssl-mode=",
        Tools.MYSQL,
    ),
    *_ours(
        "flashback,B table,T= do-domain-ids= ignore-domain-ids= do-server-ids= ignore-server-ids= "
        "print-row-count print-row-event-positions skip-annotate-row-events ssl ssl-verify-server-cert",
        Tools.MARIADB,
    ),
    ToolOption("read-from-remote-master", Tools.MYSQL, takes_value=True, instead="read-from-remote-source"),
    ToolOption("stop-never-slave-server-id", takes_value=True, instead="connection-server-id"),
    ToolOption("binlog-row-event-max-size", takes_value=True, ignored="rows events stay as they were logged"),
    ToolOption("character-sets-dir", takes_value=True, ignored="the character sets are built in"),
    ToolOption("compress", Tools.MYSQL, "C", ignored=_PACKED),
    ToolOption("compression-algorithms", Tools.MYSQL, takes_value=True, ignored=_PACKED),
    ToolOption("zstd-compression-level", Tools.MYSQL, takes_value=True, ignored=_PACKED),
    ToolOption("debug-check", ignored=_OF_ITSELF),
    ToolOption("debug-info", ignored=_OF_ITSELF),
    ToolOption("default-auth", takes_value=True, ignored=_LOGIN),
    ToolOption("plugin-dir", takes_value=True, ignored=_LOGIN),
    ToolOption("no-login-paths", Tools.MYSQL, ignored="login files are not read"),
    ToolOption("open-files-limit", takes_value=True, ignored=_OF_ITSELF),
    ToolOption(
        "ssl-session-data",
        Tools.MYSQL,
        takes_value=True,
        ignored="each connection begins a TLS session of its own",
    ),
    ToolOption(
        "ssl-session-data-continue-on-failed-reuse",
        Tools.MYSQL,
        ignored="each connection begins a TLS session of its own",
    ),
    ToolOption(
        "bind-address", Tools.MYSQL, takes_value=True, refused="the system chooses the address on our side"
    ),
    ToolOption("debug", Tools.MYSQL, "#", refused="there is no debug build, as in the servers' packages"),
    ToolOption(
        "gtid-strict-mode",
        Tools.MARIADB,
        refused="the order of GTIDs is not checked; --skip-gtid-strict-mode says so",
        harmless="0",
    ),
    ToolOption(
        "login-path",
        Tools.MYSQL,
        takes_value=True,
        refused="login files are not read; --defaults-extra-file names an option file with user and password",
    ),
    ToolOption("print-defaults", refused="the options of option files are not listed"),
    ToolOption(
        "server-id-bits",
        Tools.MYSQL,
        takes_value=True,
        refused="server ids are compared in all their 32 bits",
        harmless="32",
    ),
    ToolOption(
        "ssl-capath", takes_value=True, refused="the certificates are read from one file: --ssl-ca FILE"
    ),
    ToolOption("ssl-cipher", takes_value=True, refused=_TLS_LIBRARY),
    ToolOption("ssl-crl", takes_value=True, refused="lists of revoked certificates are not read"),
    ToolOption("ssl-crlpath", takes_value=True, refused="lists of revoked certificates are not read"),
    ToolOption("ssl-fips-mode", Tools.MYSQL, takes_value=True, refused=_TLS_LIBRARY, harmless="OFF"),
    ToolOption(
        "ssl-fp",
        Tools.MARIADB,
        takes_value=True,
        refused="fingerprints are not compared; --ssl-ca names a file with the certificate itself",
    ),
    ToolOption(
        "ssl-fplist",
        Tools.MARIADB,
        takes_value=True,
        refused="fingerprints are not compared; --ssl-ca names a file with the certificates themselves",
    ),
    ToolOption("tls-ciphersuites", Tools.MYSQL, takes_value=True, refused=_TLS_LIBRARY),
    ToolOption(
        "tls-sni-servername",
        Tools.MYSQL,
        takes_value=True,
        refused="the server is asked for by the name of --host",
    ),
    ToolOption("tls-version", takes_value=True, refused=_TLS_LIBRARY),
    ToolOption("no-defaults"),
    ToolOption("defaults-file", takes_value=True),
    ToolOption("defaults-extra-file", takes_value=True),
    ToolOption("defaults-group-suffix", takes_value=True),
)

_DEFAULT_FILES: Final = ("/etc/my.cnf", "/etc/mysql/my.cnf", "~/.my.cnf")
_GROUPS: Final = ("client", "mysqlbinlog", "mariadb-binlog", "client-server", "client-mariadb")
_ON: Final = frozenset({"1", "on", "true"})
_OFF: Final = frozenset({"0", "off", "false"})
_UNDO: Final = "\0"
"""In front of a switch that is turned off, and has no form for that."""
_MAX_INCLUDES: Final = 10
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "s": " ", "\\": "\\"}


@dataclass(slots=True)
class _Name:
    """An option: ours, with the forms ``on`` and ``off``, or another one of the programs."""

    name: str
    on: str
    off: str
    takes_value: bool
    optional: bool
    other: ToolOption | None = None


class _Names:
    """All names of options: those of our command, and those of the programs."""

    def __init__(self, parameters: Sequence[click.Parameter]) -> None:
        self.long: dict[str, _Name] = {}
        self.short: dict[str, _Name] = {}
        for parameter in parameters:
            if isinstance(parameter, click.Option):
                self._add(parameter)
        for option in TOOL_OPTIONS:
            entry = self.long.get(option.instead or option.name)
            if entry is None:
                entry = _Name(option.name, "", "", option.takes_value, optional=False, other=option)
            self.long.setdefault(option.name, entry)
            if option.short:
                self.short.setdefault(option.short, entry)

    def _add(self, parameter: click.Option) -> None:
        names = [name for name in parameter.opts if name.startswith("--")]
        off = next(iter(parameter.secondary_opts), "")
        takes_value = not (parameter.is_flag or parameter.count)
        optional = takes_value and parameter.flag_value == ASK
        for name in names:
            entry = _Name(name[2:], name, off, takes_value, optional)
            self.long[name[2:]] = entry
        if off:
            self.long[off[2:]] = _Name(off[2:], off, names[0], takes_value=False, optional=False)
        for name in parameter.opts:
            if not name.startswith("--"):
                self.short[name[1:]] = self.long[names[0][2:]]

    def find(self, text: str) -> _Name | None:
        """Return the option of a name or of the beginning of one; raise UsageError if several begin so."""
        name = text.replace("_", "-")
        if name in self.long:
            return self.long[name]
        found = sorted(known for known in self.long if name and known.startswith(name))
        if len({self.long[known].name for known in found}) > 1:
            raise click.UsageError(f"--{text} may be --{', --'.join(found)}")
        return self.long[found[0]] if found else None


def tool_arguments(parameters: Sequence[click.Parameter], arguments: Sequence[str]) -> list[str]:
    """Return a command line in the forms of the programs as the one of our command.

    ``parameters`` are those of our command. Raises UsageError for what is not there, and the reason.
    """
    names = _Names(parameters)
    files = _OptionFiles()
    given = list(_translated(names, arguments, files))
    if files.read or any(one.startswith("--read-from-remote-") for one in given):
        given = [*_translated(names, files.arguments(), files), *given]
    result: list[str] = []
    for one in given:
        if one.startswith(_UNDO):
            result = [before for before in result if before != one[len(_UNDO) :]]
        else:
            result.append(one)
    return result


def _translated(names: _Names, arguments: Sequence[str], files: "_OptionFiles") -> Iterator[str]:
    """Yield the arguments in the forms of our command."""
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if argument == "--":
            yield argument
            yield from reversed(rest)
            return
        if argument.startswith("--"):
            yield from _long(names, argument[2:], rest, files)
        elif argument.startswith("-") and argument != "-":
            yield from _cluster(names, argument, rest, files)
        else:
            yield argument


def _cluster(names: _Names, argument: str, rest: list[str], files: "_OptionFiles") -> Iterator[str]:
    """Yield the options of one letter in an argument."""
    letters = argument[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        entry = names.short.get(letter)
        if entry is None:
            yield f"-{letter}{letters}"  # an error, in the words of the command
            return
        if entry.takes_value or (entry.other is not None and letter == "#"):
            yield from _one(entry, letters or None, rest, files)
            return
        yield from _one(entry, None, rest, files)


def _long(names: _Names, text: str, rest: list[str], files: "_OptionFiles") -> Iterator[str]:
    """Yield an option with a name."""
    name, equals, value = text.partition("=")
    loose = name.startswith(("loose-", "loose_"))
    name = name[6:] if loose else name
    given = value if equals else None
    entry = names.find(name)
    if entry is None:
        on, _, switched = name.replace("_", "-").partition("-")
        entry = names.find(switched) if on in ("skip", "disable", "enable") and switched else None
        if entry is not None:
            if entry.takes_value and not entry.optional:
                raise click.UsageError(f"--{name}: --{entry.name} is no switch")
            given = {"enable": "1"}.get(on, "0") if not entry.optional else ""
    if entry is not None:
        yield from _one(entry, given, rest, files)
    elif not loose:
        yield f"--{text}"  # an error, in the words of the command


def _one(entry: _Name, value: str | None, rest: list[str], files: "_OptionFiles") -> Iterator[str]:
    """Yield an option, with the value that is part of it or follows."""
    if entry.takes_value and value is None:
        if entry.optional:
            value = ASK
        elif rest:
            value = rest.pop()
        else:
            raise click.UsageError(f"Option '--{entry.name}' requires an argument.")
    if entry.other is not None:
        _take(entry.other, value, files)
    elif entry.takes_value:
        yield f"{entry.on}={value}"
    else:
        on = _is_on(entry.name, value)
        yield entry.on if on else entry.off or _UNDO + entry.on


def _is_on(name: str, value: str | None) -> bool:
    """Return whether a switch is on; raise UsageError if its value says neither."""
    if value is None or value.lower() in _ON:
        return True
    if value.lower() in _OFF:
        return False
    raise click.UsageError(f"--{name} is a switch: {value!r} is none of 0, 1, OFF, ON, FALSE and TRUE")


def _take(option: ToolOption, value: str | None, files: "_OptionFiles") -> None:
    """Act on an option that our command does not have; raise UsageError if it is refused."""
    if option.refused:
        if option.harmless is None or (value or "1").upper() != option.harmless:
            raise click.UsageError(f"--{option.name} is not there: {option.refused}")
    elif not option.ignored:
        files.take(option.name, value or "")


class _OptionFiles:
    """The option files that the programs read: which, and what they hold."""

    def __init__(self) -> None:
        self.read = False
        self._names: list[str] | None = None
        self._extra: str | None = None
        self._suffix = ""

    def take(self, option: str, value: str) -> None:
        """Act on one of the options that say which files are read."""
        if option == "no-defaults":
            self._names = []
        elif option == "defaults-file":
            self._names, self.read = [value], True
        elif option == "defaults-extra-file":
            self._extra, self.read = value, True
        else:
            self._suffix = value

    def arguments(self) -> list[str]:
        """Return what the files' groups hold, as arguments; raise UsageError for what cannot be read."""
        groups = {group + suffix for group in _GROUPS for suffix in ("", self._suffix)}
        found: list[str] = []
        *system, own = _DEFAULT_FILES
        extra = [] if self._extra is None else [self._extra]
        names = [*system, *extra, own] if self._names is None else [*self._names, *extra]
        for name in names:
            path = Path(name).expanduser()
            if name in _DEFAULT_FILES and not path.is_file():
                continue
            found += _file_arguments(path, groups, _MAX_INCLUDES)
        return found


def _file_arguments(path: Path, groups: set[str], depth: int) -> Iterator[str]:
    """Yield what the groups of an option file, and of those that it includes, hold."""
    if not depth:
        raise click.UsageError(f"{path}: option files include each other")
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise click.UsageError(f"the option file {path} cannot be read: {error.strerror}") from None
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group = line[1:].partition("]")[0].strip()
        elif line.startswith("!includedir"):
            folder = Path(line[len("!includedir") :].strip())
            for included in sorted(folder.glob("*.cnf")):
                yield from _file_arguments(included, groups, depth - 1)
        elif line.startswith("!include"):
            yield from _file_arguments(Path(line[len("!include") :].strip()), groups, depth - 1)
        elif line and line[0] not in "#;" and group in groups:
            name, equals, value = line.partition("=")
            yield f"--{name.strip()}" + (f"={_unquoted(value.strip())}" if equals else "")


def _unquoted(value: str) -> str:
    """Return the value of a line, without quotes, escapes and the comment behind it."""
    quote = value[:1]
    if quote and quote in "'\"" and value.find(quote, 1) > 0:
        value = value[1 : value.rindex(quote)]
    else:
        value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
    return re.sub(r"\\([btnrs\\])", lambda found: _ESCAPES[found[1]], value)
