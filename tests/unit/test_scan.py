"""No secret lies in the tree, and no rule about security is switched off without a reason at its line."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.shared import PROJECT

SKIPPED = {
    ".venv",
    ".git",
    ".make",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "build",
    "dist",
}
SECRETS = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
    rb"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    rb"|\bAIza[0-9A-Za-z_-]{35}\b"  # Google
    rb"|\bgh[oprsu]_[0-9A-Za-z]{36}|\bgithub_pat_[0-9A-Za-z_]{60}"
    rb"|\bglpat-[0-9A-Za-z_-]{20}"
    rb"|\bpypi-[0-9A-Za-z_-]{50}"
    rb"|\bxox[abprs]-[0-9A-Za-z-]{20}"  # Slack
    rb"|\bsk_live_[0-9A-Za-z]{20}"  # Stripe
    rb"|\bnpm_[0-9A-Za-z]{36}\b"
    rb"|\beyJ[0-9A-Za-z_-]{20,}\.eyJ[0-9A-Za-z_-]{20,}\."  # a JSON web token
)


def files() -> list[Path]:
    """All files of the project: those that git knows or would take, where there is git."""
    listing = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
        return [path for name in found if name and (path := PROJECT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        paths = (path for path in PROJECT.rglob("*") if path.is_file())
        return [path for path in paths if not SKIPPED & set(path.relative_to(PROJECT).parts)]


@pytest.mark.parametrize(
    "text",
    [
        b"-----BEGIN " + b"PRIVATE KEY-----",
        b"-----BEGIN " + b"RSA PRIVATE KEY-----",
        b"key = AKIA" + b"IOSFODNN7EXAMPLE",
        b"ghp_" + b"a" * 36,
        b"pypi-" + b"A" * 60,
        b"eyJ" + b"a" * 20 + b".eyJ" + b"a" * 20 + b".x",
    ],
)
def test_a_secret_is_found(text: bytes) -> None:
    assert SECRETS.search(b"x = '" + text + b"'")


def test_no_secret_lies_in_the_tree() -> None:
    found = files()
    assert len(found) > 400
    assert [path for path in found if SECRETS.search(path.read_bytes())] == []


def test_exceptions_have_reasons() -> None:
    switched_off = re.compile(r"#\s*(?:noqa:.*\bS\d{3}\b|nosec|noqa\s*$)(?P<rest>.*)$")
    for path in files():
        if path.suffix == ".py" and path.relative_to(PROJECT).parts[0] != "tests":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                exception = switched_off.search(line)
                assert exception is None or " - " in exception["rest"], f"{path}:{number}: {line.strip()}"
