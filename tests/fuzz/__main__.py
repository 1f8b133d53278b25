"""Changes real events and logs at random and reads them, for hours if asked: ``make fuzz``.

What is looked for: an exception other than BinlogError, an event that is accepted and not written back as it
was, an input that takes longer than a few seconds, and one that takes much more memory than its own size.
Each finding is kept in ``tests/fuzz/findings/``, where ``tests/unit/binlog/test_fuzz.py`` reads it from then
on.
"""

import argparse
import contextlib
import gc
import hashlib
import json
import logging
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO, TypeAlias

import structlog

from millrace.binlog.checksum import checksum_matches, compute_checksum
from millrace.binlog.errors import BinlogError
from millrace.binlog.file import MAGIC, iter_events
from tests.fuzz.targets import check_event, check_log
from tests.shared import SHARED
from tests.unit.binlog.cases import CASES
from tests.unit.binlog.vectors import FORMATS

FINDINGS = Path(__file__).with_name("findings")
ENCRYPTED = Path(__file__).parents[1] / "unit" / "binlog" / "encrypted"

LONGEST_S = 10
"""An input that takes longer hangs."""

LARGEST_FILE = 1 << 20
LARGEST_INPUT = 1 << 16
EVENTS_OF_A_LOG = 12
MEMORY_LIMIT = 3 << 30
MEASURED = 50
"""Of so many inputs one is run with its memory measured, which takes several times as long."""

SPARE_BYTES = 1 << 20
"""What any input may take beside ten times its size: tables that are made once, plans, pieces of a file."""

KEPT_OF_EACH = 3

INTERESTING = (0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 129, 250, 251, 252, 253, 254, 255)


class HangError(BaseException):
    """An input took too long; no code under test may catch it."""


class GreedyError(Exception):
    """An input took too much memory."""


class DeadError(Exception):
    """An input ended the process."""


@dataclass(frozen=True)
class Input:
    """An event in the format of a server, or, where that is empty, a whole log."""

    server: str
    data: bytes

    def run(self) -> None:
        """Read it in all ways."""
        if self.server:
            check_event(self.server, self.data)
        else:
            check_log(self.data)


@dataclass
class Seeds:
    """What is changed: logs, cut into their events, and single events by server."""

    logs: list[list[bytes]] = field(default_factory=list)
    events: list[tuple[str, bytes]] = field(default_factory=list)


def seeds(*, real_logs: bool = True) -> Seeds:
    """Take the vectors of the unit tests and, where they lie beside the project, the smaller real logs."""
    found = Seeds(events=[(case.server, case.data) for case in CASES])
    for server, first in FORMATS.items():
        found.logs.append([bytes.fromhex(first), *(data for name, data in found.events if name == server)])
    corpus = SHARED / "corpus"
    paths = [path for path in sorted(corpus.rglob("*")) if path.is_file()] if real_logs else []
    for path in [*sorted(ENCRYPTED.glob("*.000001")), *paths]:
        if path.stat().st_size <= LARGEST_FILE:
            with path.open("rb") as stream:
                found.logs.append(_events(stream))
    found.logs = [log for log in found.logs if log]
    return found


def _events(stream: BinaryIO) -> list[bytes]:
    """Cut a log into its events, as far as it goes; a file that is none has no events."""
    events = []
    with contextlib.suppress(BinlogError):
        for _, data in iter_events(stream):
            events.append(data)
    return events


class Mutator:
    """Makes inputs of the seeds, the same ones for the same number."""

    def __init__(self, found: Seeds, seed: int) -> None:
        self.seeds = found
        self.random = random.Random(seed)

    def next(self) -> Input:
        """Make an input."""
        choose = self.random
        if choose.random() < 0.4:
            server, data = choose.choice(self.seeds.events)
            return Input(server, self.event(data))
        log = choose.choice(self.seeds.logs)
        with_checksums = len(log) > 1 and checksum_matches(log[1]) and choose.random() < 0.8
        start = choose.randrange(len(log))
        events = [log[0], *log[max(start, 1) : start + choose.randint(1, EVENTS_OF_A_LOG)]]
        for _ in range(choose.randint(1, 3)):
            which = choose.randrange(len(events))
            match choose.randrange(8):
                case 0:
                    events.insert(which, choose.choice(choose.choice(self.seeds.logs)))
                case 1:
                    del events[which]
                    events = events or [log[0]]
                case _:
                    events[which] = self.event(events[which])
        if with_checksums:
            events = [data[:-4] + compute_checksum(data[:-4]) if len(data) > 22 else data for data in events]
        data = MAGIC + b"".join(events)
        if choose.random() < 0.1:
            data = self.bytes(data)
        return Input("", data[:LARGEST_INPUT])

    def event(self, data: bytes) -> bytes:
        """Change an event and, mostly, put its size right."""
        changed = self.bytes(data[:LARGEST_INPUT])
        if self.random.random() < 0.9 and len(changed) > 13:
            changed = changed[:9] + len(changed).to_bytes(4, "little") + changed[13:]
        return changed

    def bytes(self, data: bytes) -> bytes:
        """Change some bytes, take some out, put some in."""
        choose, changed = self.random, bytearray(data)
        for _ in range(choose.choice((1, 1, 1, 2, 3, 6))):
            if not changed:
                break
            # Mostly after the header: an event of another type, or of no size, says little.
            low = min(19, len(changed) - 1) if choose.random() < 0.9 else 0
            at = choose.randrange(low, len(changed))
            match choose.randrange(7):
                case 0:
                    changed[at] ^= 1 << choose.randrange(8)
                case 1 | 2:
                    changed[at] = choose.choice(INTERESTING)
                case 3:
                    del changed[at : at + choose.choice((1, 1, 2, 4, 8, 64))]
                case 4:
                    changed[at:at] = choose.randbytes(choose.choice((1, 1, 2, 4, 8, 64)))
                case 5:
                    size = choose.choice((2, 4, 8))
                    value = choose.choice((0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(data)))
                    changed[at : at + size] = value.to_bytes(8, "little")[:size]
                case _:
                    start = choose.randrange(len(changed))
                    changed[at:at] = changed[start : start + choose.choice((1, 4, 16, 64))]
        return bytes(changed)


def run(one: Input, *, measured: bool) -> None:
    """Run an input; with ``measured`` once more, and raise where it takes too much memory then."""
    one.run()  # what is made once and kept shall not count
    if not measured:
        return
    gc.collect()
    tracemalloc.start()
    try:
        one.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > SPARE_BYTES + 10 * len(one.data):
        raise GreedyError(f"{peak} bytes of memory for an input of {len(one.data)}")


def _hang(_signal: int, _frame: FrameType | None) -> None:
    raise HangError(f"more than {LONGEST_S} s")


def keep(one: Input, error: BaseException, folder: Path) -> None:
    """Write a finding down."""
    name = hashlib.sha256(one.data).hexdigest()[:12]
    content = {"finding": f"{_place(error)}: {error}"[:200], "server": one.server, "data": one.data.hex()}
    sys.stdout.write(f"{name}: {content['finding']}\n")
    sys.stdout.flush()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _place(error: BaseException) -> str:
    """Tell a finding from others: what was raised where."""
    if error.__traceback__ is None:
        return type(error).__name__
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"


Results: TypeAlias = "multiprocessing.Queue[tuple[int, Counter[str]]]"


def work(seed: int, until: float, folder: Path, running: Path, results: Results) -> None:
    """Try inputs until a time; tell how many there were and what was found, some of each kept."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    signal.signal(signal.SIGALRM, _hang)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    mutator = Mutator(seeds(), seed)
    found: Counter[str] = Counter()
    tried = 0
    while time.monotonic() < until:
        one = mutator.next()
        tried += 1
        running.write_bytes(one.server.encode() + b"\n" + one.data)  # to be found if the process dies of it
        measured = tried % MEASURED == 0
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S * (5 if measured else 1))
        try:
            run(one, measured=measured)
        except KeyboardInterrupt:
            break
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            place = _place(error)
            found[place] += 1
            if found[place] <= KEPT_OF_EACH:
                keep(one, error, folder)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    running.unlink(missing_ok=True)
    results.put((tried, found))


def main() -> int:
    """Run the processes; the exit code is 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--processes", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 1_000_000, help="for the same inputs again"
    )
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="where to keep what is found")
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}, {options.processes} processes, {options.minutes:g} minutes\n")
    sys.stdout.flush()
    until = time.monotonic() + options.minutes * 60
    results: Results = multiprocessing.Queue()
    tried, found = 0, Counter[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as shared:
        processes = {}
        for number in range(options.processes):
            running = Path(shared) / str(number)
            arguments = options.seed + number, until, options.findings, running, results
            processes[running] = multiprocessing.Process(target=work, args=arguments)
            processes[running].start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the processes, which tell what they found
        for running, process in processes.items():
            process.join()
            if process.exitcode:
                server, _, data = running.read_bytes().partition(b"\n")
                error = DeadError(f"the process died with exit code {process.exitcode}")
                keep(Input(server.decode(), data), error, options.findings)
                found["DeadError"] += 1
    while not results.empty():
        count, places = results.get()
        tried += count
        found += places
    sys.stdout.write(f"{tried} inputs, {sum(found.values())} findings\n")
    for place, count in found.most_common():
        sys.stdout.write(f"{count:8} {place}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
