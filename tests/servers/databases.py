"""Servers of many versions: some are fetched, others run already and are named by ``SERVERS``.

``SERVERS`` holds addresses, separated by blanks: ``mysql://root:password@127.0.0.1:3307/var/lib/mysql``. The
account must be allowed everything. The path, if there is one, is the folder with the server's binary log,
which is then compared byte for byte. Such a server must write a binary log in ROW format with the base name
``mysql-bin``; its database ``servers`` is dropped.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pymysql

from millrace.local import MariaDB, MySQL
from millrace.local.artifacts import bundle, cache_folder, fetch, made_folder, made_once
from millrace.local.database import DatabaseServer, Option
from millrace.local.errors import LocalError
from millrace.mysql.address import MysqlAddress
from tests.debian import unpacked_from

VARIABLE = "SERVERS"


class OldMySQL(MySQL):
    """MySQL 5.5, 5.6 or 5.7 from Maven."""

    def __init__(
        self, bundle_name: str, *, server_id: int = 1, options: Mapping[str, Option] | None = None
    ) -> None:
        version = bundle(bundle_name).version
        unknown = ["binlog-row-metadata", *(["binlog-row-image"] if version.startswith("5.5") else [])]
        super().__init__(server_id=server_id, options={**dict.fromkeys(unknown), **(options or {})})
        self._bundle, self.version = bundle_name, version

    def _find_program(self) -> Path:
        return fetch(self._bundle) / "bin" / "mysqld"

    def _environment(self) -> dict[str, str]:
        # What these programs are linked to has left the distributions; archives of other servers carry it.
        return _with_libraries(fetch("libaio"), fetch("mysql") / "lib")

    def _initialize(self, folder: Path, log: Path) -> None:
        if self.version.startswith("5.7"):
            super()._initialize(folder, log)
            return
        share = self._server_program().parent.parent / "share"
        scripts = ("mysql_system_tables", "mysql_system_tables_data")
        (folder / "mysql").mkdir()
        sql = b"USE mysql;\n" + b"".join((share / f"{name}.sql").read_bytes() for name in scripts)
        self._run_initialize({**self._base_options(folder), "bootstrap": True}, log, sql)

    def _flavor_options(self) -> dict[str, Option]:
        if self.version.startswith("5.5"):
            return {"log-slave-updates": True}
        return {"gtid-mode": "ON", "enforce-gtid-consistency": True, "log-slave-updates": True}


class OldMariaDB(MariaDB):
    """MariaDB 10.x from Maven."""

    def __init__(self, bundle_name: str) -> None:
        version = bundle(bundle_name).version
        super().__init__(options={"binlog-row-metadata": None} if version.startswith("10.2") else {})
        self._bundle, self.version = bundle_name, version

    def _find_program(self) -> Path:
        programs = fetch(self._bundle) / "bin"
        return next(programs / name for name in ("mariadbd", "mysqld") if (programs / name).exists())

    def _environment(self) -> dict[str, str]:
        return _with_libraries(fetch("libaio"))

    def _initialize(self, folder: Path, log: Path) -> None:
        share = self._server_program().parent.parent / "share"
        scripts = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
        prelude = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        sql = prelude + b"".join(
            path.read_bytes() for path in (share / f"{name}.sql" for name in scripts) if path.exists()
        )
        self._run_initialize({**self._base_options(folder), "bootstrap": True}, log, sql)

    def _flavor_options(self) -> dict[str, Option]:
        return {
            "log-slave-updates": True,
            "binlog-annotate-row-events": True,
            "binlog-checksum": "CRC32",
        }


class DebianServer(DatabaseServer):
    """A server of another suite of Debian, unpacked into the cache, with the libraries of that suite."""

    suite: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    program: ClassVar[str]

    @property
    def root(self) -> Path:
        """Where the packages are unpacked."""

        def make(folder: Path) -> None:
            if unpacked_from(self.suite, folder / "packages", *self.packages) is None:
                raise LocalError(f"apt-get has no {self.packages[0]} of {self.suite} for this machine")

        place = made_folder(cache_folder() / "debian") / f"{self.packages[0]}-{self.suite}"
        waiting_for = f"another process that fetches {self.packages[0]}"
        return made_once(place, make, waiting_for=waiting_for) / "packages" / "root"

    def _find_program(self) -> Path:
        # By the loader of its suite: the machine's may be too old for its libraries.
        (loader,) = (self.root / "usr" / "lib64").glob("ld-linux-*")
        libraries = ":".join(str(path) for path in (self.root / "usr" / "lib").glob("*-linux-gnu"))
        script = self.folder / self.program
        script.write_text(
            f'#!/bin/sh\nexec {loader} --library-path {libraries} {self.root}/usr/sbin/{self.program} "$@"\n'
        )
        script.chmod(0o755)
        return script

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        share = next((self.root / "usr" / "share").glob("*/charsets")).parent
        return {
            **super()._base_options(data_folder),
            "basedir": str(self.root / "usr"),
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
        }


class DebianMySQL(DebianServer, MySQL):
    """MySQL 9.7."""

    suite, packages, program = "sid", ("mysql-server-core",), "mysqld"

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        # Debian's folder for files is of the machine.
        return {**super()._base_options(data_folder), "secure-file-priv": ""}


class DebianMariaDB(DebianServer, MariaDB):
    """MariaDB 11.8."""

    suite, packages, program = "trixie", ("mariadb-server-core",), "mariadbd"


class NamedServer:
    """A server that runs already; what tests use of a :class:`~millrace.local.database.DatabaseServer`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname, f"{VARIABLE}: {url} is not of the form mysql://user:password@host:port/folder"
        self.host, self.port = parts.hostname, parts.port or 3306
        self.user, self.password = unquote(parts.username or "root"), unquote(parts.password or "")
        self._folder = Path(parts.path) if len(parts.path) > 1 else None

    @property
    def binlog_files(self) -> list[Path]:
        """The binary log's files, oldest first; none where their folder was not named."""
        found = self._folder.glob("mysql-bin.*") if self._folder is not None else ()
        return sorted(path for path in found if path.suffix[1:].isdecimal())

    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]":
        """Open a connection."""
        account = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        return pymysql.connect(**{**account, "charset": "utf8mb4", "autocommit": True, **options})

    @property
    def root_address(self) -> MysqlAddress:
        """Where that account logs in."""
        return MysqlAddress(self.host, self.port, self.user, self.password)

    execute = DatabaseServer.execute
    query = DatabaseServer.query


def fetched(name: str) -> DatabaseServer:
    """Return the server of a name in :data:`FETCHED`, not started yet."""
    match name:
        case "mysql":
            return MySQL()
        case "mariadb":
            return MariaDB()
        case _:
            return OldMySQL(name) if name.startswith("mysql") else OldMariaDB(name)


FETCHED = ("mysql55", "mysql56", "mysql57", "mysql", "mariadb102", "mariadb1011", "mariadb")
NAMED = tuple(os.environ.get(VARIABLE, "").split())


def _with_libraries(*folders: Path) -> dict[str, str]:
    path = [*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, path))}
