import os
from pathlib import Path

import pytest

from millrace.local import ComponentDiedError, LocalError, database
from millrace.local import database as local_database
from millrace.local.database import MySQL


def test_options_override_defaults_and_none_leaves_one_out() -> None:
    options = {"log-bin": None, "skip-log-bin": True, "port": 15000, "enforce-storage-engine": ""}
    assert database._arguments(options) == ["--skip-log-bin", "--port=15000", "--enforce-storage-engine="]


def test_missing_libraries_are_named_with_their_packages() -> None:
    message = database._missing_message("mysql", ["libaio.so.1", "libnuma.so.1", "libother.so.2"])
    assert "lacks libaio.so.1, libnuma.so.1, libother.so.2" in message
    assert "install: libaio1 libnuma1 libother.so.2" in message


def test_the_loaders_words_are_understood() -> None:
    listed = "\tlibaio.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
    listed += "x: error while loading shared libraries: libnuma.so.1: cannot open shared object file"
    assert database._not_found(listed) == ["libaio.so.1", "libnuma.so.1"]


def test_a_program_of_this_machine_misses_nothing() -> None:
    assert database._missing_libraries(Path("/bin/sh"), os.environ) == []


@pytest.mark.parametrize(
    ("version", "fits"),
    [("8.0.15", True), ("8.4.3", True), ("9.7.4", True), ("5.7.22", False), ("11.4.5-MariaDB", False)],
)
def test_an_installed_mysqld_is_used_if_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    program = tmp_path / "mysqld"
    program.write_text(
        f"#!/bin/sh\n[ \"$LD_TRACE_LOADED_OBJECTS\" ] || echo 'mysqld  Ver {version} for Linux'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert database._installed_mysqld() == (program if fits else None)


def test_the_account_has_a_password_of_its_own() -> None:
    assert MySQL().password != MySQL().password


def program(folder: Path, text: str) -> Path:
    path = folder / "mysqld"
    path.write_text(f'#!/bin/sh\n[ "$LD_TRACE_LOADED_OBJECTS" ] || {{ {text}; }}\n')
    path.chmod(0o755)
    return path


def test_a_program_that_does_not_tell_its_version(tmp_path: Path) -> None:
    silent = program(tmp_path, "echo hello")
    with pytest.raises(LocalError) as caught:
        database._server_version(silent, os.environ)
    assert str(caught.value) == f"{silent} --version says nothing of use: hello\n"


def test_data_that_cannot_be_initialised(tmp_path: Path) -> None:
    server = MySQL()
    server._program = program(tmp_path, "echo no room; exit 3")
    with pytest.raises(ComponentDiedError) as caught:
        server._run_initialize({"datadir": str(tmp_path)}, tmp_path / "log")
    assert str(caught.value) == f"{server.name} cannot initialise its data (exit code 3):\nno room\n"


def test_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_database.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(local_database.platform, "machine", lambda: "arm64")
    with pytest.raises(LocalError) as caught:
        local_database._require_linux_amd64("MySQL")
    assert str(caught.value) == (
        "there is no MySQL to fetch for Darwin on arm64, only for Linux on x86-64; "
        "use a server of your own instead"
    )
