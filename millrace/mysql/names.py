"""Names of log files, as servers say them.

Such a name becomes part of the keys of records, of states and of paths, so it is looked at where it comes
in: it must be the name of a file in a folder, never a way to another one.
"""

import re
from typing import Final

from millrace.mysql.errors import ProtocolError
from millrace.text import shortened

_NOT_IN_NAMES: Final = re.compile(r"[/\\\x00-\x1f\x7f]")
_LONGEST: Final = 512
"""Bytes of a path of a server, FN_REFLEN."""


def log_file_name(name: str | bytes, where: str) -> str:
    """Return a log file's name; ``where`` says in the error which server sent it, and with what.

    Bytes that are no UTF-8 become surrogates, as Python has them in names of files.
    """
    if isinstance(name, bytes):
        name = name.decode("utf-8", "surrogateescape")
    problem = None
    if name in {"", ".", ".."}:
        problem = "is none"
    elif _NOT_IN_NAMES.search(name):
        problem = "has a slash, a backslash or a control character in it"
    elif len(name.encode("utf-8", "surrogateescape")) > _LONGEST:
        problem = f"is longer than {_LONGEST} bytes"
    if problem is not None:
        raise ProtocolError(f"{where}: {shortened(name, 100)!r} as the name of a log file {problem}")
    return name
