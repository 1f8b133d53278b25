import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from millrace import __version__, cli
from millrace.cli import main


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys\n"
        "from millrace.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'rich', 'pymysql', 'confluent_kafka', 'fastavro', 'pydantic', 'jgo', 'pyspark'}\n"
        "print(sorted(heavy.intersection(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert all(f"\n  {name} " in done.stdout for name in cli._COMMANDS)


@pytest.mark.parametrize("name", sorted(cli._COMMANDS))
def test_every_command_has_help(name: str) -> None:
    outcome = CliRunner().invoke(main, [name, "--help"])
    assert outcome.exit_code == 0, outcome.output
    assert f"{name} " in outcome.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"millrace, version {__version__}\n"


def test_an_unknown_command_is_an_error() -> None:
    outcome = CliRunner().invoke(main, ["nonsense"])
    assert outcome.exit_code == 2
    assert "No such command 'nonsense'" in outcome.output


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli._COMMANDS, "demo", ("no_such_package.x:y", "help"))
    outcome = CliRunner().invoke(main, ["demo"])
    assert outcome.exit_code == 1
    assert "needs the Python package 'no_such_package', which is not installed" in outcome.output


@pytest.mark.parametrize("process", [1, 4711])
def test_process_1_hears_sigterm(monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    """In a container, the kernel drops signals to process 1 for which it has no handler."""
    monkeypatch.setattr(os, "getpid", lambda: process)
    before = signal.getsignal(signal.SIGTERM)
    try:
        CliRunner().invoke(main, ["--version"])
        handler = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    if process == 1:
        assert callable(handler)
        with pytest.raises(SystemExit) as caught:
            handler(signal.SIGTERM, None)
        assert caught.value.code == 128 + signal.SIGTERM
    else:
        assert handler == before
