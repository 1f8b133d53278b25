"""Runs a service that waits at a place in its work until it is let go: ``held SERVICE PLACE FOLDER``.

A file ``arrived`` in the folder says that it is there, a file ``go`` lets it continue.
"""

import functools
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

__all__ = ["PLACES"]

PLACES = {
    "connecting": "services.{service}.app.connect",
    "creating topics": "millrace.kafka.exactly_once.ensure_topics",
    "taking over": "millrace.kafka.producer.TransactionalProducer.open",
    "comparing": "millrace.kafka.continuity.ContinuityGuard.begin",
    "reading": "millrace.kafka.input.InputReader.seek",
    "binding": "millrace.rowmapper.ports.ensure_table_topics",
    "producing": "millrace.kafka.producer.TransactionalProducer.send",
    "committing": "millrace.kafka.exactly_once.Committer.commit",
    "idle": "millrace.kafka.exactly_once.Committer.idle",
}
"""Functions before which a service may be held."""


def _held(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    @functools.wraps(function)
    def held(*arguments: Any, **named: Any) -> Any:
        (folder / "arrived").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        return function(*arguments, **named)

    return held


def _main(service: str, place: str, folder: Path) -> int:
    target = PLACES[place].format(service=service)
    owner, _, name = target.rpartition(".")
    module, _, kind = owner.rpartition(".")
    found = getattr(import_module(module), kind) if kind[0].isupper() else import_module(owner)
    with patch.object(found, name, _held(getattr(found, name), folder)):
        code: int = import_module(f"services.{service}.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
