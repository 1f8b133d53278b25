"""A connection to MySQL or MariaDB, over PyMySQL, whose errors say what to do.

Which server it is and what it can do is asked of the server itself (variables that exist, statements that it
understands), never concluded from its version number.
"""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pymysql
from pymysql.constants import COMMAND

from millrace.mysql.errors import CONNECT, RefusedError, SourceError, UnreachableError, from_server

__all__ = ["Flavour", "MysqlAddress", "MysqlConnection", "Row"]

Row = dict[str, Any]

_QUERY_TIMEOUT_S: Final = 30.0


class Flavour(Enum):
    """Whose server it is."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """Where a server is and how we log in.

    TLS is used when the server offers it, unless ``ssl_disabled``. With ``ssl_verify`` it is required, and
    the server's certificate must be signed (by ``ssl_ca`` if given, else by a known authority) for ``host``.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    ssl_ca: Path | None = None
    ssl_cert: Path | None = None
    ssl_key: Path | None = None
    ssl_verify: bool = False
    ssl_disabled: bool = False
    connect_timeout_s: float = 10.0

    def __str__(self) -> str:
        if self.unix_socket:
            return self.unix_socket
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class MysqlConnection:
    """An open connection; use it in a ``with`` block or :meth:`close` it."""

    def __init__(self, address: MysqlAddress) -> None:
        """Connect and log in; raises :class:`UnreachableError` or :class:`RefusedError`."""
        self.address = address
        # Any: what a replica needs of PyMySQL (its socket, raw commands) has no public name there.
        self._connection: Any = _connect(address)
        try:
            version = self.variable("version")
            self.version = str(version)
            # A replication or cluster build may leave the name out of the version; the comment has it then.
            comment = str(self.variable("version_comment") or "")
            is_mariadb = "mariadb" in f"{version} {comment}".lower()
        except BaseException:
            self.close()
            raise
        self.flavour = Flavour.MARIADB if is_mariadb else Flavour.MYSQL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and close the socket; a second time does nothing."""
        if self._connection.open:
            self._connection.close()

    @property
    def socket(self) -> socket.socket:
        """The socket, plain or TLS; the caller reads packets from it behind a command."""
        found = self._connection._sock
        if found is None:
            raise UnreachableError(f"{self.address}: the connection is closed")
        assert isinstance(found, socket.socket)
        return found

    @property
    def client(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """PyMySQL's own connection, for results that are read as they come."""
        client: pymysql.Connection[pymysql.cursors.Cursor] = self._connection
        return client

    def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "run a query") -> list[Row]:
        """Run a statement and return its rows; ``doing`` says in an error message what it was for."""
        try:
            with self._connection.cursor(pymysql.cursors.DictCursor) as cursor:
                cursor.execute(sql, values or None)
                return list(cursor.fetchall())
        except (pymysql.err.Error, OSError) as error:
            raise self.error(error, doing) from error

    def variable(self, name: str) -> Any:
        """Return a global system variable, None where this server has no such variable."""
        rows = self.query("SHOW GLOBAL VARIABLES LIKE %s", [name.replace("_", r"\_")])
        return rows[0]["Value"] if rows else None

    def first_of(self, *statements: str, doing: str) -> list[Row]:
        """Run the first of several spellings of a statement that this server understands."""
        failure: SourceError | None = None
        for sql in statements:
            try:
                return self.query(sql, doing=doing)
            except SourceError as error:
                cause = error.__cause__
                if not isinstance(cause, pymysql.err.ProgrammingError) or cause.args[0] != 1064:
                    raise
                failure = error
        assert failure is not None
        raise failure

    def send(self, command: int, payload: bytes) -> None:
        """Send a command; its answer is for the caller to read."""
        try:
            self._connection._execute_command(command, payload)
        except (pymysql.err.Error, OSError) as error:
            raise self.error(error, "send a command") from error

    def send_and_expect_ok(self, command: int, payload: bytes, doing: str) -> None:
        """Send a command and read its OK packet."""
        self.send(command, payload)
        try:
            self._connection._read_ok_packet()
        except (pymysql.err.Error, OSError) as error:
            raise self.error(error, doing) from error

    def ping(self) -> None:
        """Ask the server for a sign of life."""
        self.send_and_expect_ok(COMMAND.COM_PING, b"", "ping")

    def error(self, error: Exception, doing: str) -> SourceError:
        """Return what ``error`` of PyMySQL or of the system means in words."""
        return _in_words(self.address, error, doing)


def _connect(address: MysqlAddress) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    tls: dict[str, Any] = {}
    if not address.ssl_disabled:
        _check_tls_files(address)
    if address.ssl_disabled:
        tls["ssl_disabled"] = True
    elif address.ssl_verify:
        tls["ssl"] = _verifying_context(address)
    elif address.ssl_ca or address.ssl_cert or address.ssl_key:
        tls = {
            "ssl_ca": address.ssl_ca and str(address.ssl_ca),
            "ssl_cert": address.ssl_cert and str(address.ssl_cert),
            "ssl_key": address.ssl_key and str(address.ssl_key),
            "ssl_verify_cert": address.ssl_ca is not None,
        }
    try:
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            # PyMySQL would encode a text as latin1; servers compare the bytes of UTF-8.
            password=address.password.encode(),
            unix_socket=address.unix_socket,
            connect_timeout=max(1, round(address.connect_timeout_s)),
            # Of the login too: a host behind a dead network may accept a connection and then say nothing.
            read_timeout=address.connect_timeout_s,
            charset="utf8mb4",
            autocommit=True,
            program_name="millrace",
            **tls,
        )
    except UnicodeError as error:
        raise UnreachableError(
            f"{address}: there can be no host of that name; check MILLRACE_MYSQL_HOST"
        ) from error
    except (pymysql.err.Error, OSError) as error:
        raise _in_words(address, error, CONNECT) from error
    connection._read_timeout = max(_QUERY_TIMEOUT_S, address.connect_timeout_s)  # type: ignore[attr-defined]
    return connection


def _check_tls_files(address: MysqlAddress) -> None:
    """Refuse files that cannot be read, of which PyMySQL's error does not say that it is they."""
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        path = getattr(address, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise RefusedError(
                f"{address}: {path} cannot be read: {error.strerror}; see MILLRACE_MYSQL_{name.upper()}"
            ) from error


def _verifying_context(address: MysqlAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ssl_ca and str(address.ssl_ca))
        if address.ssl_cert is not None:
            context.load_cert_chain(address.ssl_cert, address.ssl_key)
    except OSError as error:  # ssl.SSLError is one
        raise RefusedError(
            f"{address}: the TLS files cannot be used: {error}; "
            "see MILLRACE_MYSQL_SSL_CA, _SSL_CERT and _SSL_KEY"
        ) from error
    return context


def _in_words(address: MysqlAddress, error: Exception, doing: str) -> SourceError:
    server, user = str(address), address.user
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "verify_message", "") or cause.reason or str(cause)
        return RefusedError(
            f"{server}: TLS does not come about: {reason}; "
            "see MILLRACE_MYSQL_SSL_CA, _SSL_VERIFY and _SSL_DISABLED"
        )
    if isinstance(cause, socket.gaierror):
        return UnreachableError(
            f"{server}: there is no host of that name ({cause.strerror}); check MILLRACE_MYSQL_HOST"
        )
    if isinstance(cause, TimeoutError):
        return UnreachableError(
            f"{server}: no answer; check MILLRACE_MYSQL_HOST and _PORT, and firewalls between here and there"
        )
    if isinstance(cause, OSError):
        return UnreachableError(
            f"{server}: cannot connect ({cause.strerror or cause}); "
            "check MILLRACE_MYSQL_HOST and _PORT, and that the server runs"
        )
    code, text = (error.args[0], str(error.args[1])) if len(error.args) >= 2 else (0, str(error))
    if not isinstance(code, int):
        code = 0
    return from_server(code, text, server=server, user=user, doing=doing)
