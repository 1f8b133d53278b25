"""The topics: how each kind is created, and which of its settings are promises.

A topic is created when it is missing, never altered when it exists, and refused by name when one of its
settings breaks a guarantee: a raw topic that is compacted is no source of truth, a topic that takes the
broker's time for the event's cannot be read "as of", and Kafka's default of
``message.timestamp.after.max.ms`` rejects a whole batch for one event dated ahead. Retention may be lowered
knowingly; it is no promise. Nor is the number of partitions: all of our records are in the first.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not export them
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millrace.kafka.errors import BrokerError, answer_of, is_passing, translated
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import TopicsSettings

if TYPE_CHECKING:
    from concurrent.futures import Future

_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)
_FOREVER: Final = "-1"
_ANY_TIME: Final = str(2**63 - 1)
_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.05
_LOOK_UP_S: Final = 1.0
_METADATA_S: Final = 1.0
_RECORD_OVERHEAD: Final = 2048
"""Bytes of a batch beside a record's value: batch and record headers, a place as key, our headers."""

_ROW_KEY: Final = 12 * 1024
"""Bytes of the key of a row: an index has up to 3072 bytes, each up to three in UTF-8."""

LEAST_MESSAGE_BYTES: Final = 1_048_588
"""The least max.message.bytes of a topic, Kafka's own default: room for a batch, compressed or not."""

CHUNK_BYTES: Final = LEAST_MESSAGE_BYTES - _RECORD_OVERHEAD
"""What is larger than this is cut into chunks of this size, whatever the topic takes.

A service that was cut off between two chunks continues with the next one by its number: their size must not
change when a topic's settings do.
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How topics of one kind are created, and what an existing one may be like."""

    single_partition: bool = True
    """Whether it is created with one partition, and all of our records are in the first."""
    written_by_others: bool = False
    """Whether others write to it, to any partition."""
    cleanup_policy: str = "delete"
    accepted_cleanup_policies: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = LEAST_MESSAGE_BYTES
    chunked: bool = False
    """Whether a value of more than :data:`CHUNK_BYTES` is split over several records."""
    segment_bytes: int | None = None

    def config(self, replication_factor: int) -> dict[str, str]:
        """Return the settings of a new topic."""
        config = {
            "cleanup.policy": self.cleanup_policy,
            "retention.ms": _FOREVER,
            "retention.bytes": _FOREVER,
            "message.timestamp.type": "CreateTime",
            "message.timestamp.before.max.ms": _ANY_TIME,
            "message.timestamp.after.max.ms": _ANY_TIME,
            "max.message.bytes": str(self.max_message_bytes),
            # Kafka itself unpacks what others send, and refuses what unpacks to more than max.message.bytes.
            "compression.type": "uncompressed" if self.written_by_others else "producer",
        }
        if self.segment_bytes is not None:
            config |= {"segment.bytes": str(self.segment_bytes), "min.cleanable.dirty.ratio": "0.1"}
        if replication_factor >= 3:
            config["min.insync.replicas"] = "2"
        return config

    def broken_promises(self, config: Mapping[str, str], partitions: int) -> list[str]:
        """Say which settings of an existing topic break a promise; each as "name is x, must be y"."""
        broken = list(self._broken_settings(config).values())
        if self.written_by_others and partitions != 1:
            broken.append(f"it has {partitions} partitions, must have 1")
        return broken

    def way_out(self, name: str, config: Mapping[str, str]) -> str:
        """Say how to mend what an existing topic breaks, without the loss of a record that it holds."""
        right = self.config(1)
        wrong = ",".join(f"{setting}={right[setting]}" for setting in self._broken_settings(config))
        if not wrong:
            return "Delete it, and start again: it only holds requests; repeat those that were not followed"
        return (
            f"Run kafka-configs --alter --entity-type topics --entity-name {name} --add-config {wrong} and "
            "start again"
        )

    def _broken_settings(self, config: Mapping[str, str]) -> dict[str, str]:
        must = {
            "message.timestamp.type": {"CreateTime"},
            "message.timestamp.before.max.ms": {_ANY_TIME},
            "message.timestamp.after.max.ms": {_ANY_TIME},
            "cleanup.policy": self.accepted_cleanup_policies,
        }
        if self.written_by_others:
            must["compression.type"] = {"uncompressed"}
        broken = {
            name: f"{name} is {config[name]}, must be {' or '.join(sorted(accepted))}"
            for name, accepted in must.items()
            if name in config and config[name].replace(" ", "") not in accepted
        }
        largest = config.get("max.message.bytes", str(LEAST_MESSAGE_BYTES))
        if int(largest) < LEAST_MESSAGE_BYTES:
            broken["max.message.bytes"] = (
                f"max.message.bytes is {largest}, must be {LEAST_MESSAGE_BYTES} or more"
            )
        return broken


_LARGE: Final = 8 * 1024 * 1024
_COMPACT: Final = frozenset({"compact"})

TOPIC_SPECS: Final[Mapping[str, TopicSpec]] = {
    "raw": TopicSpec(chunked=True),
    "events": TopicSpec(chunked=True),
    "transactions": TopicSpec(),
    "catalog": TopicSpec(max_message_bytes=_LARGE),
    "ddl": TopicSpec(max_message_bytes=_LARGE),
    "schemas": TopicSpec(max_message_bytes=_LARGE),
    "deadletter": TopicSpec(chunked=True),
    "snapshot": TopicSpec(chunked=True),
    "signals": TopicSpec(written_by_others=True),
    "alerts": TopicSpec(),
    "analytics": TopicSpec(
        cleanup_policy="compact",
        accepted_cleanup_policies=frozenset({"compact", "delete", "compact,delete", "delete,compact"}),
    ),
    "avro": TopicSpec(
        cleanup_policy="compact",
        accepted_cleanup_policies=_COMPACT,
        max_message_bytes=_LARGE,
    ),
    "state": TopicSpec(
        cleanup_policy="compact",
        accepted_cleanup_policies=_COMPACT,
        max_message_bytes=_LARGE,
        segment_bytes=16 * 1024 * 1024,
    ),
    "table": TopicSpec(
        single_partition=False,
        accepted_cleanup_policies=frozenset({"delete", "compact", "compact,delete", "delete,compact"}),
        max_message_bytes=_LARGE,
    ),
}
"""By the part of a topic's name after the source; ``table`` for ``{source}.{db}.{table}``."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a producer must know of a topic."""

    partitions: int
    max_message_bytes: int
    chunked: bool = False

    @property
    def record_limit(self) -> int:
        """Largest value in bytes that one record may carry; longer ones are split or cut before."""
        return CHUNK_BYTES if self.chunked else self.max_message_bytes - _RECORD_OVERHEAD - _ROW_KEY


@dataclass(frozen=True, slots=True)
class TableTopicInfo(TopicInfo):
    """What a producer must know of a table's topic, and Kafka's id of it."""

    id: str = ""
    compacted: bool = False


class TopicRefusedError(Exception):
    """Kafka refuses a topic, or it is not what it must be; others are not concerned."""


def ensure_topics(
    admin: AdminClient,
    settings: TopicsSettings,
    topics: Mapping[str, str],
    *,
    captured: Collection[str] = (),
) -> dict[str, TopicInfo]:
    """Create the topics that are missing, check those that exist.

    ``topics`` maps a topic's name to its kind, a key of :data:`TOPIC_SPECS`. Those that are ``captured`` by
    the reader of another source are not created. Raises :class:`BrokerError` naming each topic that breaks a
    promise, or what Kafka refuses, and :class:`UserError` for one that is not there to be read.
    """
    known, _ = _describe(admin, list(captured))
    for name in captured:
        if name not in known:
            raise UserError(
                f"there is no topic {name}: MILLRACE_INPUT_SOURCE names a source whose reader has run",
                ExitCode.KAFKA,
            )
    found = _ensure(admin, settings, topics)
    refused = [str(outcome) for outcome in found.values() if isinstance(outcome, TopicRefusedError)]
    if refused:
        raise BrokerError(". ".join(refused))
    return {name: outcome for name, outcome in found.items() if isinstance(outcome, TopicInfo)}


def ensure_table_topics(
    admin: AdminClient, settings: TopicsSettings, ids: Mapping[str, str | None]
) -> dict[str, TableTopicInfo | TopicRefusedError]:
    """Create table topics that are missing, check those that exist: all of them at once.

    ``ids`` has the id that a topic must have, by its name; None where it may be any. What is wrong with one
    topic is given in its place. Raises :class:`BrokerError` where Kafka cannot be reached.
    """
    kinds = dict.fromkeys(ids, "table")
    return _ensure(admin, settings, kinds, ids=ids)


def look_up(
    admin: AdminClient, names: Sequence[str], timeout_s: float = _TIMEOUT_S, *, operations: bool = False
) -> dict[str, Any]:
    """Look topics up; give what each is like, or the KafkaException that says why it is not known.

    ``operations`` asks for those that we may do with each. Raises KafkaException where there is no answer.

    The client asks the broker that it takes for the controller. Where that one is lost it tries to connect
    without a pause, until other metadata names another broker, which it does not ask for by itself.
    """
    deadline, longest_s = time.monotonic() + timeout_s, _LOOK_UP_S
    while names:
        step_s = max(_RETRY_S, min(longest_s, deadline - time.monotonic()))
        until = time.monotonic() + step_s
        asked = admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=operations, request_timeout=step_s
        )
        outcomes = {name: _outcome(future, until - time.monotonic()) for name, future in asked.items()}
        if not any(map(_has_no_answer, outcomes.values())):
            return outcomes
        if time.monotonic() >= deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout_s:g} s"))
        with suppress(KafkaException):
            admin.list_topics(timeout=_METADATA_S)
        longest_s *= 2
    return {}


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, str]:
    """Return Kafka's ids of topics, by name; those that do not exist are left out."""
    ids: dict[str, str] = {}
    with translated("looking up the ids of topics"):
        described = look_up(admin, names, timeout_s)
    for name, found in described.items():
        if not isinstance(found, KafkaException):
            ids[name] = str(found.topic_id)
        elif found.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            with translated(f"looking up the topic {name}"):
                raise found
    return ids


def broken_topics(admin: AdminClient, topics: Mapping[str, str]) -> dict[str, str]:
    """Say of each existing topic that breaks a promise what is wrong with it, and what to do.

    ``topics`` maps a topic's name to its kind. Those that are gone, or may not be seen, are left out. Raises
    :class:`BrokerError` where Kafka cannot be reached.
    """
    found, _ = _describe(admin, list(topics))
    configs, _ = _configs(admin, list(found))
    return {
        name: words
        for name, config in configs.items()
        if (words := _broken(name, topics[name], config, found[name].partitions)) is not None
    }


def _broken(name: str, kind: str, config: Mapping[str, str], partitions: int) -> str | None:
    spec = TOPIC_SPECS[kind]
    broken = spec.broken_promises(config, partitions)
    if not broken:
        return None
    return f"topic {name} breaks a guarantee: {'; '.join(broken)}. {spec.way_out(name, config)}"


def another_topic(name: str, *, gone: bool) -> str:
    """Say that a table's topic is gone, or another one than its rows were written to."""
    what = "is gone" if gone else "was deleted and created again"
    return (
        f"the topic {name} {what}: the rows that were written to it until now are lost. 'millrace reprocess' "
        "writes all rows again; 'millrace deadletter redrive' continues with the topic as it is, without them"
    )


def _ensure(
    admin: AdminClient,
    settings: TopicsSettings,
    kinds: Mapping[str, str],
    *,
    ids: Mapping[str, str | None] | None = None,
) -> dict[str, TableTopicInfo | TopicRefusedError]:
    """Create topics that are missing, check those that exist; give what they are like, or what is wrong.

    ``ids`` has those that topics must have.
    """
    found, hidden = _describe(admin, list(kinds))
    outcomes: dict[str, TableTopicInfo | TopicRefusedError] = dict(hidden)
    for name, id_ in (ids or {}).items():
        there = found.get(name)
        if id_ is not None and name not in hidden and (there is None or there.id != id_):
            outcomes[name] = TopicRefusedError(another_topic(name, gone=found.pop(name, None) is None))
    missing = {name: kind for name, kind in kinds.items() if name not in found and name not in outcomes}
    if missing:
        refused = _create(admin, settings, missing)
        outcomes |= refused
        made, hidden = _wait_for_leaders(admin, [name for name in missing if name not in refused])
        found |= made
        outcomes |= hidden
    configs, hidden = _configs(admin, list(found))
    outcomes |= hidden
    for name, description in found.items():
        if name in hidden:
            continue
        spec, config = TOPIC_SPECS[kinds[name]], configs[name]
        broken = _broken(name, kinds[name], config, description.partitions)
        if broken is not None:
            outcomes[name] = TopicRefusedError(broken)
        else:
            outcomes[name] = TableTopicInfo(
                description.partitions,
                int(config["max.message.bytes"]),
                spec.chunked,
                description.id,
                "compact" in config["cleanup.policy"],
            )
    return outcomes


def delete_records(admin: AdminClient, ends: Mapping[tuple[str, int], int]) -> None:
    """Delete the records before an offset in each partition, given as topic and number.

    With the offset of the first record nothing is deleted, but what Kafka would refuse is refused. Raises
    :class:`BrokerError` for the first partition that keeps its records.
    """
    partitions = [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
    for partition, future in admin.delete_records(partitions).items() if partitions else ():
        with translated(f"deleting the records of {partition.topic}"):
            try:
                answer_of(future, _TIMEOUT_S)
            except KafkaException as exception:
                if exception.args[0].code() != KafkaError.POLICY_VIOLATION:
                    raise
                raise BrokerError(
                    f"the records of {partition.topic} cannot be deleted: it is compacted; set its "
                    "cleanup.policy to compact,delete"
                ) from exception


@dataclass(frozen=True, slots=True)
class _Description:
    """A topic that exists: its id, the number of its partitions, whether all of them have a leader."""

    id: str
    partitions: int
    led: bool


def _hidden(name: str, error: KafkaError) -> TopicRefusedError:
    return TopicRefusedError(
        f"the topic {name} cannot be looked up: {error.str()}; allow DESCRIBE and DESCRIBE_CONFIGS on it"
    )


def _outcome(future: "Future[Any]", timeout_s: float) -> Any:
    try:
        return answer_of(future, timeout_s)
    except KafkaException as exception:
        return exception


_NO_ANSWER: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})


def _has_no_answer(outcome: Any) -> bool:
    return isinstance(outcome, KafkaException) and outcome.args[0].code() in _NO_ANSWER


def _describe(
    admin: AdminClient, names: Sequence[str]
) -> tuple[dict[str, _Description], dict[str, TopicRefusedError]]:
    """Look topics up, no others; those that do not exist are left out. Say which we may not see."""
    found: dict[str, _Description] = {}
    hidden: dict[str, TopicRefusedError] = {}
    with translated("looking up topics"):
        outcomes = look_up(admin, names)
    for name, topic in outcomes.items():
        if isinstance(topic, KafkaException):
            error = topic.args[0]
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                hidden[name] = _hidden(name, error)
            elif error.code() not in _UNKNOWN:
                with translated(f"looking up the topic {name}"):
                    raise topic
        # One that is just being created may be there without partitions.
        elif topic.partitions:
            led = all(partition.leader is not None for partition in topic.partitions)
            found[name] = _Description(str(topic.topic_id), len(topic.partitions), led)
    return found, hidden


def _create(
    admin: AdminClient, settings: TopicsSettings, topics: Mapping[str, str]
) -> dict[str, TopicRefusedError]:
    """Create topics; give what is wrong with those that Kafka refuses."""
    factor = _factor(admin, settings)
    new = [
        NewTopic(
            name,
            num_partitions=1 if TOPIC_SPECS[kind].single_partition else settings.partitions_of(name),
            replication_factor=settings.replication_factor,
            config=TOPIC_SPECS[kind].config(factor),
        )
        for name, kind in topics.items()
    ]
    refused: dict[str, TopicRefusedError] = {}
    for name, future in admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
        with translated("creating topics"):
            try:
                answer_of(future, _TIMEOUT_S)
            except KafkaException as exception:
                error = exception.args[0]
                if is_passing(error):
                    raise
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    refused[name] = TopicRefusedError(
                        f"topic {name} cannot be created: {error.str()}; create it, or grant CREATE on it"
                    )
    return refused


def _factor(admin: AdminClient, settings: TopicsSettings) -> int:
    """Return the number of replicas that new topics get: the settings' or the brokers' default."""
    if settings.replication_factor > 0:
        return settings.replication_factor
    with translated("looking up the brokers' defaults"):
        try:
            cluster: Any = answer_of(admin.describe_cluster(), _TIMEOUT_S)
            broker = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
            (future,) = admin.describe_configs([broker]).values()
            return int(answer_of(future, _TIMEOUT_S)["default.replication.factor"].value)
        except KafkaException as exception:
            if is_passing(exception.args[0]):
                raise
            return 1  # nobody tells us


def _wait_for_leaders(
    admin: AdminClient, names: Sequence[str]
) -> tuple[dict[str, _Description], dict[str, TopicRefusedError]]:
    """Wait until each topic can be written: a new topic's metadata takes a moment to get around."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        found, hidden = _describe(admin, names)
        waiting = [
            name for name in names if name not in hidden and (name not in found or not found[name].led)
        ]
        if not waiting:
            return found, hidden
        if time.monotonic() > deadline:
            raise BrokerError(f"topics {', '.join(sorted(waiting))} were created but have no leader yet")
        time.sleep(_RETRY_S)


def _configs(
    admin: AdminClient, names: Sequence[str]
) -> tuple[dict[str, dict[str, str]], dict[str, TopicRefusedError]]:
    """Return the settings of topics. Of a new one, the broker that is asked may not have heard yet."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    deadline = time.monotonic() + _TIMEOUT_S
    found: dict[str, dict[str, str]] = {}
    hidden: dict[str, TopicRefusedError] = {}
    while resources:
        futures: dict[ConfigResource, Future[dict[str, Any]]] = admin.describe_configs(resources)
        resources = []
        for resource, future in futures.items():
            with translated(f"looking up the settings of {resource.name}"):
                try:
                    entries = answer_of(future, _TIMEOUT_S)
                except KafkaException as exception:
                    error = exception.args[0]
                    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        hidden[resource.name] = _hidden(resource.name, error)
                    elif error.code() not in _UNKNOWN or time.monotonic() > deadline:
                        raise
                    else:
                        resources.append(resource)
                else:
                    found[resource.name] = {name: entry.value for name, entry in entries.items()}
        if resources:
            time.sleep(_RETRY_S)
    return found, hidden
