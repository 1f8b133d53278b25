"""Child processes that never outlive this one, the folders they work in, and the ports they listen on."""

import atexit
import contextlib
import fcntl
import os
import queue
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, TypeVar

from millrace.local.errors import LocalError

_T = TypeVar("_T")

_GUARD = Path(__file__).with_name("guard.py")
_LONGEST_BASE = 60  # a Unix socket's path has at most 107 bytes
_LOWEST_PORT, _HIGHEST_PORT = 15_000, 32_000  # below Linux's range for outgoing connections


class _Spawner:
    """Starts all children from one thread that lives as long as this process.

    The kernel's "parent has ended" means the *thread* that forked: a child started from a worker thread would
    be killed when that worker ends.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def run(self, task: Callable[[], _T]) -> _T:
        with self._lock:
            if self._pid != os.getpid():  # the first use, or the first one in a forked process
                self._pid = os.getpid()
                self._tasks = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(self._tasks,), name="spawner", daemon=True).start()
            future: Future[_T] = Future()
            self._tasks.put((task, future))
        return future.result()

    @staticmethod
    def _work(tasks: "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]") -> None:
        while True:
            task, future = tasks.get()
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)
            del task, future


_spawner = _Spawner()


class Process:
    """A running child whose output goes to a log file; the kernel kills it when this process ends.

    With ``tree`` everything that the child starts ends with it too. Signals of the terminal do not reach it:
    it has a session of its own, so that Ctrl-C leaves the order of shutting down to this process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        tree: bool = False,
    ) -> None:
        self.name = name
        self.command = [*map(str, command)]
        self.log = log
        guard = [sys.executable, "-I", "-S", str(_GUARD), *(["--tree"] if tree else []), str(os.getpid())]
        argv = [*guard, *self.command]
        log.parent.mkdir(parents=True, exist_ok=True)

        def start(output: IO[bytes]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603 - our own commands
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

        with log.open("ab") as output:
            self._popen = _spawner.run(lambda: start(output))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return the exit code; :raises TimeoutError: when it still runs."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s") from error

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self._popen.send_signal(number)

    def stop(self, timeout_s: float = 30) -> int:
        """Ask it to end (SIGTERM), kill it if it does not within the time; return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_or_kill(timeout_s)

    def wait_or_kill(self, timeout_s: float = 30) -> int:
        """Wait for its end, kill it if it does not end within the time; return its exit code."""
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            return self.kill()

    def kill(self) -> int:
        """Kill it (SIGKILL), wait until it is gone and return its exit code."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its output."""
        return tail(self.log, lines)


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a text file, or nothing when it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 400 * lines))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class WorkFolder:
    """A temporary folder of one component, locked while this process lives.

    It is removed by :meth:`remove` or when the process ends in order. Folders of processes that were killed
    are found unlocked and removed when the next one is made.
    """

    def __init__(self, name: str) -> None:
        base = _base_folder()
        with (base / "mutex").open("ab") as mutex:
            fcntl.flock(mutex, fcntl.LOCK_EX)
            _sweep(base)
            self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
            # The lock lies beside the folder: it must outlast what it protects.
            self._lock = _lock(self.path.with_suffix(".lock"))
        atexit.register(self.remove)

    def remove(self) -> None:
        """Remove the folder with all that is in it; harmless when repeated."""
        atexit.unregister(self.remove)
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def _base_folder() -> Path:
    """Return this user's folder for running servers, on a path short enough for Unix sockets."""
    candidate = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"
    base = candidate if len(str(candidate)) <= _LONGEST_BASE else Path("/tmp") / candidate.name  # noqa: S108 - checked next
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LocalError(
            f"{base} is not your folder, but another user's or a link: set TMPDIR to a folder of your own"
        )
    if found.st_mode & 0o077:
        base.chmod(0o700)
    return base


def _lock(path: Path) -> IO[bytes] | None:
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _sweep(base: Path) -> None:
    """Remove the folders of processes that are gone."""
    for lock_path in base.glob("*.lock"):
        lock = _lock(lock_path)
        if lock is not None:
            with lock:
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)


_reserved: set[int] = set()
_ports: dict[int, int] = {}  # by process id: a forked child does not inherit record locks


def _ports_file() -> int:
    """Open, once in a process, the file of which byte N is locked by whoever uses port N."""
    pid = os.getpid()
    if pid not in _ports:
        _ports.clear()
        _ports[pid] = os.open(_base_folder() / "ports", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _ports[pid]


def reserve_port() -> int:
    """Return a free TCP port of the loopback interface that no other local stack will choose.

    Below the range that the kernel gives to outgoing connections, so that a server which was stopped finds
    its port free when it starts again.
    """
    for port in random.sample(range(_LOWEST_PORT, _HIGHEST_PORT), 200):
        if port in _reserved or not _is_free(port):
            continue
        try:
            fcntl.lockf(_ports_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            continue
        _reserved.add(port)
        return port
    raise LocalError(f"found no free port between {_LOWEST_PORT} and {_HIGHEST_PORT} on 127.0.0.1")


def release_port(port: int) -> None:
    """Let others have a port that was reserved."""
    if port in _reserved:
        _reserved.remove(port)
        fcntl.lockf(_ports_file(), fcntl.LOCK_UN, 1, port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
