# ruff: noqa: INP001 - a script, no package
"""Write the members of EventType in millrace/binlog/types.py: the codes of events, named as their classes.

It reads the declarations without importing them, since an event can be declared only if EventType has its
code. ``make generate`` runs it first. With ``--check`` it writes nothing, and fails where the file is stale.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parents[1]
TYPES: Final = PROJECT / "millrace" / "binlog" / "types.py"
EVENTS: Final = PROJECT / "millrace" / "binlog" / "events"


def declared() -> Iterator[tuple[int, str]]:
    """Yield the code and the class's name of each event that is declared."""
    for module in sorted(EVENTS.glob("*.py")):
        for each in ast.parse(module.read_text("utf-8")).body:
            match each:
                case ast.ClassDef(name, decorator_list=[ast.Call(args=[ast.Constant(int(code)), *_])]):
                    yield code, name


def generated() -> str:
    """Return the text of types.py with all members."""
    members = "".join(
        f"    {re.sub('(?<!^)(?=[A-Z])', '_', name).upper()} = {code}\n" for code, name in sorted(declared())
    )
    text = TYPES.read_text("utf-8")
    return re.sub(r"(?<=    UNKNOWN_EVENT = 0\n)(    \w+ = \d+\n)+", members, text, count=1)


if __name__ == "__main__":
    text = generated()
    if "--check" not in sys.argv:
        TYPES.write_text(text, "utf-8")
    elif text != TYPES.read_text("utf-8"):
        sys.exit(f"{TYPES}: stale; run make generate")
