"""Incidents as records of the topic ``millrace.alerts``: each cause is reported once, until it recurs.

The id of an incident consists of its cause: its kind, origins, members (of a loop: all sources) and rule; of
a filter, whatever it has left out so far, of its kind and member. It is the same in every run that finds the
incident, whatever part of the logs is read. An incident is reported again if it begins, in the input, after
the end of the last report, or if it has grown: it is about more transactions, or about later ones. What goes
on by its nature, such as a loop or a filter, is not told again since it goes on.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from millrace import __version__
from spark_jobs.loops.incidents import LOOP, Incident, as_dict
from spark_jobs.loops.presence import NEVER

_ENDED = frozenset({"missing", "skipped on purpose", "restored member", "GTID used twice", "applied twice"})
"""Kinds that a second event causes again: it is later than the first."""


def alert_id(one: Incident, sources: Sequence[str]) -> str:
    """Name the cause of an incident; that of a loop by all ``sources``: logs show it one after another."""
    rules = sorted({rule for rule, _, _ in one.selects})
    members = sources if one.kind == LOOP else one.members
    cause = [one.kind, sorted(one.origins), sorted(members), rules]
    if one.kind == "filtered":  # at the first of its members
        cause = [one.kind, one.members[0]]
    return hashlib.sha256(json.dumps(cause).encode()).hexdigest()[:16]


def new_alerts(
    incidents: Sequence[Incident],
    keys: Mapping[int, Sequence[str]],
    sources: Sequence[str],
    told: Mapping[bytes, bytes],
) -> dict[str, bytes]:
    """Return the records to write, by key: incidents that were not reported yet.

    ``keys`` are those of raw events, by the number of the incident from 1 on.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found: dict[str, bytes] = {}
    for number, one in enumerate(incidents, 1):
        key = alert_id(one, sources)
        if key in found or _is_told(one, told.get(key.encode())):
            continue
        value: dict[str, Any] = {
            "id": key,
            "job": "loop_detection",
            "version": __version__,
            "alerted_at": now,
            "sources": list(sources),
            **as_dict(one),
            "keys": list(keys.get(number, ())),
        }
        found[key] = json.dumps(value, ensure_ascii=False).encode()
    return found


def _is_told(one: Incident, value: bytes | None) -> bool:
    if value is None:
        return False
    try:
        told = json.loads(value)
        until, transactions = told["until"], told.get("transactions")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False  # nothing of ours
    if one.kind != "filtered" and isinstance(transactions, int) and one.transactions > transactions:
        return False
    if one.since is None or not isinstance(until, int):
        return True
    ends = one.kind in _ENDED and NEVER not in {rule for rule, _, _ in one.selects}
    return one.since <= until and not (ends and (one.until or 0) > until)
