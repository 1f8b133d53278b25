"""The socket to a database server, with a time limit for each wait and a size limit for each packet.

A server may accept a connection and say nothing, stop in the middle of a handshake, send a byte a second or
gigabytes of what nobody asked for. So every wait has a limit of silence and a limit in all
(:meth:`Wire.begin`), and every packet one of size (:attr:`Wire.allowance`). Waits are cut into steps of at
most half a second, and between them ``beat`` is called, which may raise: so whoever waits can be told to
stop, whatever it waits for.

PyMySQL reads and writes through it as through a socket and its file (:meth:`Wire.read`, :meth:`sendall`), and
starts TLS on it; a dump reads with :meth:`receive_into`.
"""

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from millrace.mysql.address import MysqlAddress
from millrace.mysql.errors import LinkLostError, ProtocolError, RefusedError, SourceError, UnreachableError

_STEP_S: Final = 0.5
_BLOCK: Final = 64 * 1024
_UNIX_RETRY_S: Final = 0.05
_CLOSE_S: Final = 1.0
_FIREWALLS: Final = "check MILLRACE_MYSQL_HOST and _PORT, and firewalls between here and there"

_Addresses = list[tuple[int, int, int, str, Any]]


class Wire:
    """A connected socket; all it raises is a :class:`~millrace.mysql.errors.SourceError`, or ``beat``'s."""

    def __init__(
        self,
        link: socket.socket,
        server: str,
        beat: Callable[[], None] = lambda: None,
        *,
        private: bool = False,
    ) -> None:
        """Take over a socket; ``server`` is its name in errors, ``private`` one within the machine."""
        link.setblocking(False)
        self._link = link
        self._server = server
        self._beat = beat
        self._beaten = time.monotonic()
        self._buffer = bytearray()
        self._until = self._total_s = self._silence_s = float("inf")
        self._connecting = False
        self.private = private
        self.tls = False
        self.doing = ""
        """What the current command is for, in errors: "list the binary logs"."""
        self.allowance = 0
        """Bytes that may still be read of the packet at hand."""
        self.interrupted: BaseException | None = None
        """What ``beat`` raised."""

    @classmethod
    def connect(cls, address: MysqlAddress, beat: Callable[[], None]) -> Self:
        """Connect within the address's limit, which then also holds for the login."""
        until = time.monotonic() + address.connect_timeout_s
        if address.unix_socket is not None:
            wire = cls(socket.socket(socket.AF_UNIX), str(address), beat, private=True)
            wire._login_until(until, address.connect_timeout_s)
            wire._connect_or_close(address.unix_socket)
            return wire
        found = _resolved(address, until, beat)
        failure: SourceError | None = None
        for index, (family, kind, protocol, _, place) in enumerate(found):
            try:
                wire = cls(socket.socket(family, kind, protocol), str(address), beat)
            except OSError as error:  # a machine without IPv6
                failure = _cannot_connect(str(address), error)
                continue
            # Each of several addresses gets its part of the time that is left.
            now = time.monotonic()
            wire._login_until(now + (until - now) / (len(found) - index), address.connect_timeout_s)
            try:
                wire._connect_or_close(place)
            except UnreachableError as error:
                failure = error
                continue
            wire._until = until
            wire._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire._link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return wire
        assert failure is not None
        raise failure

    def _login_until(self, until: float, total_s: float) -> None:
        self._until, self._total_s, self._silence_s = until, total_s, float("inf")
        self._connecting, self.doing = True, ""

    def _connect_or_close(self, place: Any) -> None:
        try:
            self._connect(place)
        except BaseException:
            self._link.close()
            raise

    def _connect(self, place: Any) -> None:
        while True:
            code = self._link.connect_ex(place)
            if code == errno.EAGAIN:  # a Unix socket at which too many wait
                self._check()
                time.sleep(_UNIX_RETRY_S)
            elif code == errno.EINPROGRESS:
                self._wait(select.POLLOUT)
                code = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                break
            else:
                break
        if code not in (0, errno.EISCONN):
            raise _cannot_connect(self._server, OSError(code, os.strerror(code)))

    # -- limits -------------------------------------------------------------------------------------

    def begin(self, total_s: float, silence_s: float) -> None:
        """Begin a command: its answer must be whole within ``total_s``, and not pause for ``silence_s``."""
        self._until, self._total_s, self._silence_s = time.monotonic() + total_s, total_s, silence_s
        self._connecting = False

    def _check(self) -> None:
        """Show a sign of life, and look whether the time is up; cheap enough for every block."""
        now = time.monotonic()
        if now - self._beaten >= _STEP_S:
            self._beaten = now
            try:
                self._beat()
            except BaseException as error:
                self.interrupted = error
                raise
        if now >= self._until:
            raise self._too_late(f"the answer did not end within {self._total_s:g} s", self._total_s)

    def _wait(self, events: int) -> None:
        """Wait until the socket can be read or written."""
        poll = select.poll()
        poll.register(self._link, events)
        silent_until = time.monotonic() + self._silence_s
        while True:
            self._check()
            left_s = min(self._until, silent_until) - time.monotonic()
            if left_s <= 0 and silent_until < self._until:
                raise self._too_late(f"no answer for {self._silence_s:g} s", self._silence_s)
            if poll.poll(max(0.0, min(_STEP_S, left_s)) * 1000):
                return

    def _too_late(self, what: str, limit_s: float) -> SourceError:
        if self._connecting:
            if not self.doing:
                return UnreachableError(f"{self._server}: no answer within {limit_s:g} s; {_FIREWALLS}")
            return UnreachableError(
                f"{self._server}: no answer within {limit_s:g} s while {self.doing}; look whether a MySQL or "
                "MariaDB server listens there and is not overloaded (MILLRACE_MYSQL_CONNECT_TIMEOUT_S)"
            )
        return LinkLostError(f"{self._server}: cannot {self.doing}: {what}")

    def lost(self, error: OSError) -> SourceError:
        """Say in words how the connection was lost."""
        reason = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            if self._connecting and not isinstance(error, ssl.SSLEOFError):
                # With TLS 1.3 a server refuses our certificate only once we think that the handshake is over.
                return RefusedError(f"{self._server}: the TLS handshake failed: {_reason(error)}")
            reason = error.reason or reason
        if self._connecting:
            return UnreachableError(
                f"{self._server}: the connection was lost ({reason}) while {self.doing or 'connecting'}"
            )
        return LinkLostError(f"{self._server}: the connection was lost ({reason})")

    # -- bytes --------------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Read so many bytes, no fewer."""
        self.allowance -= size
        if self.allowance < 0:
            doing = f"while {self.doing}" if self._connecting else f"in answer to: {self.doing}"
            raise ProtocolError(f"{self._server}: it sends a packet that is too large, {doing}")
        buffer = self._buffer
        while len(buffer) < size:
            self._check()
            buffer += self._receive(max(_BLOCK, size - len(buffer)))
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    @property
    def received(self) -> bytearray:
        """What has come and was not read yet; who takes bytes off its front has read them."""
        return self._buffer

    def _receive(self, size: int) -> bytes:
        while True:
            try:
                data = self._link.recv(min(size, 16 * _BLOCK))
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise self.lost(error) from error
            else:
                if not data:
                    raise self.lost(OSError("the server closed it"))
                return data

    def sendall(self, data: bytes) -> None:
        """Send bytes, all of them; what can be sent at once is, also by who was told to stop."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._link.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except OSError as error:
                raise self.lost(error) from error

    def receive_into(self, space: memoryview, timeout_s: float) -> int:
        """Read what comes within ``timeout_s``, up to the space; return how much, 0 if nothing came."""
        if self._buffer:
            size = min(len(space), len(self._buffer))
            space[:size] = self._buffer[:size]
            del self._buffer[:size]
            return size
        until = time.monotonic() + timeout_s
        while True:
            events = select.POLLIN
            try:
                size = self._link.recv_into(space)
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except OSError as error:
                raise self.lost(error) from error
            else:
                if not size:
                    raise LinkLostError(f"{self._server}: the server closed the connection")
                return size
            left_s = until - time.monotonic()
            poll = select.poll()
            poll.register(self._link, events)
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return 0

    # -- TLS and the end ----------------------------------------------------------------------------

    def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Shake hands; what follows is encrypted. Raises RefusedError where the TLS handshake fails."""
        self.doing = "shaking hands for TLS"
        if self._buffer:
            # Who reads the line may have put it there, to be taken for what comes encrypted.
            raise ProtocolError(f"{self._server}: it sends bytes before TLS that belong to no packet")
        with self._tls_in_words():
            link = context.wrap_socket(self._link, server_hostname=host, do_handshake_on_connect=False)
            self._link = link
            while True:
                self._check()
                try:
                    link.do_handshake()
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT)
                else:
                    break
        self.tls = True

    @contextlib.contextmanager
    def _tls_in_words(self) -> Iterator[None]:
        try:
            yield
        except ssl.SSLError as error:
            raise RefusedError(f"{self._server}: the TLS handshake failed: {_reason(error)}") from error
        except OSError as error:
            raise self.lost(error) from error

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._link.close()

    def say_goodbye(self, data: bytes) -> None:
        """Send the last bytes if they can be sent at once; who does not read them is not waited for."""
        with contextlib.suppress(SourceError, OSError, ValueError):
            self._beat = _nothing
            self.begin(_CLOSE_S, _CLOSE_S)
            self.sendall(data)

    # -- what PyMySQL calls on a socket, of which only the wire decides ------------------------------

    def settimeout(self, _timeout_s: float | None) -> None:
        """Leave limits as they are."""

    def makefile(self, _mode: str) -> Self:
        """Read through the wire itself."""
        return self


def _nothing() -> None:
    """Do nothing."""


def _resolved(address: MysqlAddress, until: float, beat: Callable[[], None]) -> _Addresses:
    """Look up a host's addresses, in a thread: the system's look-up can be neither limited nor ended."""
    found: _Addresses = []
    failures: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failures.append(error)

    thread = threading.Thread(target=look_up, name="look-up", daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < until:
        beat()
        thread.join(min(_STEP_S, max(0.0, until - time.monotonic())))
    if failures:
        error = failures[0]
        if isinstance(error, UnicodeError):
            raise UnreachableError(
                f"{address}: there can be no host of that name; check MILLRACE_MYSQL_HOST"
            ) from error
        if isinstance(error, socket.gaierror):
            raise UnreachableError(
                f"{address}: there is no host of that name ({error.strerror}); check MILLRACE_MYSQL_HOST"
            ) from error
        raise UnreachableError(f"{address}: the host cannot be looked up: {error}") from error
    if not found:
        raise UnreachableError(
            f"{address}: its name was not resolved within {address.connect_timeout_s:g} s; look at the "
            "machine's name servers"
        )
    return found


def _cannot_connect(server: str, error: OSError) -> UnreachableError:
    return UnreachableError(
        f"{server}: cannot connect ({error.strerror or error}); "
        "check MILLRACE_MYSQL_HOST and _PORT, and that the server runs"
    )


def _reason(error: ssl.SSLError) -> str:
    """Say why the TLS handshake failed, and what to do."""
    words = getattr(error, "verify_message", "") or error.reason or str(error)
    if "mismatch" in words or "not valid for" in words:
        return (
            f"{words}; MILLRACE_MYSQL_HOST must be a name in the server's certificate, or "
            "MILLRACE_MYSQL_SSL_MODE=VERIFY_CA checks who signed it alone"
        )
    return f"{words}; see MILLRACE_MYSQL_SSL_CA and _SSL_MODE"
