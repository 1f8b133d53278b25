"""What ``millrace local`` says without servers."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli import local as commands
from millrace.cli import main
from millrace.cli.local import _only_one
from millrace.local import Kafka, LocalError
from millrace.local.processes import Process


def test_one_stack_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    with _only_one():
        with pytest.raises(LocalError) as caught, _only_one():
            pass
        assert str(caught.value) == "it runs already: see 'millrace local status', stop it with 'down'"
    with _only_one():
        pass


@pytest.mark.usefixtures("same_signals")
@pytest.mark.parametrize(
    "arguments",
    [["local", "status"], ["local", "down"], ["local", "up"], ["local", "up", "--detach"], ["job", "jars"]],
)
def test_a_cache_that_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    file = tmp_path / "cache"
    file.touch()
    monkeypatch.setenv("MILLRACE_CACHE", str(file))
    outcome = CliRunner().invoke(main, arguments)
    folder = file / ("artifacts" if arguments[0] == "job" else "local")
    assert outcome.output == (
        f"error: the cache {folder} cannot be written: Not a directory; "
        "set MILLRACE_CACHE to a folder of your own\n"
    )
    assert outcome.exit_code == (2 if arguments[0] == "job" else 1)


def test_files_with_passwords_are_our_own(tmp_path: Path) -> None:
    """Whatever was there before, with whatever rights."""
    for before in (None, 0o644, 0o666):
        path = tmp_path / f"file-{before}"
        if before is not None:
            path.write_text("something longer than what is written now")
            path.chmod(before)
        with commands._private(path) as file:
            assert path.stat().st_mode & 0o777 == 0o600
            file.write(b"secret")
        assert path.read_bytes() == b"secret"
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        commands._private(tmp_path / "link")
    assert (tmp_path / "precious").read_text() == "precious"


def test_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    outcome = CliRunner().invoke(main, ["local", "status"])
    assert (outcome.exit_code, outcome.output) == (1, "nothing runs; start it with: millrace local up\n")
    outcome = CliRunner().invoke(main, ["local", "down"])
    assert (outcome.exit_code, outcome.output) == (0, "nothing runs\n")


def test_servers_that_do_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(commands, "_DOWN_TIMEOUT_S", 0)
    deaf = Process(
        "up", ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"], log=tmp_path / "log"
    )
    while deaf.log_tail() != "deaf":
        assert deaf.poll() is None
    with commands._only_one():
        (tmp_path / "local" / "stack.json").write_text(json.dumps({"pid": deaf.pid}))
        outcome = CliRunner().invoke(main, ["local", "down"])
    deaf.kill()
    assert outcome.exit_code == 1
    assert outcome.output == f"error: process {deaf.pid} has not ended within 0 s\n"


def test_servers_that_cannot_start_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    with commands._only_one():
        outcome = CliRunner().invoke(main, ["local", "up", "--detach"])
    assert outcome.exit_code == 1
    assert outcome.output == (
        "error: it ended:\nerror: it runs already: see 'millrace local status', stop it with 'down'\n"
    )


def test_nodes_of_kafka() -> None:
    with pytest.raises(LocalError, match=r"^Kafka runs with 1 or 3 nodes here, not 2$"):
        Kafka(2)
