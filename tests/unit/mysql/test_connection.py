"""What is said where no server answers, or none that we can talk to."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from millrace.avro.registry import RegistryError, SchemaRegistry
from millrace.local.processes import release_port, reserve_port
from millrace.mysql.connection import MysqlAddress, MysqlConnection, SslMode
from millrace.mysql.errors import RefusedError, UnreachableError
from millrace.runtime.settings import RegistrySettings
from tests.hostile.mysql_server import nobody_accepts


def address(port: int, timeout_s: float = 60, **options: Any) -> MysqlAddress:
    return MysqlAddress("127.0.0.1", port, user="u", password="", connect_timeout_s=timeout_s, **options)


def test_no_server_there() -> None:
    port = reserve_port()
    with pytest.raises(UnreachableError) as caught:
        MysqlConnection(address(port))
    release_port(port)
    assert str(caught.value) == (
        f"127.0.0.1:{port}: cannot connect (Connection refused); check MILLRACE_MYSQL_HOST and _PORT, and "
        "that the server runs"
    )


def test_no_answer_at_all() -> None:
    """As behind a firewall."""
    with nobody_accepts() as (_, port), pytest.raises(UnreachableError) as caught:
        MysqlConnection(address(port, timeout_s=1))
    assert str(caught.value) == (
        f"127.0.0.1:{port}: no answer within 1 s; check MILLRACE_MYSQL_HOST and _PORT, and firewalls between "
        "here and there"
    )


@contextmanager
def greeting(capabilities: int, then: bytes) -> Iterator[int]:
    """A peer that greets as MySQL does, and says ``then`` to whatever it is told."""
    body = b"\x0a8.0.36\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", capabilities & 0xFFFF)
    body += b"\x2d" + struct.pack("<HHB", 2, capabilities >> 16, 21) + bytes(10)
    body += b"123456789012\0mysql_native_password\0"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(struct.pack("<I", len(body)) + body)
                connection.recv(4096)
                with suppress(ConnectionError):
                    connection.sendall(then)
                    connection.recv(4096)

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_tls_that_does_not_come_about() -> None:
    everything = 0x81BFF7FF | 0x800
    with greeting(everything, b"this is no TLS") as port, pytest.raises(RefusedError) as caught:
        MysqlConnection(address(port, ssl_mode=SslMode.VERIFY_IDENTITY))
    message = str(caught.value)
    assert message.startswith(f"127.0.0.1:{port}: the TLS handshake failed: ")
    assert message.endswith("; see MILLRACE_MYSQL_SSL_CA and _SSL_MODE")


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnreachableError) as caught:
            MysqlConnection(address(port, timeout_s=1))
    assert str(caught.value) == (
        f"127.0.0.1:{port}: no answer within 1 s while waiting for its greeting; look whether a MySQL or "
        "MariaDB server listens there and is not overloaded (MILLRACE_MYSQL_CONNECT_TIMEOUT_S)"
    )


@pytest.mark.parametrize("mode", [SslMode.VERIFY_CA, SslMode.REQUIRED])
@pytest.mark.parametrize("name", ["ssl_ca", "ssl_cert", "ssl_key"])
def test_tls_files_that_cannot_be_read(tmp_path: Path, name: str, mode: SslMode) -> None:
    with pytest.raises(RefusedError) as caught:
        MysqlConnection(address(1, ssl_mode=mode, **{name: tmp_path}))
    assert str(caught.value) == (
        f"127.0.0.1:1: {tmp_path} cannot be read: Is a directory; see MILLRACE_MYSQL_{name.upper()}"
    )


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(RefusedError) as caught:
        MysqlConnection(address(1, ssl_mode=SslMode.VERIFY_CA, ssl_ca=tmp_path / "ca.pem"))
    assert str(caught.value).startswith("127.0.0.1:1: the TLS files cannot be used: ")
    assert str(caught.value).endswith("; see MILLRACE_MYSQL_SSL_CA, _SSL_CERT and _SSL_KEY")


def test_hosts_that_cannot_be() -> None:
    with pytest.raises(UnreachableError) as caught:
        MysqlConnection(MysqlAddress("db..example", user="u", password=""))
    assert str(caught.value) == (
        "db..example:3306: there can be no host of that name; check MILLRACE_MYSQL_HOST"
    )
    url = "http://b\u00fc..example:8081"
    with pytest.raises(RegistryError) as refused, SchemaRegistry(RegistrySettings(url=url)) as registry:
        registry.check()
    assert refused.value.message.startswith(f"{url} cannot be a schema registry (")
    assert refused.value.message.endswith("): check MILLRACE_REGISTRY_URL")
