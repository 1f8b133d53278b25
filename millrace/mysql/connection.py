"""A connection to MySQL or MariaDB, over PyMySQL, whose errors say what to do.

Which server it is and what it can do is asked of the server itself (variables that exist, statements that it
understands), never concluded from its version number. What it answers is not believed: answers are bounded,
in time, in size and in number of rows, and a row that lacks a column is an error as well.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum
from typing import Any, Final, Self

import pymysql

from millrace.binlog.server_version import ServerVersion
from millrace.mysql.address import MysqlAddress, SslMode
from millrace.mysql.errors import (
    CONNECT,
    LinkLostError,
    ProtocolError,
    SourceError,
    from_server,
    is_denied,
)
from millrace.mysql.login import LARGEST_PACKET, Client, TakePackets, tls_context
from millrace.mysql.wire import Wire
from millrace.text import shortened

__all__ = ["Flavour", "MysqlAddress", "MysqlConnection", "Row", "SslMode", "Value"]

Value = str | bytes | None
"""A value as the server prints it."""

_VECTOR: Final = 242
"""MYSQL_TYPE_VECTOR, of a column in an answer."""

_ANSWER_BYTES: Final = 96 << 20
"""Memory that the rows of an answer may take: 100,000 log files, or as many tables, take some 80 MB."""
_ROW_BYTES: Final = 300
_CELL_BYTES: Final = 100
_CHARACTER_BYTES: Final = 4

_SYNTAX_ERROR: Final = 1064
_SHOWS_KEYS: Final = "show_gipk_in_create_table_and_information_schema"
"""Where it is OFF, no catalogue of MySQL has the primary keys that it generates."""

_WHO: Final = "ask who we are"
"""What is asked where something is denied; a server may deny this too."""


class Flavour(Enum):
    """Whose server it is."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"


class Row(dict[str, Value]):
    """A row of an answer, by the names of its columns; a column that is not there is the server's fault."""

    __slots__ = ("where",)

    def __init__(self, values: Any = (), where: str = "the server") -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, name: str) -> Value:
        raise ProtocolError(f"{self.where}: its answer has no column {name}")

    def text(self, name: str) -> str:
        """Return a text, "" for NULL; MySQL 8 has some columns of information_schema as BLOB."""
        value = self[name] or ""
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def number(self, name: str) -> int:
        """Return an integer, 0 for NULL."""
        text = self.text(name)
        try:
            return int(text or 0)
        except ValueError:
            raise ProtocolError(
                f"{self.where}: its answer has {shortened(repr(text), 60)} as {name}, expected a number"
            ) from None


class MysqlConnection:
    """An open connection; use it in a ``with`` block or :meth:`close` it."""

    def __init__(self, address: MysqlAddress, beat: Callable[[], None] = lambda: None) -> None:
        """Connect and log in; raises :class:`UnreachableError` or :class:`RefusedError`.

        Whenever the server is waited for, ``beat`` is called at least once a second, and may raise.
        """
        self.address = address
        tls = tls_context(address)
        self._wire = Wire.connect(address, beat)
        try:
            with self._in_words(CONNECT):
                # Any: what a replica needs of PyMySQL (raw commands) has no public name there.
                self._client: Any = Client(address, self._wire, tls)
            version = self.variable("version")
            self.version = str(version)
            # A replication or cluster build may leave the name out of the version; the comment has it then.
            comment = self.variable("version_comment") or ""
            mariadb = ServerVersion.parse(f"{version} {comment}").mariadb
            self.flavour = Flavour.MARIADB if mariadb else Flavour.MYSQL
            if not mariadb and self.variable(_SHOWS_KEYS) == "OFF":
                self.query(f"SET SESSION {_SHOWS_KEYS} = ON", doing="have the catalogue show generated keys")
        except BaseException:
            self._wire.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and close the socket; a second time does nothing."""
        self._client.close()

    @property
    def wire(self) -> Wire:
        """The socket; the caller reads packets from it after a command."""
        return self._wire

    @property
    def client(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """PyMySQL's own connection, for whoever writes; its answers are bounded too, in all but rows."""
        client: pymysql.Connection[pymysql.cursors.Cursor] = self._client
        return client

    @property
    def login_method(self) -> str:
        """The authentication plugin by which we logged in."""
        return str(self._client.method)

    @property
    def verified(self) -> bool:
        """Whether TLS with a verified certificate, or a Unix socket, tells whose server it is."""
        return bool(self._client.verified) or self._wire.private

    @property
    def may_give_password(self) -> bool:
        """Whether a server that asks for the password itself would get it."""
        return bool(self._client.may_give_password)

    def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "run a query") -> list[Row]:
        """Run a statement and return its rows; ``doing`` says in an error message what it was for."""
        rows: list[Row] = []
        where = f"{self.address}: cannot {doing}"
        left = _ANSWER_BYTES
        with closing(self._answer(sql, values, doing, total_s=self._client.total_s)) as answer:
            names = next(answer, ())
            for row in answer:
                size = sum(map(len, filter(None, row)))
                left -= _ROW_BYTES + len(row) * _CELL_BYTES + size * _CHARACTER_BYTES
                if left < 0:
                    message = f"{where}: its answer is larger than any can be, after {len(rows)} rows"
                    raise ProtocolError(message)
                rows.append(Row(zip(names, row, strict=False), where))
        return rows

    def row(self, sql: str, values: Sequence[Any] = (), *, doing: str = "run a query") -> Row:
        """Run a statement that has a row, and return that."""
        rows = self.query(sql, values, doing=doing)
        if not rows:
            raise ProtocolError(f"{self.address}: cannot {doing}: its answer is empty")
        return rows[0]

    def rows(
        self,
        sql: str,
        values: Sequence[Any] = (),
        *,
        doing: str,
        total_s: float | None = None,
        silence_s: float | None = None,
        largest: int = LARGEST_PACKET,
        binary: bool = False,
        take: TakePackets | None = None,
    ) -> Iterator[tuple[Value, ...]]:
        """Run a statement and yield its rows as they arrive; none is kept.

        Nothing else may be run meanwhile. Each row may have ``largest`` bytes; all of them must have come
        within ``total_s``, where that is given, and none later than ``silence_s`` after the one before.
        With ``binary`` no value is taken for text: each is the bytes that the server sends. Before each row
        that is given, ``take`` may take the packets of those before it, but not that of the last.
        """
        answer = self._answer(
            sql,
            values,
            doing,
            total_s=total_s,
            silence_s=silence_s,
            largest=largest,
            binary=binary,
            take=take,
        )
        next(answer, None)
        yield from answer

    def _answer(
        self,
        sql: str,
        values: Sequence[Any],
        doing: str,
        *,
        total_s: float | None = None,
        silence_s: float | None = None,
        largest: int = LARGEST_PACKET,
        binary: bool = False,
        take: TakePackets | None = None,
    ) -> Generator[tuple[Any, ...], None, None]:
        """Yield the names of the columns, if it has any, and then the rows."""
        client = self._client
        until = None if total_s is None else time.monotonic() + total_s
        before = client.silence_s, client.largest_packet
        client.silence_s, client.largest_packet = silence_s or before[0], largest
        try:
            with self._in_words(doing):
                result = client.stream(client.cursor().mogrify(sql, values or None))
            if not result.unbuffered_active:
                return
            result.converters = [
                # PyMySQL takes what it does not know, such as VECTOR, for numbers in ASCII.
                (None, None) if binary or column[1] == _VECTOR else known
                for column, known in zip(result.description, result.converters, strict=True)
            ]
            try:
                yield tuple(column[0] for column in result.description)
                with self._in_words(doing):
                    while True:
                        if take is not None:
                            client.take_packets(take)
                        row = result._read_rowdata_packet_unbuffered()
                        if row is None:
                            break
                        if until is not None and time.monotonic() > until:
                            raise ProtocolError(f"{self.address}: cannot {doing}: its answer does not end")
                        yield row
            finally:
                client.forget(result)
        finally:
            client.silence_s, client.largest_packet = before

    @property
    def account(self) -> str:
        """The account that the server takes us for, as a GRANT names it: ``'user'@'host'``."""
        row = self.row("SELECT CURRENT_USER() AS account", doing=_WHO)
        user, _, host = row.text("account").rpartition("@")
        return f"{self.quoted(user)}@{self.quoted(host)}"

    def quoted(self, text: str) -> str:
        """Write a text as a literal of SQL."""
        return str(self._client.escape(text))

    def all_variables(self) -> dict[str, str]:
        """Return all global system variables, by their names in lower case."""
        rows = self.query("SHOW GLOBAL VARIABLES", doing="read the system variables")
        return {row.text("Variable_name").lower(): row.text("Value") for row in rows}

    def variable(self, name: str) -> str | None:
        """Return a global system variable, None where this server has no such variable."""
        rows = self.query(
            "SHOW GLOBAL VARIABLES LIKE %s", [name.replace("_", r"\_")], doing=f"ask for {name}"
        )
        return rows[0].text("Value") if rows else None

    def number(self, name: str) -> int | None:
        """Return a global system variable that is a number, None where this server has no such variable."""
        rows = self.query(
            "SHOW GLOBAL VARIABLES LIKE %s", [name.replace("_", r"\_")], doing=f"ask for {name}"
        )
        return rows[0].number("Value") if rows else None

    def first_of(self, *statements: str, doing: str) -> list[Row]:
        """Run the first of several spellings of a statement that this server understands."""
        failure: SourceError | None = None
        for sql in statements:
            try:
                return self.query(sql, doing=doing)
            except SourceError as error:
                cause = error.__cause__
                if not isinstance(cause, pymysql.err.ProgrammingError) or cause.args[0] != _SYNTAX_ERROR:
                    raise
                failure = error
        assert failure is not None
        raise failure

    def send(self, command: int, payload: bytes, doing: str = "send a command") -> None:
        """Send a command; its answer is for the caller to read."""
        with self._in_words(doing):
            self._client._execute_command(command, payload)

    def send_and_expect_ok(self, command: int, payload: bytes, doing: str) -> None:
        """Send a command and read its OK packet."""
        self.send(command, payload, doing)
        with self._in_words(doing):
            self._client._read_ok_packet()

    @contextmanager
    def _in_words(self, doing: str) -> Iterator[None]:
        """Turn into a SourceError what PyMySQL raises, and what it stumbles over in an answer."""
        if doing != CONNECT:
            self._wire.doing = doing
        try:
            yield
        except SourceError:
            raise
        except pymysql.err.Error as error:
            raise self._error(error, doing) from error
        except Exception as error:
            if error is self._wire.interrupted:
                raise
            raise self._malformed(doing) from error

    def _error(self, error: pymysql.err.Error, doing: str) -> SourceError:
        if isinstance(error, pymysql.err.InterfaceError):
            return LinkLostError(f"{self.address}: the connection is closed")
        code, text = (*error.args, "", "")[:2]
        if not isinstance(code, int) or not code:
            # PyMySQL itself: packets out of order, a step of the login that nobody knows.
            return self._malformed(doing)
        code &= 0xFFFF
        account = ""
        if is_denied(code, doing) and doing != _WHO:
            with suppress(SourceError):
                account = self.account
        server, user = str(self.address), self.address.user
        return from_server(code, str(text), server=server, user=user, doing=doing, account=account)

    def _malformed(self, doing: str) -> ProtocolError:
        return ProtocolError(
            f"{self.address}: cannot {doing}: what it sends is not what MySQL's protocol has there; look "
            "whether a MySQL or MariaDB server listens there, and what lies in between"
        )


def advice_to_set(name: str, value: str) -> str:
    """Say how to set a global variable."""
    shown = value if value.isdecimal() or value in {"ON", "OFF"} else f"'{value}'"
    return f"SET GLOBAL {name}={shown}, and the same in the configuration"
