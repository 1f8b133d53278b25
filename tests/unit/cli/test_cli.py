import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millrace import __version__, cli, kernel
from millrace.cli import main
from millrace.cli.job import _help as job_help
from millrace.installation import install_command


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


def test_the_help_has_each_command_in_one_section() -> None:
    assert sorted(name for names in cli._SECTIONS.values() for name in names) == sorted(cli._COMMANDS)


@pytest.mark.parametrize("names", [[], ["topic"], ["deadletter"], ["deadletter", "show"], ["local", "up"]])
def test_h_is_help(names: list[str]) -> None:
    short, long = (CliRunner().invoke(main, [*names, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["statsu"], "status"),
        (["row-mapper"], "rowmapper"),
        (["deadletters"], "deadletter"),
        (["deadletter", "lst"], "list"),
        (["topic", "x", "--limt", "3"], "--limit"),
        (["job", "analytcs"], "analytics"),
    ],
)
def test_a_name_that_is_misspelt(typed: list[str], meant: str) -> None:
    outcome = CliRunner().invoke(main, typed)
    assert outcome.exit_code == 2
    assert f"'{meant}'" in outcome.output


def test_version() -> None:
    said = CliRunner().invoke(main, ["--version"]).output
    assert said == f"millrace, version {__version__}, kernel {kernel.state()}\n"


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


def started(command: str) -> "subprocess.Popen[bytes]":
    """Run ``command``, the body of a function, as the command ``millrace doctor``."""
    body = "\n".join(f"    {line}" for line in command.splitlines())
    script = (
        "import sys, time, types, click\n"
        "from millrace import cli\n"
        f"@click.command()\ndef command():\n{body}\n"
        "module = types.ModuleType('made_here')\nmodule.command = command\n"
        "sys.modules['made_here'] = module\n"
        "cli._COMMANDS['doctor'] = ('made_here:command', 'help')\n"
        "cli.main(['doctor'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


@pytest.mark.parametrize(
    "command",
    [
        "while True: click.echo('x' * 1000)",
        "while True: sys.stdout.write('x' * 1000)",
        "sys.stdout.write('x')\nsys.stderr.write('!')\nsys.stderr.flush()\ntime.sleep(1)\nsys.exit(1)",
    ],
    ids=["in its midst", "in a buffer", "at its end"],
)
def test_a_reader_that_has_seen_enough(command: str) -> None:
    with started(command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if "stderr" in command:
            assert process.stderr.read(1) == b"!"
        else:
            assert process.stdout.read(5) == b"xxxxx"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_connection_that_breaks_is_no_reader_that_has_left() -> None:
    with started("raise BrokenPipeError(32, 'Broken pipe')") as process:
        _, errors = process.communicate()
    assert process.returncode == 70
    assert b"BrokenPipeError" in errors


def test_an_interrupt_is_one_line() -> None:
    with started("click.echo('ready')\ntime.sleep(600)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize(
    "module", ["millrace.installation", "millrace.status.collect", "services.decoder.app"]
)
def test_an_interrupt_while_modules_are_imported(module: str) -> None:
    command = "decoder" if module.startswith("services") else "status"
    script = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from millrace.cli import main\n"
        f"main([{command!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


LOG = Path(__file__).parents[1] / "binlog_command/logs/mysql.000001"


@pytest.mark.parametrize(
    "command",
    [
        ["millrace.cli", "--version"],
        ["millrace.cli", "--help"],
        ["millrace.cli", "topic", "--help"],
        ["millrace.cli", "job", "analytics", "--help"],
        ["millrace.cli", "binlog", str(LOG)],
        ["millrace.cli", "binlog", "--stats", str(LOG)],
        ["millrace.cli", "decoder"],
        ["services.reader"],
    ],
    ids=" ".join,
)
def test_standard_output_that_cannot_be_written(command: list[str]) -> None:
    environment = os.environ | {
        "MILLRACE_SOURCE": "shop",
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
        "MILLRACE_FILES": str(LOG),
        "MILLRACE_HTTP_PORT": "0",
    }
    if "decoder" in command:
        del environment["MILLRACE_FILES"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == (1 if "binlog" in command else 74), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device" in done.stderr


def test_large_output_that_cannot_be_written() -> None:
    """It goes past the buffers, so that none of it is left to be refused again."""
    with started("import os\nos.dup2(os.open('/dev/full', 1), 1)\nclick.echo('x' * 10**6)") as process:
        _, errors = process.communicate()
    assert process.returncode == 74
    assert len(errors.splitlines()) == 1


def test_a_bug_has_its_exit_code() -> None:
    with started("secret = 'hidden'\nraise ZeroDivisionError") as process:
        _, errors = process.communicate()
    assert process.returncode == 70
    lines = errors.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert (
        lines[-1]
        == "error: millrace doctor failed because of a bug (ZeroDivisionError), see the traceback above"
    )


def test_spark_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("spark_jobs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    done = CliRunner().invoke(main, ["job", "analytics", "--source", "shop"])
    assert done.exit_code == 2
    assert done.output.startswith("error: Spark is not installed (")
    assert done.output.endswith(f"): {install_command('spark', 'local')}\n")
    listed = CliRunner().invoke(main, ["job", "--help"])
    assert listed.exit_code == 0
    assert "  analytics       Report what was written when: load, tables" in listed.output
    for name in ("analytics", "loop_detection", "loop-detection"):
        done = CliRunner().invoke(main, ["job", name, "--help"])
        assert done.exit_code == 0
        assert done.output == job_help(name.replace("-", "_"))


def commands(command: click.Command, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group of others, with its name."""
    if not isinstance(command, click.Group):
        yield " ".join(above), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands(below, *above, name)


def test_every_command_with_settings_takes_them_from_a_file() -> None:
    without = {
        name
        for name, command in commands(main)
        if not any("--config" in option.opts for option in command.params)
    }
    assert without == {"job jars", "local down", "local status", "local up"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["local", "status"],
        ["job", "jars"],
        ["binlog", "no-such-file"],
        ["demo"],
        ["topic", "t"],
        ["verify", "raw"],
        ["doctor"],
        ["status"],
        ["snapshot"],
        ["run"],
    ],
    ids=" ".join,
)
def test_a_misspelt_variable_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_COLUMN_DROP", "clinic.patient.name")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in {1, 2}  # doctor's finding has the code of an error
    assert "MILLRACE_COLUMN_DROP is unknown; there is MILLRACE_COLUMNS_DROP" in done.output


def test_a_file_says_where_kafka_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file for the option and the variable, in a command that knows no source too."""
    file = tmp_path / "millrace.toml"
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\nconnect_timeout_s = 0.5\n')
    monkeypatch.setenv("MILLRACE_CONFIG", "")
    for arguments in (["topic", "t", "--config", str(file)], ["topic", "t"]):
        done = CliRunner().invoke(main, arguments)
        assert "127.0.0.1:1" in done.output
        monkeypatch.setenv("MILLRACE_CONFIG", str(file))
