"""``python -m tests.ddl``: many statements on servers that this starts; prints what is wrong or unknown."""

import argparse
import random
import sys
import time
from contextlib import suppress

import pymysql

from millrace.local import MariaDB, MySQL
from millrace.local.errors import LocalError
from tests.ddl.check import Figures, run
from tests.servers.databases import DebianMariaDB, DebianMySQL

SERVERS = {"mysql": MySQL, "mysql97": DebianMySQL, "mariadb": MariaDB, "mariadb118": DebianMariaDB}
_AT_ONCE = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ddl", description=__doc__)
    parser.add_argument("--statements", type=int, default=5000, help="accepted by each server [5000]")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--server", choices=SERVERS, action="append", help="only this one")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    wrong = 0
    for name in options.server or SERVERS:
        try:
            SERVERS[name]().start().close()
        except LocalError as error:
            print(f"{name}: left out: {error}")
            continue
        total, began = Figures(), time.monotonic()
        version, seed = "", options.seed
        while total.accepted < options.statements:
            with suppress(pymysql.err.OperationalError), SERVERS[name]() as server:
                # A statement may crash a server; then another one goes on.
                ((version,),) = server.query("SELECT VERSION()")
                while total.accepted < options.statements:
                    seed += 1
                    found = run(server, min(_AT_ONCE, options.statements - total.accepted), seed)
                    total.refused += found.refused
                    total.equal += found.equal
                    total.unknown += found.unknown
                    total.wrong += found.wrong
        print(f"{name} {version}: {total}, {time.monotonic() - began:.0f} s", flush=True)
        for one in total.wrong:
            print("wrong:", one)
        for reason, count in total.unknown.most_common():
            print(f"not understood {count}:", reason)
        wrong += len(total.wrong)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
