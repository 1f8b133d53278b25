"""Work in a thread of its own, beside what a test looks at."""

import threading
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Worker"]


class Worker(ABC):
    """Works from ``start`` to ``stop``, or within ``with``."""

    def __init__(self, name: str | None = None) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Work until ``_stop`` is set."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, at once or after the step at hand."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
