"""Events of real servers, as bytes and as values: ``real_events.json``.

``FORMATS`` holds the first event of a log of each server, which says how the others are read. In the file an
event is its class and its fields, without those that have their default; bytes are in hex.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.binlog import events
from millrace.binlog.declaration import Event


@dataclass(frozen=True, slots=True)
class Vector:
    """An event in the format of ``server``: its bytes in hex, and what they say."""

    server: str
    data: str
    event: Event


def _value(made: Any) -> Any:
    if isinstance(made, list):
        return tuple(map(_value, made))
    if not isinstance(made, dict):
        return made
    if "hex" in made:
        return bytes.fromhex(made["hex"])
    return getattr(events, made["class"])(
        **{name: _value(each) for name, each in made.items() if name != "class"}
    )


_READ = json.loads((Path(__file__).parent / "real_events.json").read_text("utf-8"))
FORMATS: dict[str, str] = _READ["formats"]
REAL = [Vector(each["server"], each["data"], _value(each["event"])) for each in _READ["events"]]
