"""A web server that misbehaves: what it sends is said byte by byte, and it counts what it is asked."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Answer = bytes | Callable[[socket.socket], None]
"""What is sent to one request: bytes, or a function that writes to the connection. Then it is closed."""


@dataclass
class Web:
    """Where the server listens, and the heads of all requests."""

    url: str = ""
    requests: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [request.partition("\r\n")[0] for request in self.requests]


@contextmanager
def web(*answers: Answer) -> Iterator[Web]:
    """Yield the answers in turn, the last one forever."""
    found = Web()
    stopped = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            number = len(found.requests)
            found.requests.append(head.decode("latin-1"))
            answer = answers[min(number, len(answers) - 1)]
            if isinstance(answer, bytes):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while not stopped.is_set() and connection.recv(65536):
                    pass
            else:
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.settimeout(30)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield found
        finally:
            stopped.set()
            listener.shutdown(socket.SHUT_RDWR)


def http(status: int, body: object, *headers: str) -> bytes:
    """Word an answer; what is not bytes goes out as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def endless(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Send ``head``, then ``piece`` again and again as fast as it is taken."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return answer


def dripping(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Send ``head``, then ``piece`` again and again, slowly."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            time.sleep(0.05)
            connection.sendall(piece)

    return answer
