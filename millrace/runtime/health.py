"""Health of a service as its main loop reports it."""

import threading
import time


class Health:
    """What ``/healthz`` and ``/readyz`` answer. The main loop calls :meth:`beat` at every turn.

    A service lives while its loop has turned within ``stale_after_s`` seconds; it is ready once it has said
    so, lives, reaches Kafka, and knows of no loss.
    """

    def __init__(self, stale_after_s: float = 120.0) -> None:
        self._stale_after_s = stale_after_s
        self._ready = threading.Event()
        self._kafka_answers = True
        self._waits_for = ""
        self._last_beat = time.monotonic()
        self._losses: dict[str, str] = {}

    def beat(self) -> None:
        """Note that the main loop turns."""
        self._last_beat = time.monotonic()

    def set_ready(self, ready: bool = True) -> None:
        """Note that the service has read its state and works, or no longer does."""
        self.beat()
        if ready:
            self._waits_for = ""
            self._ready.set()
        else:
            self._ready.clear()

    def wait_for(self, reason: str) -> None:
        """Note why the service waits, such as that its source is paused; it is not ready then."""
        self.set_ready(False)
        self._waits_for = reason

    def note_kafka(self, *, answers: bool) -> None:
        """Note whether brokers answer: a service that waits for them is at work again by itself."""
        self._kafka_answers = answers

    @property
    def alive(self) -> bool:
        """Whether the main loop has turned lately."""
        return time.monotonic() - self._last_beat < self._stale_after_s

    def set_loss(self, topic: str, reason: str | None) -> None:
        """Note that what a topic held is lost, or with None that it no longer is."""
        if reason is None:
            self._losses.pop(topic, None)
        else:
            self._losses[topic] = reason

    @property
    def ready(self) -> bool:
        """Whether the service is at work, and all that it knows of is there."""
        return self._ready.is_set() and self.alive and self._kafka_answers and not self._losses

    @property
    def reason(self) -> str:
        """Why it is not ready."""
        silent = "" if self._kafka_answers else "Kafka does not answer"
        return "; ".join(filter(None, ("not ready", self._waits_for, silent, *self._losses.values())))
