"""What the servers of the local stack have in common: their life, their log, their ports."""

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

from millrace.local.errors import ComponentDiedError, LocalError
from millrace.local.java import writes_archive
from millrace.local.processes import Process, WorkFolder, release_port, reserve_port

_START_ATTEMPTS = 3
_POLL_S = 0.05


class PortTakenError(Exception):
    """Another program took the port between its choice and its use."""


class Component(ABC):
    """A server of one or more processes on loopback, with a temporary data folder.

    ``start`` and ``stop`` (in order) or ``kill`` (SIGKILL) may follow one another: data and ports stay.
    ``close`` removes the data; as a context manager a component starts and closes.
    """

    name: str
    version: str
    start_timeout_s: float = 180

    def __init__(self, name: str) -> None:
        self.name = name
        self.processes: list[Process] = []
        self._folder: WorkFolder | None = None
        self._port_count = 1
        self.ports: list[int] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder that holds data and logs while the component is open."""
        with self._lock:
            if self._folder is None:
                self._folder = WorkFolder(self.name)
            return self._folder.path

    @property
    def running(self) -> bool:
        """Whether all of its processes run."""
        return bool(self.processes) and all(process.poll() is None for process in self.processes)

    def start(self) -> Self:
        """Start it, on the data of the last time if there is some, and return when it serves.

        :raises LocalError: when it cannot start; :raises ComponentDiedError: with the tail of its log.
        """
        first_time = not self.ports
        self._closed = False
        for attempt in range(_START_ATTEMPTS):
            if not self.ports:
                self.ports = [reserve_port() for _ in range(self._port_count)]
            try:
                if first_time:
                    self._prepare()
                self._refuse_if_closed()
                self._launch()
                self._wait_until(self._is_ready)
            except PortTakenError as error:
                self.kill()
                if not first_time or attempt == _START_ATTEMPTS - 1:
                    message = f"{self.name} found its ports {self.ports} taken:\n{error}"
                    raise ComponentDiedError(message) from error
                self._discard()
            except BaseException:
                self.kill()
                if first_time:
                    self.close()
                raise
            else:
                break
        if first_time:
            self._after_first_start()
        return self

    def stop(self) -> None:
        """End it in order (SIGTERM); data and ports stay."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        for process in self.processes:
            process.wait_or_kill()

    def kill(self) -> None:
        """End it with SIGKILL; data and ports stay."""
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """End it and remove its data; harmless when repeated.

        It is killed, since nothing reads what it would still write, unless its Java is to write an archive.
        """
        self._closed = True
        if any(writes_archive(process.command) for process in self.processes):
            self.stop()
        else:
            self.kill()
        self._discard()

    def _discard(self) -> None:
        with self._lock:  # it may be closed while another thread still starts it
            ports, self.ports = self.ports, []
            folder, self._folder = self._folder, None
            self.processes = []
        for port in ports:
            release_port(port)
        if folder is not None:
            folder.remove()

    def check(self) -> None:
        """Raise ComponentDiedError, with the tail of its log, if one of its processes has ended."""
        for process in self.processes:
            if (code := process.poll()) is not None:
                raise ComponentDiedError(_obituary(process, code))

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        return "\n".join(process.log_tail(lines) for process in self.processes)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data folder; called before the first launch, again when a port was taken."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the processes that do not run."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it serves by now."""

    def _after_first_start(self) -> None:
        """Set up what needs the running server."""
        return

    def _refuse_if_closed(self) -> None:
        """Raise LocalError if another thread closed it while this one fetched and prepared."""
        if self._closed:
            raise LocalError(f"{self.name} was closed while it started")

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            is_ready = ready()
            for process in self.processes:
                if (code := process.poll()) is not None:
                    if "Address already in use" in (text := process.log_tail(60)) or "BindException" in text:
                        raise PortTakenError(text)
                    raise ComponentDiedError(_obituary(process, code))
            if is_ready:
                return
            if time.monotonic() > deadline:
                raise ComponentDiedError(
                    f"{self.name} was not ready after {self.start_timeout_s:.0f} s. "
                    f"The end of its log:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)


def _obituary(process: Process, code: int) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    text = process.log_tail() or "(it wrote nothing)"
    return f"{process.name} {how}. The end of its log ({process.log}):\n{text}"
