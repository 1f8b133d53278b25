"""Checks of Kafka: that the cluster takes our transactions and keeps what it has taken, and of the topics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace.contract import OF_ALL_SOURCES, Topics
from millrace.finding import CheckResult, error, listed, ok, unchecked, warning
from millrace.kafka.inspect import ClusterView, TopicView
from millrace.kafka.topics import TOPIC_SPECS
from millrace.runtime.settings import TopicsSettings

_TRANSACTION_TIMEOUT_MS: Final = 30_000
_SAFE_COPIES: Final = 3
_OLDEST: Final = "log.message.timestamp.before.max.ms"
"""A broker's setting that Kafka 3.6 brought; topics cannot promise any timestamp without it."""

_RIGHTS: Final = {
    "raw": {"READ", "WRITE"},
    "events": {"READ", "WRITE"},
    "state": {"READ", "WRITE"},
    "catalog": {"READ", "WRITE"},
    "transactions": {"WRITE"},
    "ddl": {"WRITE"},
    "deadletter": {"WRITE"},
    "snapshot": {"READ"},
    "avro": {"READ", "WRITE"},
    "table": {"WRITE"},
}
"""What the three services do with topics of each kind; docs/topics.md says which of them does what."""

_NOT_ALWAYS: Final = frozenset({"table", "snapshot", "signals", "avro", *OF_ALL_SOURCES})
"""Kinds of topics that a source may do without."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as the checks see it, and what the settings say of topics."""

    names: Topics
    view: ClusterView
    settings: TopicsSettings
    semi_sync: bool = False
    compression: str = "lz4"
    """How the services compress records."""

    def kind(self, topic: str) -> str | None:
        """Return which of TOPIC_SPECS a topic of the source is; None for none."""
        parts = topic.removeprefix(f"{self.names.source}.").split(".")
        if len(parts) == 1:
            return parts[0] if parts[0] in TOPIC_SPECS and parts[0] not in OF_ALL_SOURCES else None
        return "table" if len(parts) == 2 else None

    def kinds(self) -> Iterator[tuple[str, TopicView]]:
        """Yield the source's topics, each with its kind."""
        for name, topic in sorted(self.view.topics.items()):
            kind = self.kind(name)
            if kind is not None:
                yield kind, topic

    def worst(self, setting: str) -> dict[int, str]:
        """Return a broker setting as each broker has it."""
        return {
            number: config[setting]
            for number, config in self.view.broker_configs.items()
            if setting in config
        }

    def lowest(self, setting: str) -> int | None:
        """Return the smallest value that any broker has for a number; None where none tells."""
        return min((int(value) for value in self.worst(setting).values()), default=None)


def brokers(cluster: Cluster) -> Iterator[CheckResult]:
    """Look how many there are, and whether they tell their settings."""
    count = cluster.view.brokers
    if cluster.view.refusals:
        yield unchecked(
            f"{count}; not all can be checked: {listed(cluster.view.refusals)}",
            "allow DescribeConfigs on the cluster and on the source's topics",
            cluster.view.refusals,
        )
    else:
        yield ok(str(count))


def kafka_version(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether Kafka is 3.6 or later, by a setting that came with it."""
    if not cluster.view.broker_configs:
        return
    if len(cluster.worst(_OLDEST)) < len(cluster.view.broker_configs):
        yield error(
            "Kafka is older than 3.6: its topics cannot promise to take events of any age",
            "upgrade the brokers",
        )
    else:
        yield ok("3.6 or later")


def transactions(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether Kafka takes our transactions, and keeps what it knows of them."""
    longest = cluster.lowest("transaction.max.timeout.ms")
    if longest is not None and longest < _TRANSACTION_TIMEOUT_MS:
        yield error(
            f"transaction.max.timeout.ms is {longest}, and our transactions ask for "
            f"{_TRANSACTION_TIMEOUT_MS}: no service can start",
            f"set it to {_TRANSACTION_TIMEOUT_MS} or more on the brokers",
        )
    copies = cluster.lowest("transaction.state.log.replication.factor")
    if copies is not None and copies < _SAFE_COPIES <= cluster.view.brokers:
        yield warning(
            f"transaction.state.log.replication.factor is {copies}: with one broker down no transaction may "
            "commit",
            "set it to 3 before __transaction_state is made, or reassign that topic's partitions",
        )
    if longest is not None and longest >= _TRANSACTION_TIMEOUT_MS:
        yield ok(f"up to {longest // 1000} s")


def promises(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether the topics that exist are as services need them."""
    kept = 0
    for kind, topic in cluster.kinds():
        spec = TOPIC_SPECS[kind]
        broken = spec.broken_promises(topic.config, topic.partitions)
        if broken:
            yield error(
                f"{topic.name}: {'; '.join(broken)}", spec.way_out(topic.name, topic.config), [topic.name]
            )
        else:
            kept += 1
    unused = [
        topic.name
        for kind, topic in cluster.kinds()
        if TOPIC_SPECS[kind].single_partition and topic.partitions > 1
    ]
    if unused:
        yield warning(
            f"{listed(unused)}: more than one partition, and only the first is used",
            "nothing; Kafka cannot remove partitions, and no record is in the others",
            unused,
        )
    if kept:
        yield ok(f"{kept} topics are correct")


def missing_topics(cluster: Cluster) -> Iterator[CheckResult]:
    """Look which topics there will be, and whether we may create them."""
    names = cluster.names
    captured = {"raw": names.raw, "catalog": names.catalog} if names.reads_another else {}
    absent = [name for name in captured.values() if name not in cluster.view.all_topics]
    if absent:
        yield error(
            f"{listed(absent)}: decoder and row mapper cannot start without what they read",
            "let MILLRACE_INPUT_SOURCE name a source whose reader has run",
            absent,
        )
    wanted = [kind for kind in TOPIC_SPECS if kind not in _NOT_ALWAYS and kind not in captured]
    missing = [name for kind in wanted if (name := f"{names.source}.{kind}") not in cluster.view.topics]
    if not missing:
        yield ok("none")
    elif "CREATE" in cluster.view.operations:
        yield ok(f"{listed(missing)} will be created", missing)
    else:
        yield warning(
            f"{listed(missing)}: we may not create topics everywhere",
            "create them as docs/topics.md describes, or allow Create on topics with the prefix "
            f"{names.source}.",
            missing,
        )


def replication(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether the loss of a broker loses records, or stops the services."""
    if cluster.view.brokers < _SAFE_COPIES:
        yield warning(
            f"{cluster.view.brokers} brokers: what is in Kafka is lost with a disk, and the server's logs "
            "are purged",
            "run three brokers or more, with MILLRACE_TOPICS_REPLICATION_FACTOR=3",
        )
        return
    planned = cluster.settings.replication_factor
    if planned < 0:
        planned = cluster.lowest("default.replication.factor") or 0
    if 0 < planned < _SAFE_COPIES:
        yield warning(f"new topics get {planned} replicas", "set MILLRACE_TOPICS_REPLICATION_FACTOR=3")
    few = [topic.name for _, topic in cluster.kinds() if topic.replicas < _SAFE_COPIES]
    if few:
        yield warning(
            f"fewer than three replicas: {listed(few)}", "add replicas with kafka-reassign-partitions", few
        )
    weak, stiff = [], []
    for _, topic in cluster.kinds():
        least = int(topic.config.get("min.insync.replicas", "1"))
        if least < 2 <= topic.replicas:
            weak.append(topic.name)
        if least >= topic.replicas > 1:
            stiff.append(topic.name)
    if weak:
        yield warning(
            "min.insync.replicas is 1: a record may be on one broker alone when it counts as written: "
            f"{listed(weak)}",
            "kafka-configs --alter --topic … --add-config min.insync.replicas=2",
            weak,
        )
    if stiff:
        yield warning(
            "min.insync.replicas is as high as the number of replicas, so that one broker down stops the "
            f"services: {listed(stiff)}",
            "lower it by one, or add a replica",
            stiff,
        )
    if not (few or weak or stiff):
        yield ok(f"{cluster.view.brokers} brokers, no topic on fewer than three")


def semi_sync(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether what the reader acknowledges to the server is on more than one broker."""
    if not cluster.semi_sync:
        return
    name = cluster.names.raw
    topic = cluster.view.topics.get(name)
    if topic is not None:
        least = int(topic.config.get("min.insync.replicas", "1"))
    elif cluster.settings.replication_factor >= _SAFE_COPIES:
        least = 2
    else:
        least = cluster.lowest("min.insync.replicas") or 1
    if least < 2:
        yield error(
            f"MILLRACE_SEMI_SYNC is true and {name} has min.insync.replicas={least}: a transaction may be "
            "acknowledged to the server and be lost with one broker",
            "run three brokers with three replicas of it, and set min.insync.replicas=2",
        )
    else:
        yield ok(f"min.insync.replicas of {name} is {least}")


def in_sync(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether replicas lag or are down now."""
    behind = [topic.name for _, topic in cluster.kinds() if topic.in_sync < topic.replicas]
    if behind:
        yield warning(
            f"not all replicas are in sync: {listed(behind)}", "look whether all brokers run", behind
        )


def unclean_elections(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether a broker that lacks records may become leader."""
    names = [
        topic.name
        for _, topic in cluster.kinds()
        if topic.config.get("unclean.leader.election.enable") == "true" and topic.replicas > 1
    ]
    if names:
        yield error(
            "unclean.leader.election.enable is true: records that were acknowledged may be lost: "
            f"{listed(names)}",
            "kafka-configs --alter --topic … --add-config unclean.leader.election.enable=false",
            names,
        )
    elif "true" in cluster.worst("unclean.leader.election.enable").values():
        yield warning(
            "unclean.leader.election.enable is true on the brokers: records of new topics that were "
            "acknowledged may be lost",
            "set it to false",
        )


def compression(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether brokers compress once more what they are sent."""
    names = [
        topic.name
        for _, topic in cluster.kinds()
        if topic.config.get("compression.type", "producer")
        not in {"producer", "uncompressed", cluster.compression}
    ]
    if names:
        yield warning(
            f"brokers compress again what the services send, as {cluster.compression}: {listed(names)}",
            "kafka-configs --alter --topic … --add-config compression.type=producer, or set "
            "MILLRACE_KAFKA_COMPRESSION to what the topics have",
            names,
        )


def automatic_topics(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether a consumer may create a topic by asking for it, with settings that break promises."""
    if "true" in cluster.worst("auto.create.topics.enable").values():
        yield warning(
            "auto.create.topics.enable is true: a consumer that comes before its topic creates it with "
            "Kafka's defaults, which the services then refuse",
            "set it to false on the brokers",
        )


def retention(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether Kafka deletes what cannot be made again."""
    for name in (cluster.names.raw, cluster.names.events, cluster.names.catalog):
        topic = cluster.view.topics.get(name)
        if topic is None:
            continue
        limits = [
            f"{setting}={topic.config[setting]}"
            for setting in ("retention.ms", "retention.bytes")
            if topic.config.get(setting, "-1") != "-1"
        ]
        if limits:
            yield warning(
                f"{name} has {' and '.join(limits)}: what it deletes cannot be decoded or mapped again",
                "nothing, if you know that nobody reads that far back; else set retention.ms=-1, "
                "retention.bytes=-1",
                [name],
            )


def rights(cluster: Cluster) -> Iterator[CheckResult]:
    """Look whether our credentials may do with the topics what the services do."""
    lacking = []
    for kind, topic in cluster.kinds():
        missing = _RIGHTS.get(kind, set()) - topic.operations
        if missing and topic.operations:
            lacking.append(f"{topic.name} ({', '.join(sorted(missing))})")
    if lacking:
        yield warning(
            f"these credentials lack rights: {listed(lacking)}",
            "fine where each service has credentials of its own; docs/topics.md lists what each one needs",
            lacking,
        )


CHECKS: Final = (
    brokers,
    kafka_version,
    transactions,
    promises,
    missing_topics,
    replication,
    semi_sync,
    in_sync,
    unclean_elections,
    compression,
    automatic_topics,
    retention,
    rights,
)
"""First the cluster, then the topics."""
