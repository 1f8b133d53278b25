"""How this Millrace was installed, and so how a part that is missing is added to it.

The name ``millrace`` in package indexes is somebody else's: nobody is ever sent there. What is said works
where this Millrace runs: it names the folder that it was installed from, or else the name by which it was
found.
"""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "millrace-cdc"
"""The name of the distribution; the package and the command are called ``millrace``."""


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation."""
    place = _place()
    option = "--editable " if place is not None and place == _checkout() else ""
    what = f"{place or DISTRIBUTION}[{','.join(extras)}]"
    return f"{shlex.quote(sys.executable)} -P -m pip install {option}{shlex.quote(what)}"


def _checkout() -> Path | None:
    """Return the folder of the project where this code lies in one."""
    folder = Path(__file__).parents[1]
    return folder if (folder / "pyproject.toml").is_file() else None


def _place() -> Path | None:
    """Return the folder or the file that this was installed from; None where it came from an index."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return _checkout()
    url = urlsplit(json.loads(text)["url"] if text else "")
    place = Path(unquote(url.path))
    return place if url.scheme == "file" and place.exists() else _checkout()
