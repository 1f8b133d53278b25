"""What a server's history says of what was read: sets of MySQL, tagged ones, domains of MariaDB."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.gtid_set import MariadbBinlogState, MariadbGtid
from millrace.reader.history import WhereReadEnds, after_both, lacking, missing, state_after

A = "00000000-0000-0000-0000-00000000000a"
B = "00000000-0000-0000-0000-00000000000b"


@pytest.mark.parametrize(
    ("read", "history", "lost"),
    [
        (f"{A}:1-9", f"{A}:1-12,{B}:1", ""),
        (f"{A}:1-9", f"{A}:1-7", f"{A}:8-9"),
        (f"{A}:1-9,{B}:3", f"{A}:1-20", f"{B}:3"),
        (f"{A}:1-9:tag:1-2", f"{A}:1-20:tag:1", f"{A}:tag:2"),
        (f"{A}:1-9", "", f"{A}:1-9"),
        (f"{A}:1-9", "0-1-100", f"{A}:1-9"),
        ("0-1-100", "0-1-100,0-2-200", ""),
        ("0-1-100", "0-1-99,0-2-200", "0-1-100"),
        ("0-2-90,0-1-100", "0-1-100,0-2-89", "0-2-90"),
        ("0-1-100,5-1-7", "0-1-100", "5-1-7"),
        ("0-1-100", "", "0-1-100"),
        ("0-1-100", f"{A}:1-9", "0-1-100"),
    ],
)
def test_what_a_history_lacks(read: str, history: str, lost: str) -> None:
    assert lacking(read, history) == lost


@pytest.mark.parametrize(
    ("read", "gone", "words", "onwards"),
    [
        (f"{A}:1-9", "", "", f"{A}:1-9"),
        (f"{A}:1-9", f"{A}:1-5", "", f"{A}:1-9"),
        (f"{A}:1-9", f"{A}:1-12,{B}:1-2", f"{A}:10-12,{B}:1-2", f"{A}:1-12,{B}:1-2"),
        (f"{A}:1-9", f"{A}:1-9:tag:4", f"{A}:tag:4", f"{A}:1-9:tag:4"),
        ("0-1-100", "0-1-90,0-2-100", "", "0-1-100"),
        ("0-1-90,0-2-140", "0-1-90,0-2-140", "", ""),
        ("0-1-100", "0-1-90,0-2-140", "after 0-1-100 up to 0-2-140", "0-2-140"),
        (
            "0-1-100",
            "0-1-101,7-1-3",
            "after 0-1-100 up to 0-1-101, up to 7-1-3",
            "0-1-101,7-1-3",
        ),
    ],
)
def test_what_is_gone(read: str, gone: str, words: str, onwards: str) -> None:
    assert missing(read, gone) == words
    if words:
        assert after_both(read, gone) == onwards


# -- logs of several MariaDB servers that replicate from each other ------------------------------------


@dataclass
class Log:
    """The log of one server: what it wrote, and what it got from others, in its own order."""

    server_id: int
    gtids: list[MariadbGtid] = field(default_factory=list)

    def write(self, domain_id: int) -> None:
        """Number a transaction as MariaDB does: after the highest number of the domain that it knows."""
        last = max((gtid.seq_no for gtid in self.gtids if gtid.domain_id == domain_id), default=0)
        self.gtids.append(MariadbGtid(domain_id, self.server_id, last + 1))

    def replicate(self, other: "Log", count: int) -> None:
        """Get the next transactions of another server, in its order."""
        here = set(self.gtids)
        self.gtids += [gtid for gtid in other.gtids if gtid not in here][:count]

    def sent_after(self, position: str) -> list[MariadbGtid]:
        """What the server sends to whom asks to continue after a position."""
        waiting = {gtid.domain_id: gtid for gtid in map(MariadbGtid.parse, position.split(","))}
        sent = []
        for gtid in self.gtids:
            if gtid.domain_id not in waiting:
                sent.append(gtid)
            elif waiting[gtid.domain_id] == gtid:
                del waiting[gtid.domain_id]
        return sent


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("replicate"), st.permutations(range(3)), st.integers(1, 4)),
    ),
    min_size=4,
    max_size=40,
)


@given(steps, st.integers(1, 40), st.integers(0, 40))
def test_nothing_is_lost_and_nothing_comes_again(
    steps: Sequence[tuple[str, object, int]], count: int, file_start: int
) -> None:
    """Whatever the servers wrote, and whatever of one was read, when the reader comes to another."""
    logs = [Log(number + 1) for number in range(3)]
    for kind, which, number in steps:
        if kind == "write":
            logs[which].write(number)  # type: ignore[index]
        else:
            logs[which[0]].replicate(logs[which[1]], number)  # type: ignore[index]
    first, second, _ = logs
    was_read = first.gtids[:count]
    read = MariadbBinlogState(was_read)
    before = MariadbBinlogState(second.gtids[:file_start])
    if read.lacking(before):
        return  # a file further back is searched
    ends = WhereReadEnds(read, before)
    in_order = all(ends.take(gtid) for gtid in second.gtids[file_start:])
    domains = read.domains()
    proven = all(
        any(
            set(mine) == {gtid for gtid in was_read if gtid.domain_id == domain}
            for end in range(len(second.gtids) + 1)
            if (mine := [gtid for gtid in second.gtids[:end] if gtid.domain_id == domain]) is not None
        )
        for domain in domains
    )
    assert (in_order and ends.found) is proven
    if was_read and proven:
        sent = second.sent_after(ends.after)
        assert not set(sent) & set(was_read), "it came again"
        assert set(sent) | set(was_read) >= set(second.gtids), "it was lost"
    elif not proven:
        assert not in_order or ends.lacking


@given(steps, st.integers(1, 40), st.integers(0, 40))
def test_what_a_log_holds_up_to_a_position(
    steps: Sequence[tuple[str, object, int]], count: int, file_start: int
) -> None:
    log, other = Log(1), Log(2)
    for kind, which, number in steps:
        if kind == "write":
            (log, other)[which == 0].write(number)
        else:
            log.replicate(other, number)
    held = MariadbBinlogState(log.gtids[:count])
    before = MariadbBinlogState(log.gtids[: min(file_start, count)])
    position = str(held.position())
    found = state_after(position, before, log.gtids[min(file_start, count) :])
    assert found is not None
    assert str(found) == str(held)
    assert state_after(f"{position},7-1-1".lstrip(","), before, log.gtids) is None


def test_a_binlog_state_that_takes_up_another() -> None:
    state = MariadbBinlogState.parse("0-1-5,0-2-6,3-1-9")
    state.update(MariadbBinlogState.parse("0-2-4,0-3-1,0-1-5,3-1-8,3-2-12,5-1-1"))
    assert str(state) == "0-1-5,0-3-1,0-2-6,3-1-9,3-2-12,5-1-1"
    assert str(state.position()) == "0-2-6,3-2-12,5-1-1"
