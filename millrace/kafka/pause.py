"""When a service works: not while its source is paused, nor while a command is at work in its place.

The record ``pause`` in ``{source}.state`` says that a source is paused. It is written by a process that takes
over from all services of the source, in a transaction with the ids of ``millrace run``; their states stay as
they are. A service that a pause or a command has fenced waits, without taking its ids, until the pause or the
command has ended, and takes its place again by itself.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from millrace.contract import PAUSE, RUN, SERVICES, Topics
from millrace.kafka.client import AdminClient
from millrace.kafka.errors import BrokerError, FencedError
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import SILENT_S, StoredState, newest_offset, process_name, read_state
from millrace.kafka.topics import topic_ids
from millrace.runtime.errors import StopRequestedError
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service
from millrace.runtime.settings import ServiceSettings

_LOG = get_logger(__name__)
_LOOK_S: Final = 1.0
_ANNOUNCE_S: Final = 10.0
"""How long whoever has fenced a service has to say who it is: a command that was killed never does."""

_ATTEMPTS: Final = 5

T = TypeVar("T")


def pause_source(settings: ServiceSettings) -> None:
    """Take over from all services of a source, so that none writes any more, and have them wait.

    So does a snapshot that is being taken.
    """

    def pause() -> None:
        _fence_snapshot(settings)
        with TransactionalProducer(
            settings.kafka, settings.source, RUN, role=PAUSE, writes_state_of=PAUSE
        ) as producer:
            producer.open()
            producer.commit(b"paused")

    in_place_of_service(pause, or_command=True)
    _fence_snapshot(settings)


def in_place_of_service(work: Callable[[], T], *, or_command: bool = False) -> T:
    """Do the work of a command that fences a service, again where that has fenced the command.

    A service that was starting had looked for its turn before the command took over. Fenced again, it waits.
    Another command has precedence, unless ``or_command``.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except FencedError as error:
            if error.by_service is False and not or_command:
                raise
            _LOG.warning("taking over again", reason=error.message)
    return work()


def _fence_snapshot(settings: ServiceSettings) -> None:
    with TransactionalProducer(settings.kafka, settings.source, "snapshot", role=PAUSE) as producer:
        producer.open()


def resume_source(settings: ServiceSettings) -> None:
    """Let the services of a source continue. None is fenced."""
    with TransactionalProducer(settings.kafka, settings.source, PAUSE) as producer:
        producer.open()
        producer.commit(None)


def pause_of(settings: ServiceSettings, admin: AdminClient) -> StoredState | None:
    """Return the record of a source's pause, with its time and author; None if the source is not paused."""
    topic = Topics(settings.source).state
    if topic not in topic_ids(admin, [topic]):
        return None
    found = read_state(settings.kafka, settings.source, PAUSE, undecided=False)
    return None if found is None or found.value is None else found


def in_its_place(service: Service[Any], admin: AdminClient, work: Callable[[], None]) -> None:
    """Do the work of a service whenever it is its turn, until it ends.

    Raises :class:`FencedError` where another process of the service has taken over, once that has had nothing
    to do for ``fenced_wait_s``: whoever supervises this process will start it again.
    """
    settings, stop, health = service.settings, service.stop, service.health
    turn = _Turn(settings, admin, SERVICES if service.name == RUN else (service.name,))
    while True:
        told = ""
        while reason := turn.reason():
            if reason != told:
                service.log.warning("waiting", reason=reason)
                told = reason
            health.wait_for(reason)
            if stop.wait(_LOOK_S):
                raise StopRequestedError
        try:
            work()
        except FencedError as error:
            health.wait_for(error.message)
            service.log.warning("fenced", reason=error.message)
            if turn.is_lost(service):
                raise
        else:
            return


class _Turn:
    """Says what a service waits for."""

    def __init__(self, settings: ServiceSettings, admin: AdminClient, states: Sequence[str]) -> None:
        self._settings = settings
        self._admin = admin
        self._names = states
        self._topic = Topics(settings.source).state
        self._us = process_name()
        self._end = -1
        self._pause: StoredState | None = None
        self._states: list[StoredState] = []
        # Since when a state has not moved, by our own clock: that of another host may be wrong.
        self._since: dict[int, float] = {}

    def reason(self) -> str:
        """Say for what it waits; nothing where it is its turn."""
        self._look()
        if self._pause is not None:
            return f"the source is paused, by {self._pause.owner}: 'millrace resume' resumes it"
        for state in self._states:
            silent_s = time.monotonic() - self._since[state.offset]
            if state.by.is_command and not state.by.ended and silent_s < SILENT_S:
                return f"{state.owner} is at work in its place"
        return ""

    def _look(self) -> None:
        try:
            self._read()
        except BrokerError as error:
            _LOG.warning("waiting for Kafka", reason=error.message)

    def _read(self) -> None:
        if self._end < 0 and self._topic not in topic_ids(self._admin, [self._topic]):
            return
        settings = self._settings
        end = newest_offset(settings.kafka, self._topic)
        if end != self._end:
            found = [
                read_state(settings.kafka, settings.source, name, undecided=False)
                for name in (PAUSE, *self._names)
            ]
            pause, *states = found
            self._pause = pause if pause is not None and pause.value is not None else None
            self._states = [state for state in states if state is not None]
            now = time.monotonic()
            self._since = {state.offset: self._since.get(state.offset, now) for state in self._states}
            self._end = end

    def is_lost(self, service: Service[Any]) -> bool:
        """Whether another service has taken the place, once that has had nothing to do for ``fenced_wait_s``.

        Whoever has fenced this one writes the states. A command that has ended has left the place, as has one
        that was killed before it could say who it is. Raises :class:`StopRequestedError` where the process is
        to stop before that is known.
        """
        before = max((state.offset for state in self._states), default=-1)
        wait_s = self._settings.kafka.fenced_wait_s
        values, began, known = list[bytes | None](), time.monotonic(), False
        while not service.stop.is_set():
            service.health.beat()
            if self.reason():
                return False
            others = [each for each in self._states if each.offset > before and each.by.process != self._us]
            if any(not each.by.is_command for each in others):
                known = True
                if values != (values := [each.value for each in self._states]):
                    began = time.monotonic()
                if time.monotonic() - began >= wait_s:
                    return True
            elif others or time.monotonic() - began >= _ANNOUNCE_S:
                return False
            service.stop.wait(min(_LOOK_S, wait_s) if known else 0.2)
        if not known:
            raise StopRequestedError
        return True
