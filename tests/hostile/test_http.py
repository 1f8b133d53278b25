"""Clients of a service's HTTP endpoints that send too much, too slowly, or leave.

None of them leaves a traceback, a thread that stays, or keeps a probe from its answer.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from millrace.runtime import metrics
from millrace.runtime.health import Health
from millrace.runtime.logging import configure_logging
from millrace.runtime.metrics import HttpServer, new_registry

PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(capfd: pytest.CaptureFixture[str]) -> Iterator[HttpServer]:
    with HttpServer("127.0.0.1", 0, Health(), new_registry()) as server:
        yield server
        assert "200 OK" in asked(server, PROBE)
    wait_for_threads()
    assert capfd.readouterr().err == ""


def wait_for_threads() -> None:
    """Each connection has a thread, which must end."""
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def everything(connection: socket.socket) -> str:
    """Read to the end; one that was cut gives what came until then."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces).decode("latin-1")


def asked(server: HttpServer, request: bytes) -> str:
    with connected(server) as connection:
        connection.sendall(request)
        return everything(connection)


@pytest.mark.parametrize(
    ("host", "clients"),
    [("::1", ["::1"]), ("*", ["::1", "127.0.0.1"]), ("::", ["::1", "127.0.0.1"]), ("0.0.0.0", ["127.0.0.1"])],
)
def test_addresses_of_both_families(host: str, clients: list[str]) -> None:
    if "::1" in clients and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with HttpServer(host, 0, Health(), new_registry()) as server:
        for client in clients:
            with socket.create_connection((client, server.port), timeout=60) as connection:
                connection.sendall(PROBE)
                assert "200 OK" in everything(connection)


def test_all_addresses_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with HttpServer("*", 0, Health(), new_registry()) as server:
        assert "200 OK" in asked(server, PROBE)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_client_that_leaves(server: HttpServer) -> None:
    for request in (b"", b"GET /met", PROBE, b"GET /metrics HTTP/1.1\r\n\r\n"):
        for _ in range(20):
            connection = connected(server)
            connection.sendall(request)
            # Sends RST instead of FIN, so that the answer meets a broken pipe.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()


@pytest.mark.parametrize("drip", [b"G", b"X-A: b\r\n", b""], ids=["request line", "headers", "nothing"])
def test_a_client_that_drips(server: HttpServer, drip: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_TIME_LIMIT_S", 0.5)
    with connected(server) as connection:
        connection.sendall(b"" if drip == b"G" else b"GET /healthz HTTP/1.1\r\n")
        connection.settimeout(0.05)
        while True:
            try:
                connection.sendall(drip)
                if connection.recv(65536) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


def test_a_client_that_does_not_read(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_TIME_LIMIT_S", 0.5)
    monkeypatch.setattr(metrics, "generate_latest", lambda _: b"x" * (64 << 20))
    with connected(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for_threads()


def test_many_connections_do_not_keep_a_probe_out(server: HttpServer) -> None:
    with ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connected(server)).sendall(b"GET /")
        assert "200 OK" in asked(server, PROBE)
        names = [thread.name for thread in threading.enumerate()]
        assert len([name for name in names if "process_request_thread" in name]) <= 100


def test_a_probe_that_waits_for_its_thread_is_not_hung_up_on(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half requests are, however many come after it; none of them has a thread."""
    monkeypatch.setattr(metrics, "_MOST_CONNECTIONS", 4)
    goes_on, answer = threading.Event(), metrics._Server.process_request_thread

    def later(server: metrics._Server, *request: Any) -> None:
        goes_on.wait(60)
        answer(server, *request)

    monkeypatch.setattr(metrics._Server, "process_request_thread", later)
    with ExitStack() as stack:
        probe = stack.enter_context(connected(server))
        probe.sendall(PROBE)
        halves = [stack.enter_context(connected(server)) for _ in range(10)]
        for half in halves:
            half.sendall(b"GET /")
        assert everything(halves[0]) == ""
        threads = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
        assert len(threads) <= 1
        goes_on.set()
        assert "200 OK" in everything(probe)


def test_a_request_that_comes_in_two_pieces(server: HttpServer) -> None:
    with connected(server) as connection:
        connection.sendall(PROBE[:-3])
        time.sleep(0.1)
        connection.sendall(PROBE[-3:])
        assert "200 OK" in everything(connection)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", "414"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", "431"),
        (b"GET / HTTP/9.9\r\n\r\n", "505"),
        (b"GET / NONSENSE/1\r\n\r\n", "400"),
        (b"GET\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n", "501"),
        (b"DELETE /healthz HTTP/1.1\r\n\r\n", "501"),
        (b"<script> /metrics HTTP/1.1\r\n\r\n", "501"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"GET http://elsewhere/healthz HTTP/1.1\r\n\r\n", "404"),
        (b"GET /healthz?x=y HTTP/1.1\r\n\r\n", "200"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", "200"),
    ],
)
def test_what_is_no_probe(server: HttpServer, request_: bytes, status: str) -> None:
    answer = asked(server, request_)
    if answer:  # where much is still on its way when it is refused, the connection is reset
        assert answer.startswith(f"HTTP/1.0 {status} ")
        assert "Python" not in answer.partition("\r\n\r\n")[0]
        assert "<script>" not in answer


def test_a_head_has_no_body(server: HttpServer) -> None:
    head, _, body = asked(server, b"HEAD /readyz HTTP/1.1\r\n\r\n").partition("\r\n\r\n")
    assert "503" in head
    assert "Content-Length: 10" in head
    assert body == ""


def test_a_bug_of_ours_is_logged(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(metrics, "generate_latest", broken)
    configure_logging()
    with HttpServer("127.0.0.1", 0, Health(), new_registry()) as server:
        assert "500" in asked(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "ZeroDivisionError" in captured.out
