"""The statements of ``tests/unit/ddl/forms.txt``, and what they make of table t."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.shared import PROJECT

_FILE = PROJECT / "tests" / "unit" / "ddl" / "forms.txt"


class Form(NamedTuple):
    """Statements for the database ddl_random, of mysql, maria or both, and table t after them, in brief."""

    server: str
    statements: tuple[str, ...]
    expected: str


def forms() -> Iterator[Form]:
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            server, statements, expected = (part.strip() for part in line.split("|"))
            text = statements.replace(r"\x7f", "\x7f").replace(r"\x01", "\x01")
            yield Form(server, tuple(text.split("; ")), expected)
