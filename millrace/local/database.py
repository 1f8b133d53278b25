"""MySQL and MariaDB servers that write a complete binary log."""

import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pymysql

from millrace.local.artifacts import bundle, cache_folder, fetch, made_once
from millrace.local.certificates import write_certificates
from millrace.local.component import Component
from millrace.local.errors import ComponentDiedError, LocalError, MissingLibraryError
from millrace.local.processes import Process
from millrace.mysql.address import MysqlAddress, SslMode

if TYPE_CHECKING:
    from pymysql.connections import Connection

Option = str | int | bool | None
"""A server option: its value, True for one without a value, None to leave out a default."""

_DEBIAN_PACKAGES = {
    "libaio.so.1": "libaio1",
    "libcrypt.so.1": "libcrypt1",
    "libnuma.so.1": "libnuma1",
    "libstdc++.so.6": "libstdc++6",
    "libsystemd.so.0": "libsystemd0",
}


class DatabaseServer(Component):
    """A database server with its binary log on, ready to be replicated from.

    ``host``, ``port``, ``user`` and ``password`` belong to an account that may replicate and read every
    table; ``execute``, ``query`` and ``connect`` work as root through the Unix socket. ``options`` are server
    options without the leading dashes; they override the defaults, None leaves one out, True stands for one
    without value.
    """

    flavor: ClassVar[str]
    host = "127.0.0.1"
    user = "millrace"

    def __init__(self, *, server_id: int = 1, options: Mapping[str, Option] | None = None) -> None:
        super().__init__(self.flavor)
        self.server_id = server_id
        self.options = dict(options or {})
        self.password = secrets.token_urlsafe(12)
        self.version = bundle(self.flavor).version
        self._program: Path | None = None

    @property
    def port(self) -> int:
        """TCP port on loopback."""
        return self.ports[0]

    @property
    def socket(self) -> Path:
        """The Unix socket."""
        return self.folder / "mysqld.sock"

    @property
    def data_folder(self) -> Path:
        """The data folder, where the binary log files lie as well."""
        return self.folder / "data"

    @property
    def binlog_files(self) -> list[Path]:
        """The binary log's files, oldest first."""
        return sorted(path for path in self.data_folder.glob("mysql-bin.*") if path.suffix[1:].isdecimal())

    @property
    def address(self) -> MysqlAddress:
        """Where it is, and the account as above; with TLS, verified."""
        return MysqlAddress(
            self.host,
            self.port,
            self.user,
            self.password,
            # MySQL's certificate, which it makes for itself, names no host.
            ssl_mode=SslMode.VERIFY_CA,
            ssl_ca=self.ca_file,
        )

    @property
    def root_address(self) -> MysqlAddress:
        """Where root logs in."""
        return MysqlAddress(user="root", unix_socket=str(self.socket))

    @property
    def ca_file(self) -> Path:
        """Certificate of the authority that signed the server's."""
        return self.data_folder / "ca.pem"

    def connect(self, **options: Any) -> "Connection[Any]":
        """Open a connection as root; ``options`` are PyMySQL's. Autocommit is on unless asked otherwise."""
        settings: dict[str, Any] = {
            "user": "root",
            "unix_socket": str(self.socket),
            "ssl_disabled": True,
            "charset": "utf8mb4",
            "autocommit": True,
            "max_allowed_packet": 1 << 30,
        }
        return pymysql.connect(**{**settings, **options})

    def execute(self, *statements: str) -> None:
        """Run statements as root on one connection, each committed on its own unless they say BEGIN."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement as root and return its rows."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def _prepare(self) -> None:
        template = self._template()
        # Reflinks or sparse copies are not portable; 50 MB are copied faster than a server initialises.
        shutil.copytree(template, self.data_folder, dirs_exist_ok=True)

    def _launch(self) -> None:
        options = {
            **self._base_options(self.data_folder),
            "socket": str(self.socket),
            "port": self.port,
            "bind-address": self.host,
            "server-id": self.server_id,
            "log-bin": "mysql-bin",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "binlog-row-metadata": "FULL",
            "max-allowed-packet": "1G",
            "skip-name-resolve": True,
            # What was written outlives a killed server; only a crash of the machine would lose some.
            "innodb-flush-log-at-trx-commit": 2,
            "sync-binlog": 0,
            **self._flavor_options(),
            **self.options,
        }
        self.socket.unlink(missing_ok=True)
        command = [str(self._server_program()), "--no-defaults", *_arguments(options)]
        log = self.folder / f"{self.name}.log"
        self.processes = [Process(self.name, command, log=log, env=self._environment(), cwd=self.folder)]

    def _is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:  # PyMySQL leaves its socket open when it cannot connect
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        try:
            self.connect(connect_timeout=30).close()
        except pymysql.err.OperationalError:  # it listens a moment before it fails to start
            return False
        return True

    def _after_first_start(self) -> None:
        self.execute(
            "SET SESSION sql_log_bin=0",
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO '{self.user}'@'%'",
        )

    def _template(self) -> Path:
        """Return an initialised data folder to copy from; made once and kept in the cache."""
        name = f"{self.flavor}-{_server_version(self._server_program(), self._environment())}"

        def initialize(folder: Path) -> None:
            self._initialize(folder, folder.with_name("initialize.log"))
            # The identity of the server, which makes one of its own when it starts.
            (folder / "auto.cnf").unlink(missing_ok=True)

        waiting_for = f"another process that sets up {self.name}"
        return made_once(cache_folder() / "data" / name, initialize, waiting_for=waiting_for)

    def _run_initialize(self, options: Mapping[str, Option], log: Path, stdin: bytes = b"") -> None:
        command = [str(self._server_program()), "--no-defaults", *_arguments(options)]
        with log.open("wb") as output:
            done = subprocess.run(  # noqa: S603 - our own command
                command, input=stdin, stdout=output, stderr=output, env=self._environment(), check=False
            )
        if done.returncode != 0:
            text = log.read_text(errors="replace")[-4000:]
            raise ComponentDiedError(
                f"{self.name} cannot initialise its data (exit code {done.returncode}):\n{text}"
            )

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        options: dict[str, Option] = {
            "datadir": str(data_folder),
            # Not the machine's: a MariaDB that starts removes the temporary tables of others there too.
            "tmpdir": str(data_folder.parent),
            "loose-innodb-use-native-aio": 0,
            # MySQL 9.7 knows it no more, and takes its size by another name.
            "loose-innodb-log-file-size": "16M",
            "innodb-buffer-pool-size": "128M",
        }
        if os.getuid() == 0:
            options["user"] = "root"
        return options

    def _server_program(self) -> Path:
        if self._program is None:
            self._program = self._find_program()
            if missing := _missing_libraries(self._program, self._environment()):
                raise MissingLibraryError(_missing_message(self.name, missing), missing)
        return self._program

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    @abstractmethod
    def _find_program(self) -> Path:
        """Return the server's program, fetched if need be."""

    @abstractmethod
    def _initialize(self, folder: Path, log: Path) -> None:
        """Fill an empty data folder."""

    @abstractmethod
    def _flavor_options(self) -> dict[str, Option]:
        """Return options that only this kind of server knows."""


class MySQL(DatabaseServer):
    """MySQL with GTIDs: an installed server of version 8 or 9, else 8.0.15 from Maven."""

    flavor = "mysql"

    def _find_program(self) -> Path:
        if (installed := _installed_mysqld()) is not None:
            return installed
        _require_linux_amd64(self.name)
        return fetch("mysql") / "bin" / "mysqld"

    def _environment(self) -> dict[str, str]:
        environment = super()._environment()
        if self._program is not None and self._program.is_relative_to(cache_folder()):
            # MySQL wants libaio even where it does not use it.
            probe = _missing_libraries(self._program, environment)
            if "libaio.so.1" in probe:
                path = [str(fetch("libaio")), environment.get("LD_LIBRARY_PATH", "")]
                environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, path))
        return environment

    def _initialize(self, folder: Path, log: Path) -> None:
        options = {**self._base_options(folder), "initialize-insecure": True, "log-bin": None}
        self._run_initialize(options, log)

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        options = super()._base_options(data_folder)
        base = self._server_program().parent.parent
        if (
            base / "share" / "english"
        ).is_dir():  # the archive keeps its files where the server does not look
            options |= {"basedir": str(base), "lc-messages-dir": str(base / "share")}
            options |= {"character-sets-dir": str(base / "share" / "charsets")}
        return options

    def _flavor_options(self) -> dict[str, Option]:
        return {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "loose-mysqlx": 0}


class MariaDB(DatabaseServer):
    """MariaDB 11.4 from Maven."""

    flavor = "mariadb"

    def _find_program(self) -> Path:
        _require_linux_amd64(self.name)
        return fetch("mariadb") / "bin" / "mariadbd"

    def _initialize(self, folder: Path, log: Path) -> None:
        share = Path(str(self._base_options(folder)["lc-messages-dir"]))
        scripts = ("mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data")
        prelude = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        sql = prelude + b"".join((share / f"{name}.sql").read_bytes() for name in scripts)
        options = {
            **self._base_options(folder),
            "bootstrap": True,
            "log-warnings": 0,
            "enforce-storage-engine": "",
        }
        self._run_initialize(options, log, sql)
        write_certificates(folder)

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        base = self._server_program().parent.parent
        return {
            **super()._base_options(data_folder),
            "basedir": str(base),
            "lc-messages-dir": str(base / "share"),
            "character-sets-dir": str(base / "share" / "charsets"),
        }

    def _flavor_options(self) -> dict[str, Option]:
        return {
            "log-slave-updates": True,
            "binlog-annotate-row-events": True,
            "binlog-checksum": "CRC32",
            "ssl-ca": str(self.ca_file),
            "ssl-cert": str(self.data_folder / "server-cert.pem"),
            "ssl-key": str(self.data_folder / "server-key.pem"),
        }


def _arguments(options: Mapping[str, Option]) -> list[str]:
    arguments = []
    for name, value in options.items():
        if value is None:
            continue
        arguments.append(f"--{name}" if value is True else f"--{name}={value}")
    return arguments


def _installed_mysqld() -> Path | None:
    """Return a mysqld on PATH that is MySQL 8 or 9, and runs."""
    if (found := shutil.which("mysqld")) is None:
        return None
    program = Path(found)
    environment = dict(os.environ)
    if _missing_libraries(program, environment):
        return None
    return program if _server_version(program, environment).startswith(("8.", "9.")) else None


def _server_version(program: Path, environment: Mapping[str, str]) -> str:
    """Return what the server calls its version; for MariaDB it ends in ``-MariaDB``."""
    done = subprocess.run(  # noqa: S603 - a server's program
        [program, "--no-defaults", "--version"],
        capture_output=True,
        text=True,
        env=dict(environment),
        check=False,
    )
    match = re.search(r"Ver (\S+)", done.stdout)
    if match is None:
        raise LocalError(f"{program} --version says nothing of use: {done.stdout or done.stderr}")
    return match[1]


def _missing_libraries(program: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the shared libraries that the dynamic loader does not find for a program."""
    done = subprocess.run(  # noqa: S603 - the loader lists and does not run the program
        [program],
        capture_output=True,
        text=True,
        env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"},
        check=False,
    )
    return _not_found(done.stdout + done.stderr)


def _not_found(listed: str) -> list[str]:
    missing = re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE)
    missing += re.findall(r"error while loading shared libraries: (\S+):", listed)
    return sorted(set(missing))


def _missing_message(name: str, missing: Sequence[str]) -> str:
    packages = " ".join(_DEBIAN_PACKAGES.get(library, library) for library in missing)
    return (
        f"{name} cannot start: this machine lacks {', '.join(missing)}; "
        f"on Debian or Ubuntu install: {packages}; elsewhere the packages that hold these libraries"
    )


def _require_linux_amd64(name: str) -> None:
    if platform.system() != "Linux" or platform.machine() not in {"x86_64", "AMD64"}:
        raise LocalError(
            f"there is no {name} to fetch for {platform.system()} on {platform.machine()}, only for Linux on "
            "x86-64; use a server of your own instead"
        )
