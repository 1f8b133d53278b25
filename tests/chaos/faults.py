"""What goes wrong: each fault begins, lasts, and ends; which ones come, and when, is said by a seed."""

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from millrace.contract import RUN, SERVICES
from millrace.kafka.errors import BrokerError
from millrace.kafka.state import read_state
from millrace.local import Component
from tests.chaos.proxy import Link
from tests.chaos.stack import FORMS, Stack, Supervised
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
        """Take away the cause; what is then still broken has to recover by itself."""


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
    """A second one of a service, or ``millrace run`` beside services, or the other way round.

    It takes over from the first, works for a moment, and is killed.
    """

    ends_by_itself = True

    def __init__(self, stack: Stack, service: Supervised) -> None:
        self.kind = f"second {service.name}" if service.name in stack.at_work else f"{service.name} beside"
        self.target = service.name
        self._stack = stack
        self._service = service
        self._second: Process | None = None

    def begin(self) -> None:
        self._second = self._service.another()

    def end(self) -> None:
        assert self._second is not None
        wait_until(partial(took_over, self._stack, self._service.name, self._second), 60)
        time.sleep(1)
        self._second.kill()


class Switched(Fault):
    """``millrace run`` carries on for the services, or they for it.

    What carried the source until then is told to end (SIGTERM), or killed, or else fenced while it works or
    stands still. Services that are ``behind`` stand still for a while before it, so that something lies
    between the stages.
    """

    target = "form"
    ends_by_itself = True

    def __init__(self, stack: Stack, how: str, *, behind: Sequence[str] = (), behind_s: float = 0.0) -> None:
        self.kind = f"{stack.other_form} for {stack.form}, {how}"
        self._stack, self._how, self._behind_s = stack, how, behind_s
        self._behind = [stack.services[name] for name in behind if name in stack.at_work]
        self._work: Future[None] = Future()

    def begin(self) -> None:
        # Beside what else goes wrong, which is over when this is waited for.
        pool = ThreadPoolExecutor(1, "switch")
        self._work = pool.submit(self._switch)
        pool.shutdown(wait=False)

    def end(self) -> None:
        self._work.result()

    def _switch(self) -> None:
        for service in self._behind:
            service.signal(signal.SIGSTOP)
        time.sleep(self._behind_s)
        stack = self._stack
        old = [stack.services[name] for name in stack.at_work]
        for service in old:
            service.retire()
        if self._how != "fenced":
            self._end(old)
        new = {name: stack.services[name].resume() for name in FORMS[stack.other_form]}
        stack.form = stack.other_form
        if self._how == "fenced":
            for name, process in new.items():
                wait_until(partial(took_over, stack, name, process), 60)
            self._end(old)

    def _end(self, old: Sequence[Supervised]) -> None:
        for service in self._behind:
            service.signal(signal.SIGCONT)
        for service in old:
            service.pause(signal.SIGKILL if self._how == "SIGKILL" else signal.SIGTERM)


def took_over(stack: Stack, name: str, process: "Process") -> bool:
    """Return whether a process has written a state that its program writes."""
    try:
        state = read_state(stack.settings, stack.source, SERVICES[0] if name == RUN else name)
    except BrokerError:
        return False
    return state is not None and f"process {process.pid} " in state.owner


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


def switched(stack: Stack, chance: random.Random) -> Switched:
    """Choose how the one form is followed by the other."""
    behind = chance.choice([(), (), ("decoder",), ("rowmapper",), ("decoder", "rowmapper")])
    how = chance.choice(["SIGTERM", "SIGKILL", "fenced"])
    return Switched(stack, how, behind=behind, behind_s=chance.uniform(1, 10))


def random_faults(stack: Stack, chance: random.Random, *, payloads: bool, alternate: bool) -> Iterator[Fault]:
    """Yield faults forever, each of what carries the source when it is asked for.

    With ``alternate`` the other form may come beside it.
    """
    brokers = range(stack.kafka.nodes)

    def some_service() -> Supervised:
        return stack.services[chance.choice(stack.at_work)]

    def place() -> Fault:
        inside = payloads and "decoder" in stack.at_work
        at = chance.choice([point for point in POINTS if inside or point != "inside_payload"])
        name = "decoder" if at == "inside_payload" else chance.choice(stack.at_work)
        return placed(stack, name, at, chance)

    def second() -> Fault:
        beside = alternate and chance.randrange(2) == 0
        names = FORMS[stack.other_form] if beside else stack.at_work
        return Second(stack, stack.services[chance.choice(names)])

    def registry_down() -> Fault:
        # Now and then for longer than millrace run waits before it continues without.
        long = RUN in stack.at_work and chance.randrange(4) == 0
        lasts = chance.uniform(30, 50) if long else chance.uniform(0, 4)
        return Down("registry", stack.registry, stack.registry.kill, lasts)

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
        links = [link for name, link in stack.network.links.items() if name.startswith(stack.at_work)]
        if chance.randrange(3) == 0:  # the link to the server is one, those to brokers are many
            links = [link for link in links if link.name.endswith("-server")]
        link = chance.choice(links)
        how = chance.choice(["cut", "held", "slow"])
        delay_s = chance.uniform(0.02, 0.3)
        disturb = {"cut": link.cut, "held": link.hold, "slow": lambda: link.delay(delay_s)}[how]
        return Disturbed(link, how, disturb, chance.uniform(1, 10))

    makers: list[tuple[int, Callable[[], Fault]]] = [
        (32, place),
        (12, lambda: Signalled(some_service(), signal.SIGKILL)),
        (8, lambda: Signalled(some_service(), signal.SIGTERM)),
        (5, stop_service),
        (4, second),
        (6, lambda: Down("server", stack.server, stack.server.kill, chance.uniform(0, 3))),
        (7, broker_down),
        (3, registry_down),
        (5, stop_server),
        (18, disturb),
    ]
    weights, functions = zip(*makers, strict=True)
    while True:
        (make,) = chance.choices(functions, weights)
        yield make()
