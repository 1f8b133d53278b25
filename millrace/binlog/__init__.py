"""The binary log of MySQL and MariaDB: bytes in, events out, and back. No I/O happens in here.

What the library offers can be imported from this package; ``docs/library.md`` shows how it is used.
To begin with, the events of a file::

    from millrace.binlog import decode_file

    with open("mysql-bin.000001", "rb") as stream:
        for position, decoded in decode_file(stream, "mysql-bin.000001"):
            print(position, decoded.header.type_code, decoded.event)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.binlog.library import *  # noqa: F403 - the names in its __all__
    from millrace.binlog.library import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Import the whole codec when a name of it is wanted from here; one module needs less."""
        if name == "__all__" or not name.startswith("__"):
            library = import_module(f"{__name__}.library")
            if name == "__all__" or name in library.__all__:
                return getattr(library, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *import_module(f"{__name__}.library").__all__]
