"""Values and calls that would keep a process busy for ever: patterns over data, and calls that hold the lock.

Nothing here measures a time: what hangs runs into the limit of :mod:`tests.hostile.processes`.
"""

import signal

import pytest

from millrace.runtime.exit_codes import ExitCode
from tests.service_process import wait_for

from .processes import GRACE_S, run, start

SETTINGS = {"MILLRACE_SOURCE": "shop", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}

PATTERNS = {
    "a condition": """
from millrace.selection.rows import ColumnKind, Condition
selects = Condition.parse("v LIKE '%foo%bar%_%baz%'").bind({"v": ColumnKind.TEXT})
assert not selects({"v": "foobar" * 100_000})
assert not selects({"v": "foobar" * 100_000 + "ba"})
assert selects({"v": "foobar" * 100_000 + "_baz"})
""",
    "names of tables": """
from millrace.selection.tables import TableRules, is_excluded
rules = TableRules(wild_ignore_table=("d." + "%a" * 20 + "%b",))
assert rules.selects("d", "a" * 64)
assert not rules.selects("d", "a" * 63 + "b")
assert not is_excluded(("d." + "%a" * 20 + "%b",), "d", "a" * 64)
""",
    "names of columns": """
from millrace.selection.columns import ColumnRules
assert ColumnRules(drop=("d.t." + "%a" * 20 + "%b",)).find("d", "t", "a" * 64) is None
""",
    "names of topics": """
from millrace.runtime.settings import TopicsSettings
topics = TopicsSettings(names="d." + "%a" * 20 + "%b=d.x")
assert topics.named("d." + "a" * 64) is None
""",
    "names in a log": """
from millrace.binlog_command.criteria import NamePattern
assert not NamePattern("*a" * 20 + "*b").matches("a" * 64)
""",
}


@pytest.mark.parametrize("program", PATTERNS.values(), ids=PATTERNS)
def test_no_value_keeps_a_pattern_busy(program: str) -> None:
    ended = run("-c", program, settings={})
    assert ended.code == 0, ended
    ended.is_well()


HANGING = """
import ctypes, re, sys
from millrace.runtime import service
from millrace.runtime.settings import ServiceSettings

def app(_):
    print("working", flush=True)
    {call}

service._LAST_S = 2.0
sys.exit(service.run_service("reader", ServiceSettings, app))
"""
CALLS = {
    "a regular expression": "re.match('(a*)*b', 'a' * 64)",
    "a call of C": "lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, bytes(64); lock(mutex); lock(mutex)",
}


@pytest.mark.parametrize("told", [False, True], ids=["by itself", "told to stop"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_holds_the_interpreter_lock_ends_the_process(call: str, told: bool) -> None:
    running = start("-c", HANGING.format(call=call), settings=SETTINGS)
    wait_for(lambda: "working" in running.process.output, running.process)
    if told:
        running.process.send_signal(signal.SIGTERM)
    ended = running.end(GRACE_S)
    assert ended.code == ExitCode.STUCK, ended
    assert "in app" in ended.errors  # who held it
    ended.is_well()
