"""An HTTP client of one server that bounds what the server can cost: time and bytes of a whole answer.

The time limits of HTTP clients are for each wait: who sends a byte now and then holds them up forever. Here
each wait gets what is left. Redirects are not followed. Proxies are those of the environment
(``HTTPS_PROXY``, ``NO_PROXY`` and so on).
"""

import base64
import contextlib
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

__all__ = ["Answer", "BoundedHttp", "HTTPException", "basic_authorization"]

_PIECE: Final = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body; of a body longer than the limit, a little more than the limit."""

    status: int
    body: bytes


def basic_authorization(username: str, password: str) -> str:
    """Return the value of a header of basic authentication."""
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


class BoundedHttp:
    """A client of the server at ``root``, http(s)://host:port/path; threads may share it.

    It keeps a connection for each request that was under way at a time. ``limit`` is how many bytes of an
    answer are read, ``timeout_s`` how long a request may take in all.
    """

    def __init__(
        self, root: str, *, headers: Mapping[str, str], tls: ssl.SSLContext, timeout_s: float, limit: int
    ) -> None:
        self._root = urlsplit(root.rstrip("/"))
        self._headers = dict(headers)
        self._tls = tls
        self._timeout_s = timeout_s
        self._limit = limit
        self._idle: list[HTTPConnection] = []

    def request(self, method: str, path: str, content: bytes | None = None) -> Answer:
        """Send a request for what is at ``path`` below the root, and return the answer.

        Raises OSError (TimeoutError among them) and HTTPException where none comes, UnicodeError and
        InvalidURL where there can be no server of that name.
        """
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(IndexError, ConnectionError):  # the server may have closed it since
            return self._exchange(self._idle.pop(), method, path, content, deadline)
        return self._exchange(self._new(), method, path, content, deadline)

    def close(self) -> None:
        """Close the connections; the next request makes another."""
        while self._idle:
            self._idle.pop().close()

    def _exchange(
        self, connection: HTTPConnection, method: str, path: str, content: bytes | None, deadline: float
    ) -> Answer:
        proxy = self._proxy()
        target, headers = self._root.path, self._headers
        if proxy is not None and self._root.scheme != "https":
            target = self._root._replace(netloc=self._root.netloc.rpartition("@")[2]).geturl()
            headers = headers | _proxy_authorization(proxy)
        whole = False
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock = _TimedSocket(connection.sock, deadline)
            connection.request(method, target + path, body=content, headers=headers)
            with connection.getresponse() as response:
                if response.getheader("Content-Encoding", "identity") != "identity":
                    raise HTTPException("the answer is compressed, which was not asked for")
                body = bytearray()
                while len(body) <= self._limit and (piece := response.read1(_PIECE)):
                    body += piece
                whole = len(body) <= self._limit
                if whole and response.length:
                    raise HTTPException(f"the answer ended {response.length} bytes too early")
                return Answer(response.status, bytes(body))
        finally:
            if whole:
                self._idle.append(connection)
            else:
                connection.close()

    def _proxy(self) -> SplitResult | None:
        """Return the proxy that the environment names for the server, if any."""
        if proxy_bypass(self._root.hostname or ""):
            return None
        proxy = getproxies().get(self._root.scheme)
        return None if proxy is None else urlsplit(proxy if "://" in proxy else f"http://{proxy}")

    def _new(self) -> HTTPConnection:
        root, proxy = self._root, self._proxy()
        at, port = (root, root.port) if proxy is None else (proxy, proxy.port or 80)
        host = at.hostname or ""
        if root.scheme != "https":
            return HTTPConnection(host, port, timeout=self._timeout_s)
        connection = HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        if proxy is not None:
            connection.set_tunnel(root.hostname or "", root.port or 443, _proxy_authorization(proxy))
        return connection


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    known = basic_authorization(unquote(proxy.username), unquote(proxy.password or ""))
    return {"Proxy-Authorization": known}


class _TimedSocket:
    """A connected socket as ``http.client`` uses one, with a deadline."""

    def __init__(self, connected: Any, deadline: float) -> None:
        self._socket: socket.socket = connected._socket if isinstance(connected, _TimedSocket) else connected
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            _give_time(self._socket, self._deadline)
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_TimedFile(self._socket, self._deadline), _PIECE)

    def close(self) -> None:
        self._socket.close()


class _TimedFile(io.RawIOBase):
    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._file = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _give_time(self._socket, self._deadline)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _give_time(connected: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connected.settimeout(left)
