"""Faults of all kinds while rows are written, then a comparison of everything: ``make chaos``.

A real server, a Kafka of three nodes, a registry and what carries the source run here: the three services,
``millrace run``, or the one after the other. Every connection between them can be cut. Which faults come,
when, and how long they last is said by the seed. At the end row topics must be equal to tables, the raw topic
to the server's closed log files, and no record may be there twice or out of order. Ctrl-C ends the faults
early and proceeds to that comparison. The exit code is 0 if all is so, 1 if not, and then the programs' logs
are kept.
"""

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from millrace.local import MariaDB, MySQL
from tests.chaos.campaign import Campaign, StuckError
from tests.chaos.faults import Fault, Switched, random_faults, switched
from tests.chaos.lost_tail import lost_tail
from tests.chaos.report import report_lines
from tests.chaos.stack import Stack

_TOGETHER = (1, 2, 3, 3, 4)
"""How many faults may come together."""

_LOST_TAIL = 10
"""One round of so many is the loss of a topic's end, alone: people have to help."""

_SWITCHED = 6
"""In so many rounds of the mode ``alternate``, the source changes from one form to the other once."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--faults", type=int, default=0, help="continue until there were so many")
    parser.add_argument("--seed", type=int, default=0, help="0 takes one from the clock")
    parser.add_argument("--server", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument(
        "--mode",
        choices=("services", "run", "alternate"),
        default="services",
        help="the three services, or millrace run, or the one after the other",
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--report", type=Path, default=Path("reports/chaos.txt"), help="file for the report")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    enough = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: enough.set())
    # What clients say of servers that are down is what is wanted here.
    logging.disable(logging.CRITICAL)
    seed = given.seed or int(time.time()) % 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="millrace-chaos-"))
    server = {"mysql": MySQL, "mariadb": MariaDB}[given.server]()
    with Stack(server, folder, brokers=given.brokers) as stack:
        version = str(server.query("SELECT VERSION()")[0][0])
        print(f"seed {seed}, {given.mode}, {given.server} {version}, logs in {folder}", flush=True)
        campaign = Campaign(stack, seed, say=lambda text: print(text, flush=True))
        try:
            with campaign.running("run" if given.mode == "run" else "services"):
                _suffer(campaign, stack, seed, given, enough)
            campaign.check()
        except StuckError as error:
            campaign.report.problems.append(str(error))
    lines = report_lines(
        campaign.report,
        server=f"{given.server} {version}",
        brokers=given.brokers,
        mode=given.mode,
        seed=seed,
    )
    text = "\n".join(lines)
    print(text)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(text + "\n")
    if campaign.report.good:
        shutil.rmtree(folder)
        return 0
    print(f"the services' logs are in {folder}")
    return 1


def _suffer(
    campaign: Campaign, stack: Stack, seed: int, given: argparse.Namespace, enough: threading.Event
) -> None:
    chance = random.Random(seed)
    payloads = bool(stack.server.query("SHOW VARIABLES LIKE 'binlog_transaction_compression'"))
    alternate = given.mode == "alternate"
    source = random_faults(stack, chance, payloads=payloads, alternate=alternate)
    until = time.monotonic() + given.minutes * 60
    while not enough.is_set() and (time.monotonic() < until or campaign.report.faults < given.faults):
        if chance.randrange(_LOST_TAIL) == 0:
            campaign.suffer([lost_tail(stack, chance)])
            continue
        together: dict[str, Fault] = {}
        if alternate and chance.randrange(_SWITCHED) == 0:
            together[Switched.target] = switched(stack, chance)
        for _ in range(chance.choice(_TOGETHER)):
            fault = next(source)
            if Switched.target not in together or fault.target not in stack.services:
                together.setdefault(fault.target, fault)
        campaign.suffer(list(together.values()))
        time.sleep(chance.uniform(0, 2))


if __name__ == "__main__":
    sys.exit(main())
