# ruff: noqa: INP001 - a script, no package
"""Lists the options of mysqlbinlog or mariadb-binlog, from what the program's ``--help`` says.

    python tools/list_tool_options.py mysqlbinlog mariadb-binlog > tests/unit/binlog_command/tool_options.tsv

A line each: program, version, short name, long name, whether a value follows (``required``, ``optional``).
The list is checked in, and a test compares it with the options that ``millrace binlog`` takes, ignores or
refuses.
"""

import re
import subprocess
import sys
from collections.abc import Iterator

_LINE = re.compile(
    r"^(?:  (?:-(?P<short>[^\s-]), )?)?--(?P<name>[a-z][a-z0-9-]*)(?P<value>\[?=[#a-z]+\]?)?(?= |$)",
    re.MULTILINE,
)
_VERSION = re.compile(r"(?:Ver|from) (?P<version>\d+\.\d+\.\d+)")


def options_of(help_text: str) -> Iterator[tuple[str, str, str]]:
    """Yield short name, long name and ``required``, ``optional`` or nothing of each option."""
    seen = set()
    for match in _LINE.finditer(help_text):
        if match["name"] not in seen:
            seen.add(match["name"])
            value = match["value"] or ""
            kind = "optional" if value.startswith("[") else "required" if value else ""
            yield match["short"] or "", match["name"], kind


def main() -> None:
    """List the options of the programs that the command line names."""
    for program in sys.argv[1:]:
        output = subprocess.run([program, "--no-defaults", "--help"], capture_output=True, check=True).stdout  # noqa: S603 - named by the caller
        text = output.decode()
        version = _VERSION.search(text)
        name = "mariadb-binlog" if "MariaDB" in text.partition("\n")[0] else "mysqlbinlog"
        for option in options_of(text):
            sys.stdout.write("\t".join((name, version["version"] if version else "", *option)) + "\n")


if __name__ == "__main__":
    main()
