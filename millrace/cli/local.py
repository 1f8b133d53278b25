"""``millrace local up``, ``down`` and ``status``."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn

import click

from millrace.cli import SuggestingGroup
from millrace.local import guard
from millrace.local.artifacts import cache_folder, made_folder
from millrace.local.errors import LocalError
from millrace.local.processes import tail
from millrace.local.stack import LocalStack

_CHECK_INTERVAL_S = 1.0
_DOWN_TIMEOUT_S = 90


class _Words(SuggestingGroup):
    """A group whose commands print a LocalError as a line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except LocalError as error:
            _fail(str(error))


@click.group("local", cls=_Words)
def local() -> None:
    """Kafka, a schema registry and a database server as processes on this machine."""


@local.command("up")
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Kafka nodes.")
@click.option("--mariadb", is_flag=True, help="MariaDB 11.4 instead of MySQL 8.0.")
@click.option("--detach", is_flag=True, help="Run in the background, until 'millrace local down'.")
@click.option("--end-with-parent", is_flag=True, help="End when the process that started this one does.")
def up(nodes: str, mariadb: bool, detach: bool, end_with_parent: bool) -> None:
    """Start the servers and print how to reach them; they run until Ctrl-C."""
    if detach:
        _up_detached(nodes, mariadb=mariadb)
        return
    if end_with_parent:
        guard.end_with_parent(os.getppid(), signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with _only_one():
            _serve(LocalStack(nodes=int(nodes), mariadb=mariadb, say=_say))
    except KeyboardInterrupt:
        _say("stopped")
        sys.stdout.flush()
        os._exit(128 + signal.SIGINT)  # without waiting for downloads that are under way


@local.command("down")
def down() -> None:
    """Stop the servers that 'millrace local up' started."""
    state = _read_state()
    if state is None:
        _say("nothing runs")
        return
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    while _is_up():
        if time.monotonic() > deadline:
            _fail(f"process {state['pid']} has not ended within {_DOWN_TIMEOUT_S} s")
        time.sleep(0.1)
    _say("stopped")


@local.command("status")
def status() -> None:
    """Say what runs and how to reach it; exit code 1 when nothing does."""
    state = _read_state()
    if state is None:
        _say("nothing runs; start it with: millrace local up")
        raise SystemExit(1)
    _say(_endpoints(state))


def _serve(stack: LocalStack) -> None:
    with stack:
        state = {
            "pid": os.getpid(),
            "kafka": f"Kafka {stack.kafka.version}",
            "registry": f"Apicurio Registry {stack.registry.version}",
            "database": f"{stack.database.flavor} {stack.database.version}",
            "socket": str(stack.database.socket),
            "environment": dict(stack.environment()),
        }
        path = _folder() / "stack.json"
        with _private(path) as file:
            file.write(json.dumps(state, indent=2).encode())
        try:
            _say(_endpoints(state))
            while True:
                time.sleep(_CHECK_INTERVAL_S)
                stack.check()
        finally:
            path.unlink(missing_ok=True)


def _endpoints(state: dict[str, Any]) -> str:
    exports = "\n".join(f"export {name}={value}" for name, value in state["environment"].items())
    return (
        f"{state['kafka']}, {state['registry']}, {state['database']}; process {state['pid']}\n"
        f"{exports}\n"
        f"# root: mysql --user=root --socket={state['socket']}\n"
        "# stop: Ctrl-C where it runs, or: millrace local down"
    )


def _up_detached(nodes: str, *, mariadb: bool) -> None:
    log = _folder() / "up.log"
    command = [sys.executable, "-P", "-m", "millrace.cli", "local", "up", "--nodes", nodes]
    with _private(log) as output:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [*command, *(["--mariadb"] if mariadb else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while process.poll() is None:
        state = _read_state()
        if state is not None and state["pid"] == process.pid:
            _say(_endpoints(state))
            process.returncode = 0  # it continues without us
            return
        time.sleep(0.1)
    _fail(f"it ended:\n{tail(log, 40)}")


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _private(path: Path) -> BinaryIO:
    """Open a file to be written that nobody else may read: passwords stand in it."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.fchmod(number, 0o600)
    return os.fdopen(number, "wb")


def _folder() -> Path:
    return made_folder(cache_folder() / "local")


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Hold the lock that says that a stack runs; it ends with this process."""
    with (_folder() / "stack.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError("it runs already: see 'millrace local status', stop it with 'down'") from None
        yield


def _is_up() -> bool:
    with (_folder() / "stack.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _read_state() -> dict[str, Any] | None:
    """Return what the running stack wrote down, None when none runs or it is not ready yet."""
    if not _is_up():
        return None
    try:
        state: dict[str, Any] = json.loads((_folder() / "stack.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state


def _say(message: str) -> None:
    click.echo(message)


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    raise SystemExit(1)
