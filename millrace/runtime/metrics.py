"""The small HTTP server of a service: ``/healthz``, ``/readyz`` and ``/metrics`` for Prometheus.

Names follow Prometheus' conventions: ``millrace_{service}_{what}_{unit}``, seconds and bytes as units,
counters with ``_total``. What all services have is ``millrace_service_…``. Times are in seconds since 1970.

Who connects is not trusted: a connection has a time limit, of those that are open only so many stay, and a
client that sends nonsense or leaves early is not worth a line.
"""

import contextlib
import re
import selectors
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from typing import Any, Final, Self

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from millrace import __version__, kernel
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.text import printable

_TIME_LIMIT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 32
_LOOK_AGAIN_S: Final = 0.02
_LONGEST_HEAD: Final = 8192
"""Bytes; a longer head is read by the thread that answers."""
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")


MISSING: Final = frozenset(
    (
        "millrace_reader_gaps",
        "millrace_reader_incidents",
        "millrace_reader_bad_checksums",
        "millrace_decoder_dead_letters",
        "millrace_rowmapper_gaps",
        "millrace_rowmapper_non_row_changes",
        "millrace_rowmapper_quarantined_tables",
        "millrace_rowmapper_pending_xa",
        "millrace_rowmapper_snapshot_left_out",
        "millrace_snapshot_tables_left_out",
    )
)
"""Metrics that are above 0 where changes are missing in the topics, or wait."""


def new_registry() -> CollectorRegistry:
    """Make a registry that knows this process's CPU, memory and garbage collections; services add theirs."""
    # It would add a second series for each counter.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # its stubs have no types
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class ServiceMetrics(Collector):
    """What all services tell: who they are, and whether they are at work."""

    def __init__(self, registry: CollectorRegistry, service: str, source: str, health: Health) -> None:
        self._labels = {"service": service, "source": source, "version": __version__}
        self._health = health
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield both as they are now."""
        yield InfoMetricFamily(
            "millrace_service", "The service, its source and its version, as labels.", self._labels
        )
        yield GaugeMetricFamily(
            "millrace_service_ready",
            "1 while the service is at work, as /readyz says.",
            int(self._health.ready),
        )
        yield GaugeMetricFamily(
            "millrace_service_kernel",
            "1 where the compiled kernel does the work, 0 where the reference codec does, more slowly.",
            int(kernel.state() == "on"),
        )


def what_is_missing(registry: CollectorRegistry) -> Iterator[str]:
    """Yield a line for each metric that says that changes are missing, or wait."""
    for family in registry.collect():
        for sample in family.samples if family.name in MISSING else ():
            if sample.value:
                labels = "".join(f" {name}={value}" for name, value in sample.labels.items())
                yield printable(f"{sample.name}{labels} {sample.value:g}: {family.documentation}")


class _Server(ThreadingHTTPServer):
    """Starts a thread per request once its head has been read, and closes connections that last too long.

    So a client that sends half a request costs no thread, and is hung up on before one that sent all of it.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # the oldest first, with the time of its beginning
        self._half: dict[socket.socket, Any] = {}  # those whose head has not come, with the client's address
        self._stop = threading.Event()
        if host == "*":
            host = "::" if socket.has_dualstack_ipv6() else str(IPv4Address(0))
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        super().__init__(address, handler)  # type: ignore[arg-type]  # an address of IPv6 has four parts

    def server_bind(self) -> None:
        """Bind; the IPv6 address of all interfaces takes IPv4 as well."""
        if self.address_family == socket.AF_INET6 and socket.has_dualstack_ipv6():
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # That of http.server would look up the host's name.
        socketserver.TCPServer.server_bind(self)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Answer until :meth:`shutdown`; look at half requests more often than at the clock."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while not self._stop.is_set():
                if selector.select(_LOOK_AGAIN_S if self._half else poll_interval):
                    self._handle_request_noblock()  # type: ignore[attr-defined]  # socketserver's own
                self.service_actions()

    def shutdown(self) -> None:
        """Let :meth:`serve_forever` end."""
        self._stop.set()

    def server_close(self) -> None:
        """Close the port and the half requests; the threads of others end by themselves."""
        super().server_close()
        with self._lock:
            self._hang_up(list(self._half))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection; where there are too many, the oldest have to go, half requests first."""
        with self._lock:
            self._open[request] = time.monotonic()
            self._half[request] = client_address
        self._begin(request)
        with self._lock:
            self._hang_up(list(self._half)[: max(0, len(self._open) - _MOST_CONNECTIONS)])
            self._hang_up(list(self._open)[: -2 * _MOST_CONNECTIONS])

    def service_actions(self) -> None:
        """Begin requests whose head has come; hang up on connections that have lasted too long."""
        for request in list(self._half):
            self._begin(request)
        since = time.monotonic() - _TIME_LIMIT_S
        with self._lock:
            self._hang_up([request for request, begun in self._open.items() if begun < since])

    def _begin(self, request: socket.socket) -> None:
        """Answer a request on a thread of its own if its head has come."""
        try:
            head = request.recv(_LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            head = b""
        if head and _END_OF_HEAD.search(head) is None and len(head) < _LONGEST_HEAD:
            return
        with self._lock:
            address = self._half.pop(request, None)
        if head:
            super().process_request(request, address)
        else:
            self.shutdown_request(request)

    def _hang_up(self, requests: list[socket.socket]) -> None:
        """Wake the threads that wait for these connections; each closes its own. Others are closed here."""
        for request in requests:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
            if self._half.pop(request, None) is not None:
                self._open.pop(request, None)
                self.close_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log a bug of ours; a connection that breaks is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            get_logger(__name__).exception("bug in the HTTP endpoints")


class HttpServer:
    """Serves health and metrics on a thread of its own, from ``start`` or ``with`` until ``close``."""

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        """Bind to ``host:port``; ``*`` is every address, port 0 a free port. Raises UserError."""

        class Handler(BaseHTTPRequestHandler):
            server_version = "millrace"
            sys_version = ""
            default_request_version = "HTTP/1.0"

            def do_GET(self) -> None:
                match self.path.partition("?")[0]:
                    case "/healthz":
                        self._answer(health.alive, "the main loop stands still")
                    case "/readyz":
                        self._answer(health.ready, health.reason, what_is_missing(registry))
                    case "/metrics":
                        self._send_metrics()
                    case _:
                        self._send(HTTPStatus.NOT_FOUND, "text/plain", b"/healthz, /readyz, /metrics\n")

            def do_HEAD(self) -> None:
                self.do_GET()

            def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
                """Answer what cannot be answered with the status alone, not with what was asked."""
                status = HTTPStatus(code)
                self._send(status, "text/plain", f"{status.phrase}\n".encode())

            def _answer(self, good: bool, otherwise: str, details: Iterable[str] = ()) -> None:
                status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
                lines = ["ok" if good else otherwise, *details]
                self._send(status, "text/plain", "".join(f"{line}\n" for line in lines).encode())

            def _send_metrics(self) -> None:
                try:
                    text = generate_latest(registry)
                except Exception:
                    self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"the log has the details\n")
                    raise
                self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, text)

            def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Write nothing: requests of probes are not worth a line."""

        try:
            self._server = _Server(host, port, Handler)
        except OSError as error:
            raise UserError(
                f"health and metrics cannot be served on {host}:{port}: {error.strerror or error}; "
                "set MILLRACE_HTTP_HOST and MILLRACE_HTTP_PORT, or port 0 for none",
                ExitCode.SETTINGS,
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
