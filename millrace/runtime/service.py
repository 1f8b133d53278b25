"""The frame around a service: settings, logs, signals, health, and one clear line when it cannot continue.

    def main() -> int:
        return run_service("decoder", DecoderSettings, app)

    def app(service: Service[DecoderSettings]) -> None:
        while not service.stop.is_set(): …

``app`` returns when ``service.stop`` is set, at the next point where its work is whole. A first SIGTERM or
SIGINT sets it, a second one ends the process at once. A log that cannot be written any more sets it too.

What a service waits for may not come, and not every wait of a client library can be left. A process that was
told to stop and has not ended after a while ends where it is: as after SIGKILL nothing is lost by that, since
what counts is in Kafka's transactions. So does a process in which one call holds Python's interpreter lock
for as long: no thread of Python can then see a signal, or answer a probe.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from millrace import __version__, kernel
from millrace.binlog.errors import BinlogError
from millrace.runtime.errors import StopRequestedError, UserError, stop_of_service
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.imports import spare_garbage_collection
from millrace.runtime.logging import (
    Logger,
    bind_contextvars,
    clear_contextvars,
    configure_logging,
    get_logger,
)
from millrace.runtime.metrics import HttpServer, ServiceMetrics, new_registry
from millrace.runtime.settings import ServiceSettings, load_settings
from millrace.text import printable

S = TypeVar("S", bound=ServiceSettings)
_LAST_S: Final = 40.0
"""How long a service that was told to stop may take, and how long a call may hold the interpreter lock: less
than the chart's terminationGracePeriodSeconds."""
_STDERR: Final = 2


@dataclass(slots=True)
class Service(Generic[S]):
    """What a service is given to work with."""

    name: str
    settings: S
    log: Logger
    stop: threading.Event = field(default_factory=threading.Event)
    health: Health = field(default_factory=Health)
    metrics: CollectorRegistry = field(default_factory=new_registry)


def run_service(name: str, settings_class: type[S], app: Callable[[Service[S]], None], **values: Any) -> int:
    """Load settings, run ``app``, give the process's exit code. ``values`` win over environment and file."""
    stop = threading.Event()
    unwritable: list[OSError] = []

    def leave(error: OSError) -> None:
        unwritable.append(error)
        stop.set()

    configure_logging(when_unwritable=leave)
    clear_contextvars()
    bind_contextvars(service=name)
    log = get_logger("millrace")
    try:
        settings = load_settings(settings_class, **values)
        configure_logging(settings.log_level, when_unwritable=leave)
        bind_contextvars(source=settings.source)
        service = Service(name, settings, log, stop)
        stop_of_service.set(stop)
        ServiceMetrics(service.metrics, name, settings.source, service.health)
        with _lock_watch(), _signals(service.stop, log), _http(service):
            log.info("started", pid=os.getpid(), version=__version__, kernel=kernel.state())
            if kernel.state() == "altered":
                log.error("the kernel is not used: a library was altered", library=kernel.altered())
            if settings.http_port == 0 and "http_host" in settings.model_fields_set:
                log.warning("MILLRACE_HTTP_HOST has no effect: MILLRACE_HTTP_PORT is 0, which serves nothing")
            spare_garbage_collection()
            app(service)
            log.info("stopped")
    except StopRequestedError:
        log.info("stopped")
    except UserError as error:
        log.error("stopped", reason=error.message, exit_code=int(error.exit_code))  # noqa: TRY400
        _say(*error.lines)
        return int(error.exit_code)
    except BinlogError as error:
        log.exception("stopped", exit_code=int(ExitCode.DATA))
        _say(f"the log cannot be read on: {error}")
        return int(ExitCode.DATA)
    except Exception as error:
        log.exception("bug", exit_code=int(ExitCode.BUG))
        _say(f"{name} failed because of a bug ({type(error).__name__}: {error}); the log has the details")
        return int(ExitCode.BUG)
    if any(isinstance(each, BrokenPipeError) for each in unwritable):
        return int(ExitCode.UNREAD)
    if unwritable:
        _say(f"its log cannot be written to standard output: {unwritable[0].strerror}")
        return int(ExitCode.OUTPUT)
    return int(ExitCode.STOPPED)


def _say(*lines: str) -> None:
    with contextlib.suppress(OSError):
        for line in lines:
            print(f"error: {printable(line)}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _http(service: Service[S]) -> Iterator[None]:
    settings = service.settings
    if settings.http_port == 0:
        yield
        return
    with HttpServer(settings.http_host, settings.http_port, service.health, service.metrics):
        yield


@contextmanager
def _lock_watch() -> Iterator[None]:
    """End the process, with a traceback, where a call holds the interpreter lock for too long.

    The timer of :mod:`faulthandler` is a thread of C, which needs no lock. A thread of Python starts it again
    as long as it runs.
    """
    over = threading.Event()

    def watch() -> None:
        while True:
            faulthandler.dump_traceback_later(_LAST_S, exit=True, file=_STDERR)
            if over.wait(_LAST_S / 8):
                faulthandler.cancel_dump_traceback_later()
                return

    thread = threading.Thread(target=watch, name="lock watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _signals(stop: threading.Event, log: Logger) -> Iterator[None]:
    """Let SIGTERM and SIGINT set ``stop``; outside the main thread, where none arrive, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave() -> None:
        log.warning("stopped", reason="the work did not end in time; the next start does it again")
        sys.stdout.flush()
        os._exit(ExitCode.STOPPED)

    last = threading.Timer(_LAST_S, leave)
    last.daemon = True

    told, tell = os.pipe()
    is_told = False

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal is_told
        if is_told:
            os._exit(128 + number)
        is_told = True
        os.write(tell, bytes((number,)))

    def obey() -> None:
        # Not in the handler: what the main thread was doing may hold the lock of ``stop``.
        for number in os.read(told, 1):
            stop.set()
            last.start()
            log.info("stopping", signal=signal.Signals(number).name)

    thread = threading.Thread(target=copy_context().run, args=(obey,), name="signals", daemon=True)
    thread.start()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(tell)
        thread.join()
        os.close(told)
        last.cancel()
