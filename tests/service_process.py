"""Programs of the project as processes: what they are told, what they write, and how they end."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from tests.shared import PROJECT, environment_with

if TYPE_CHECKING:
    from millrace.local import Kafka, MariaDB, MySQL, Registry

__all__ = ["ServiceProcess", "server_environment", "source_environment", "started", "status_of", "wait_for"]

_END_S = 180
_SHOWN = 3000

T = TypeVar("T")


class ServiceProcess(subprocess.Popen[bytes]):
    """A process whose output and errors lie in files, so that it never waits for who reads them.

    ``log`` is the file of its output, to which it is appended; without one it is gone with the process.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Path | None = None) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile() if log is None else log.open("a+b")  # noqa: SIM115 - see close
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - see close
        self._kept: tuple[str, str] | None = None
        self._begin = os.fstat(self._output.fileno()).st_size
        super().__init__(
            command,
            env=environment_with(settings),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
        )

    @property
    def output(self) -> str:
        """What it has written to standard output."""
        return _text(self._output, self._begin) if self._kept is None else self._kept[0]

    @property
    def error_output(self) -> str:
        """What it has written to standard error."""
        return _text(self._errors, 0) if self._kept is None else self._kept[1]

    def close(self) -> None:
        """Kill it, unless it has ended; what it wrote can still be read."""
        self.kill()
        self.wait()
        if self._kept is None:
            self._kept = self.output, self.error_output
            self._output.close()
            self._errors.close()

    def __str__(self) -> str:
        command = " ".join(map(str, self.args))
        return f"{command} ended with {self.poll()}: {self.error_output}\n{self.output[-_SHOWN:]}"


def _text(file: IO[bytes], begin: int) -> str:
    # The process writes where the file's offset is, so it must not be moved.
    size = os.fstat(file.fileno()).st_size - begin
    return os.pread(file.fileno(), size, begin).decode("utf-8", "surrogateescape")


@contextmanager
def started(
    service: str,
    settings: Mapping[str, str],
    *,
    command: Sequence[str] = (),
    ends_with: int = 0,
    log: Path | None = None,
) -> Iterator[ServiceProcess]:
    """A running service, ended with SIGTERM unless it has ended.

    ``ends_with`` is the exit code that is expected; a test may kill it as well. ``command`` runs it in
    another way, such as :func:`tests.killed.command`.
    """
    own = [sys.executable, "-m", f"services.{service}"]
    with closing(ServiceProcess(command or own, settings, log)) as process:
        yield process
        process.terminate()
        process.wait(_END_S)
        assert process.returncode in (ends_with, -signal.SIGKILL), process


def wait_for(
    look: Callable[[], T | None],
    process: ServiceProcess | None = None,
    what: str | Callable[[], str] = "it",
    timeout_s: float = 240,
) -> T:
    """Look until there is something to see, while ``process`` runs; ``what`` is what may not come."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        is_over = process is not None and process.poll() is not None
        if is_over or time.monotonic() > deadline:
            raise AssertionError(f"{what() if callable(what) else what} did not come: {process or ''}")
        time.sleep(max(0.2, time.monotonic() - began))  # what looking costs is taken from what is waited for


def source_environment(
    kafka: "Kafka", source: str, registry: "Registry | None" = None, server: "MySQL | MariaDB | None" = None
) -> dict[str, str]:
    """The settings of a source's services."""
    return {
        "MILLRACE_SOURCE": source,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "60",
        **({} if registry is None else {"MILLRACE_REGISTRY_URL": registry.url}),
        **({} if server is None else server_environment(server)),
    }


def server_environment(server: "MySQL | MariaDB") -> dict[str, str]:
    """The settings of a server that is read."""
    return {
        "MILLRACE_MYSQL_HOST": server.host,
        "MILLRACE_MYSQL_PORT": str(server.port),
        "MILLRACE_MYSQL_USER": server.user,
        "MILLRACE_MYSQL_PASSWORD": server.password,
        # Of MySQL, which asks for the password itself; tests that are about this take it away again.
        "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "true",
    }


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and does not merely wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def status_of(url: str) -> tuple[int, str]:
    """What a service answers: the code, 0 where there is no answer, and the text."""
    with suppress(OSError, HTTPException):  # it does not run, or ends
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
    return 0, ""
