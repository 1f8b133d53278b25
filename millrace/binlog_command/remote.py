"""Which server is read, and how it is reached, by the options of mysqlbinlog and mariadb-binlog."""

import getpass
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.binlog_command.options import Options
from millrace.binlog_command.tool_options import ASK
from millrace.mysql.address import SslMode

if TYPE_CHECKING:
    from millrace.mysql.server_log import ServerAddress

_LOCALHOST: Final = "localhost"
_SOCKETS: Final = (
    "/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",  # noqa: S108 - where servers have it
)
"""Where the packages of MySQL and MariaDB put the server's socket."""


def is_remote(options: Options) -> bool:
    """Return whether the logs are those of the server that the options name."""
    return options.read_from_remote_server or options.read_from_remote_source is not None


def of_servers(options: Options) -> list[str]:
    """Name the options given that say how a server is reached."""
    given = {
        "--host": options.host,
        "--port": options.port,
        "--socket": options.socket,
        "--protocol": options.protocol,
        "--user": options.user,
        "--password": options.password,
        "--ssl-mode": options.ssl_mode,
        "--ssl": options.ssl,
        "--ssl-ca": options.ssl_ca,
        "--ssl-cert": options.ssl_cert,
        "--ssl-key": options.ssl_key,
        "--ssl-verify-server-cert": options.ssl_verify_server_cert,
        "--get-server-public-key": options.get_server_public_key or None,
        "--server-public-key-path": options.server_public_key_path,
        "--connection-server-id": options.connection_server_id,
    }
    return [name for name, value in given.items() if value is not None]


def server_address(options: Options, name: str, note: Callable[[str], None]) -> "ServerAddress":
    """Return the address of a log: a URL, or with --read-from-remote-server the log's name.

    Raises UserError.
    """
    from millrace.mysql.server_log import ServerAddress, is_server  # noqa: PLC0415 - only where one is read

    if is_server(name):
        return ServerAddress.parse(name, _password(options))
    return ServerAddress.of_settings(_settings(options, note), name)


def _settings(options: Options, note: Callable[[str], None]) -> dict[str, Any]:
    """Return the settings of MILLRACE_MYSQL_… that the options say."""
    from millrace.mysql.server_log import given_settings  # noqa: PLC0415 - likewise

    given = given_settings()
    values: dict[str, Any] = {
        "user": options.user,
        "password": _password(options),
        "ssl_cert": options.ssl_cert,
        "ssl_key": options.ssl_key,
        "server_public_key_path": options.server_public_key_path,
        "get_server_public_key": options.get_server_public_key or None,
        **_place(options, host_is_set="host" in given),
        **_tls(options, note),
    }
    if values["user"] is None and "user" not in given:
        values["user"] = getpass.getuser()
    if values["password"] is None and "password" not in given:
        values["password"] = os.environ.get("MYSQL_PWD")
    return {name: value for name, value in values.items() if value is not None}


def _place(options: Options, *, host_is_set: bool) -> dict[str, Any]:
    """Return where the server is; without --host and --socket what the settings say, else this machine."""
    if options.socket is not None:
        return {"host": options.socket}
    if options.host is None and host_is_set:
        return {"port": options.port or None}
    host = options.host or os.environ.get("MARIADB_HOST") or _LOCALHOST
    default_port = os.environ.get("MYSQL_TCP_PORT") or "0"
    if not default_port.isdecimal():
        raise click.UsageError(f"MYSQL_TCP_PORT is {default_port!r}, expected a number")
    port = options.port or int(default_port)
    if host == _LOCALHOST and options.protocol != "tcp" and not options.port:
        paths = [os.environ.get("MYSQL_UNIX_PORT"), *_SOCKETS]
        found = next((path for path in paths if path and os.path.exists(path)), None)  # noqa: PTH110
        if found is not None:
            return {"host": found}
        if options.protocol == "socket":
            raise click.UsageError("no server's socket was found: name it by --socket")
    return {"host": host, "port": port or None}


def _tls(options: Options, note: Callable[[str], None]) -> dict[str, Any]:
    """Return how TLS is used; of what the programs do not do alike, what is verified more."""
    mode = None if options.ssl_mode is None else SslMode(options.ssl_mode.upper())
    if mode is None and options.ssl is False:
        mode = SslMode.DISABLED
    elif mode is None and options.ssl_verify_server_cert:
        mode = SslMode.VERIFY_IDENTITY
    elif mode is None and options.ssl_ca is not None:
        # Of the programs MariaDB's verifies the host as well, MySQL's the authority alone.
        mode = SslMode.REQUIRED if options.ssl_verify_server_cert is False else SslMode.VERIFY_IDENTITY
    elif mode is None and options.ssl:
        mode = SslMode.REQUIRED
    ca = options.ssl_ca
    if ca is not None and mode is not None and not mode.verifies:
        note(f"the server's certificate is not checked against {ca}: --ssl-mode=VERIFY_CA does so")
        ca = None
    return {"ssl_mode": mode, "ssl_ca": ca}


def _password(options: Options) -> str | None:
    if options.password == ASK:
        return str(click.prompt("Password", hide_input=True, default="", show_default=False, err=True))
    return options.password
