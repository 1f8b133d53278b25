"""Runs a service and says where the time of its start goes: ``python -m benchmarks.phases reader``.

It is the service as ``python -m services.reader`` runs it; some of its functions note when they were called
and when they returned, until the first transaction with output is committed. Then a line for each call is
written on standard error: ``phase``, depth, name, seconds from the start of the process to the call, seconds
that it took. :mod:`benchmarks.start` reads them.
"""

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

SPAWNED: Final = "MILLRACE_BENCH_SPAWNED"
"""Environment variable: when the process was started, seconds since 1970."""

_CALLS: Final = (
    ("reach Kafka", "services.{service}.app", "connect"),
    ("read the state without fencing", "services.reader.app", "committed_state"),
    ("examine the server", "millrace.reader.live", "LiveSource.examine"),
    ("take over", "services.{service}.app", "take_over"),
    ("look up topics", "millrace.kafka.exactly_once", "ensure_topics"),
    ("fence, read the state", "millrace.kafka.producer", "TransactionalProducer.open"),
    ("init_transactions", "millrace.kafka.client", "Producer.init_transactions"),
    ("read the state", "millrace.kafka.producer", "read_state"),
    ("compare ids", "millrace.kafka.continuity", "ContinuityGuard.check_ids"),
    ("compare records", "millrace.kafka.continuity", "ContinuityGuard.check_records"),
    ("claim the state", "millrace.kafka.producer", "TransactionalProducer.commit"),
    ("register own schemas", "millrace.avro.registry", "SchemaRegistry.register"),
    ("read known topics", "millrace.rowmapper.ports", "Ports.noted"),
    ("seek", "millrace.kafka.input", "InputReader.seek"),
    ("open the dump", "millrace.reader.live", "LiveSource.open"),
    ("read the catalogue", "millrace.reader.live", "read_catalog"),
    ("bind tables", "millrace.rowmapper.binding", "Binder._bind_all"),
    ("commit", "millrace.kafka.exactly_once", "Committer.commit"),
)
_LAST: Final = "commit"


class _Clock:
    """Notes calls until the first commit has returned."""

    def __init__(self) -> None:
        self._began = float(os.environ.get(SPAWNED) or time.time())
        self._calls: list[tuple[int, str, float, float]] = []
        self._depth = 0
        self._over = False

    def note(self, name: str, since: float) -> None:
        self._calls.append((self._depth, name, since - self._began, time.time() - since))

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(*arguments: Any, **options: Any) -> Any:
            if self._over:
                return call(*arguments, **options)
            at, since = len(self._calls), time.time()
            self._depth += 1
            try:
                return call(*arguments, **options)
            finally:
                self._depth -= 1
                self._calls.insert(at, (self._depth, name, since - self._began, time.time() - since))
                if name == _LAST and self._depth == 0:
                    self._say()

        return noted

    def _say(self) -> None:
        self._over = True
        for depth, name, since, took in self._calls:
            print("phase", depth, name, f"{since:.3f}", f"{took:.3f}", sep="\t", file=sys.stderr, flush=True)


def arm(service: str) -> Callable[[], int]:
    """Have the calls of a service noted; give its main function."""
    clock = _Clock()
    main: Callable[[], int] = importlib.import_module(f"services.{service}.__main__").main
    clock.note("start Python, import", clock._began)
    for name, place, path in _CALLS:
        module = place.format(service=service)
        if module.startswith("services.") and not module.startswith(f"services.{service}."):
            continue
        owner: Any = importlib.import_module(module)
        *outer, last = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        if hasattr(owner, last):
            setattr(owner, last, clock.wrap(name, getattr(owner, last)))
    return main


if __name__ == "__main__":
    sys.exit(arm(sys.argv[1])())
