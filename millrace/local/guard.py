"""Run a program that ends when its parent does, however the parent ends.

Started as a script with the standard library alone: ``python -I -S guard.py PARENT_PID PROGRAM [ARGUMENT…]``.
It asks the kernel to be killed when its parent ends (``PR_SET_PDEATHSIG``, see prctl(2)), makes sure that the
parent did not end before that, and becomes the program; the setting survives ``execve``. It is set here and
not between fork and exec because Python code there is unsafe in a process with threads. With ``--term``
before the parent's id the program gets SIGTERM instead, for programs that have files to remove.

With ``--tree`` before the parent's id it stays the program's parent instead, adopts whatever the program
leaves behind (``PR_SET_CHILD_SUBREAPER``), and ends all of its descendants when its own parent ends, when it
is told to end (SIGTERM, SIGINT), or when the program has ended. For programs that start others (Spark).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def end_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends; ProcessLookupError if that has happened."""
    _prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent {parent} has ended already")


def descendants(root: int) -> list[int]:
    """Return the ids of all processes below ``root``, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The command in parentheses may hold anything; the parent is the second field after it.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        children = parents.get(queue.pop(0), [])
        found += children
        queue += children
    return found


def _end_descendants() -> None:
    while below := descendants(os.getpid()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass


def _run_tree(parent: int, command: list[str]) -> NoReturn:
    def end(signal_number: int, _frame: object) -> NoReturn:
        signal.signal(signal_number, signal.SIG_IGN)
        _end_descendants()
        os._exit(128 + signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, end)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    end_with_parent(parent, signal.SIGTERM)
    code = subprocess.Popen(command).wait()  # noqa: S603 - the caller's own command
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    _end_descendants()
    os._exit(code if code >= 0 else 128 - code)


def main(arguments: list[str]) -> NoReturn:
    """Become the program named by the arguments, or run it (``--tree``)."""
    option = arguments.pop(0) if arguments[0].startswith("--") else ""
    parent, *command = arguments
    try:
        if option == "--tree":
            _run_tree(int(parent), command)
        end_with_parent(int(parent), signal.SIGTERM if option == "--term" else signal.SIGKILL)
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
