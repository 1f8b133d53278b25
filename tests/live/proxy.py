"""A TCP proxy that can stop forwarding, as a network does that swallows packets."""

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Forwards connections from a port of its own to another on loopback.

    ``stall_at`` makes it stop, for good, right after the piece of the server's bytes that holds these. While
    it is frozen nothing passes, new connections included, and nothing is closed.
    """

    def __init__(self, port: int, stall_at: bytes | None = None, *, host: str = "127.0.0.1") -> None:
        self.stalled = threading.Event()
        self._target = port
        self._stall_at = stall_at
        self._flows = threading.Event()
        self._flows.set()
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def close(self) -> None:
        """Close all connections and refuse new ones; a second time does nothing."""
        self._closed.set()
        self._flows.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):  # where it is not connected any more
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._flows.wait()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.shutdown(socket.SHUT_RDWR)
                continue
            self._sockets.append(server)
            for source, sink, marked in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._forward, args=(source, sink, marked))
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, marked: bool) -> None:
        seen = b""
        try:
            while data := source.recv(16384):
                self._flows.wait()
                if self.stalled.is_set():
                    continue
                sink.sendall(data)
                if marked and self._stall_at is not None:
                    seen = seen[-len(self._stall_at) :] + data
                    if self._stall_at in seen:
                        self.stalled.set()
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # one side is closed, and close() closes the other
