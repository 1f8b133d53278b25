"""Kafka's errors in words: :class:`BrokerError` ends the process with code 4, :class:`FencedError` with 6."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from millrace.runtime.errors import StopRequestedError, UserError, stop_of_service
from millrace.runtime.exit_codes import ExitCode

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_STEP_S: Final = 0.2

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
_UNREACHABLE = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
)


class BrokerError(UserError):
    """Kafka cannot be reached, or refuses."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.KAFKA)


class FencedError(UserError):
    """Another process has the same transactional.id: it took over, this one may no longer write."""

    def __init__(self, message: str, *, by_service: bool | None = None) -> None:
        super().__init__(message, ExitCode.FENCED)
        self.by_service = by_service
        """Whether that is a service or else a command; None where it has not said who it is."""


class InputLostError(UserError):
    """Records of the input were deleted before they were read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.DATA)


def is_fenced(error: KafkaError) -> bool:
    """Whether the error says that another producer took over."""
    return error.code() in _FENCED


def is_passing(error: KafkaError) -> bool:
    """Whether the client continues by itself once a broker answers again."""
    return error.retriable() or error.code() in _UNREACHABLE


def answer_of(future: "Future[T]", timeout_s: float) -> T:
    """Wait for what an AdminClient was asked; raise KafkaException also where no answer comes in time.

    Raises :class:`StopRequestedError` where the service that this context runs was told to stop.
    """
    stop, deadline = stop_of_service.get(), time.monotonic() + timeout_s
    while True:
        try:
            return future.result(max(0.0, min(_STEP_S, deadline - time.monotonic())))
        except TimeoutError:
            if stop is not None and stop.is_set():
                raise StopRequestedError from None
            if time.monotonic() >= deadline:
                reason = f"no answer within {timeout_s:g} s"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn a KafkaException into words: "Kafka … while {doing}: …"."""
    try:
        yield
    except KafkaException as exception:
        error = exception.args[0]
        if is_fenced(error):
            raise FencedError(f"another process took over while {doing}") from exception
        if error.code() in _UNREACHABLE:
            raise BrokerError(
                f"Kafka cannot be reached while {doing}: {error.str()}; check that its brokers run and that "
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS names them"
            ) from exception
        if error.code() == KafkaError._INCONSISTENT:
            raise BrokerError(
                f"Kafka did not take all records while {doing}; its brokers' logs say why: a full disk?"
            ) from exception
        raise BrokerError(f"Kafka refuses {doing}: {error.str()} ({error.name()})") from exception
