"""What goes wrong: each fault begins, lasts, and ends; which ones come, and when, is said by a seed."""

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millrace.kafka.errors import BrokerError
from millrace.kafka.state import read_state
from millrace.local import Component
from tests.chaos.proxy import Link
from tests.chaos.stack import SERVICES, Stack, Supervised
from tests.killed import POINTS, command

if TYPE_CHECKING:
    from millrace.local.processes import Process


_LONGEST_S = 30.0
"""Points that are placed at random may not come at all, such as the middle of a payload."""


class Fault(ABC):
    """Something that goes wrong. ``kind`` is its line in the report; two at a time differ in ``target``."""

    kind: str
    target: str
    lasts_s: float = 0.0
    ends_by_itself = False
    """Whether :meth:`end` waits for something to happen, which another fault may hinder."""

    @abstractmethod
    def begin(self) -> None:
        """Let it go wrong."""

    def end(self) -> None:  # noqa: B027 - nothing to do where the cause does not stay
        """Take away the cause; what is then still broken has to mend by itself."""


class Signalled(Fault):
    """A service is killed, or asked to end; its supervisor starts it again."""

    ends_by_itself = True

    def __init__(self, service: Supervised, number: signal.Signals) -> None:
        self.kind = f"{number.name} {service.name}"
        self.target = service.name
        self._service, self._number = service, number

    def begin(self) -> None:
        self._before = self._service.exit_count
        self._service.signal(self._number)

    def end(self) -> None:
        wait_until(lambda: self._service.exit_count > self._before, 120)


class Stopped(Fault):
    """A process stands still for a while."""

    def __init__(self, name: str, send: Callable[[int], None], lasts_s: float) -> None:
        self.kind = f"SIGSTOP {name}"
        self.target = name
        self.lasts_s = lasts_s
        self._send = send

    def begin(self) -> None:
        self._send(signal.SIGSTOP)

    def end(self) -> None:
        self._send(signal.SIGCONT)


class Placed(Fault):
    """A service is killed at an exact point of its work, unless that does not come within ``longest_s``."""

    ends_by_itself = True

    def __init__(
        self,
        service: Supervised,
        at: str,
        nth: int,
        *,
        commit_every: int | None = None,
        longest_s: float = 600.0,
    ) -> None:
        self.kind = f"killed {at} {service.name}"
        self.target = service.name
        self.reached = True
        self._longest_s = longest_s
        self._service = service
        self._command = command(service.name, at, nth, commit_every=commit_every)

    def begin(self) -> None:
        self._before = self._service.exit_count
        self._service.replace(self._command)

    def end(self) -> None:
        # It ends twice: as it was, and at its point.
        self.reached = wait_until(lambda: self._service.exit_count >= self._before + 2, self._longest_s)
        if not self.reached:
            self._service.signal(signal.SIGKILL)


class Second(Fault):
    """A second one of a service takes over from the first, works for a moment, and is killed."""

    ends_by_itself = True

    def __init__(self, stack: Stack, service: Supervised) -> None:
        self.kind = f"second {service.name}"
        self.target = service.name
        self._stack = stack
        self._service = service
        self._second: Process | None = None

    def begin(self) -> None:
        self._second = self._service.another()

    def end(self) -> None:
        assert self._second is not None
        wait_until(self._took_over, 60)
        time.sleep(1)
        self._second.kill()

    def _took_over(self) -> bool:
        assert self._second is not None
        try:
            state = read_state(self._stack.settings, self._stack.source, self._service.name)
        except BrokerError:
            return False
        return state is not None and f"process {self._second.pid} " in state.owner


class Down(Fault):
    """A server is killed (SIGKILL), and started again after a while."""

    def __init__(self, name: str, component: Component, kill: Callable[[], None], lasts_s: float) -> None:
        self.kind = f"SIGKILL {name}"
        self.target = name
        self.lasts_s = lasts_s
        self._component, self._kill = component, kill

    def begin(self) -> None:
        self._kill()

    def end(self) -> None:
        self._component.start()


class Disturbed(Fault):
    """A link is cut, held or slow for a while."""

    def __init__(self, link: Link, how: str, disturb: Callable[[], None], lasts_s: float) -> None:
        self.kind = f"{how} {link.name}"
        self.target = link.name
        self.lasts_s = lasts_s
        self._link, self._disturb = link, disturb

    def begin(self) -> None:
        self._disturb()

    def end(self) -> None:
        self._link.heal()


def wait_until(there: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something is so; give False if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def placed(stack: Stack, name: str, at: str, chance: random.Random) -> Placed:
    """Place a kill; how far from now, and how long transactions are, is left to chance."""
    many = {"after_fence": 1, "after_produce": 3000, "inside_statement": 60, "inside_payload": 200}
    nth = chance.randint(1, many.get(at, 8))
    commit_every = chance.choice([None, None, 20, 300])
    return Placed(stack.services[name], at, nth, commit_every=commit_every, longest_s=_LONGEST_S)


def random_faults(stack: Stack, chance: random.Random, *, payloads: bool) -> Iterator[Fault]:
    """Give faults for ever."""
    brokers = range(stack.kafka.nodes)
    links = list(stack.network.links.values())

    def some_service() -> Supervised:
        return stack.services[chance.choice(SERVICES)]

    def place() -> Fault:
        at = chance.choice([point for point in POINTS if payloads or point != "inside_payload"])
        return placed(stack, "decoder" if at == "inside_payload" else chance.choice(SERVICES), at, chance)

    def stop_service() -> Fault:
        service = some_service()
        # Now and then for longer than the brokers keep a transaction open.
        lasts = chance.uniform(33, 40) if chance.randrange(8) == 0 else chance.uniform(1, 10)
        return Stopped(service.name, service.signal, lasts)

    def stop_server() -> Fault:
        node = chance.choice(brokers)
        name, process = chance.choice(
            [
                ("server", stack.server.processes[0]),
                ("registry", stack.registry.processes[0]),
                (f"broker{node}", stack.kafka.processes[node]),
                (f"broker{node}", stack.kafka.processes[node]),
            ]
        )
        return Stopped(name, process.signal, chance.uniform(1, 12))

    def broker_down() -> Fault:
        node = chance.choice(brokers)
        return Down(f"broker{node}", stack.kafka, lambda: stack.kafka.kill_node(node), chance.uniform(0, 8))

    def disturb() -> Fault:
        # The link to the server is one, those to brokers are many.
        link = stack.network.links["reader-server"] if chance.randrange(3) == 0 else chance.choice(links)
        how = chance.choice(["cut", "held", "slow"])
        delay_s = chance.uniform(0.02, 0.3)
        disturb = {"cut": link.cut, "held": link.hold, "slow": lambda: link.delay(delay_s)}[how]
        return Disturbed(link, how, disturb, chance.uniform(1, 10))

    makers: list[tuple[int, Callable[[], Fault]]] = [
        (32, place),
        (12, lambda: Signalled(some_service(), signal.SIGKILL)),
        (8, lambda: Signalled(some_service(), signal.SIGTERM)),
        (5, stop_service),
        (4, lambda: Second(stack, some_service())),
        (6, lambda: Down("server", stack.server, stack.server.kill, chance.uniform(0, 3))),
        (7, broker_down),
        (3, lambda: Down("registry", stack.registry, stack.registry.kill, chance.uniform(0, 4))),
        (5, stop_server),
        (18, disturb),
    ]
    weights, functions = zip(*makers, strict=True)
    while True:
        (make,) = chance.choices(functions, weights)
        yield make()
