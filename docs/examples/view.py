"""Show two tables as they were after each transaction: see docs/consumers.md."""

from collections import deque

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext


class View:
    """Rows of some tables after a transaction; `place` is epoch, log file and position of the last change."""

    def __init__(self, tables):
        self.rows = {table: {} for table in tables}  # by key
        self.place = (-1, "", 0)
        self.waiting = {}  # of each partition, in the order of the log
        self.ends = deque()
        self.taken = []

    def add(self, message, value):
        """Take a record of `transactions` or of a table; `value` is decoded, None in a tombstone."""
        if value is None or value.get("status") == "BEGIN":
            return
        redriven = ("redriven", b"1") in (message.headers() or ())
        if "status" in value:
            counts = {one["data_collection"]: one["event_count"] for one in value["data_collections"] or ()}
            wanted = sum(count for table, count in counts.items() if table in self.rows)
            self.ends.append(((value["id"], redriven), wanted, (value["epoch"], value["file"], value["pos"])))
            return
        # What TRUNCATE (t) and snapshots (r) write is in no transaction.
        transaction = None if value["op"] in {"t", "r"} else (value["transaction"]["id"], redriven)
        partition = self.waiting.setdefault((message.topic(), message.partition()), deque())
        partition.append((transaction, message.key(), value))

    def transactions(self):
        """Apply each transaction that is complete, and yield its id: `rows` is what its commit left."""
        while self.ends:
            transaction, wanted, place = self.ends[0]
            for partition in self.waiting.values():
                while partition and partition[0][0] in {transaction, None}:
                    change = partition.popleft()
                    if change[0] is None:
                        self._apply(change)
                        source = change[2]["source"]
                        self.place = max(self.place, (source["epoch"], source["file"], source["pos"]))
                    else:
                        self.taken.append(change)
            if len(self.taken) < wanted:
                return
            for change in self.taken:
                self._apply(change)
            self.ends.popleft()
            self.taken = []
            if place >= self.place:
                self.place = place
                yield transaction[0]

    def _apply(self, change):
        _, key, value = change
        rows = self.rows[f"{value['source']['db']}.{value['source']['table']}"]
        if value["op"] == "t":
            rows.clear()
        elif value["after"] is None:
            rows.pop(key[5:], None)  # without the schema's id
        else:
            rows[key[5:]] = value["after"]


if __name__ == "__main__":
    client = SchemaRegistryClient({"url": "http://registry:8081"})
    read = AvroDeserializer(client, conf={"subject.name.strategy": topic_subject_name_strategy})
    settings = {"bootstrap.servers": "kafka:9092", "group.id": "view", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    topics = ("shop.transactions", "shop.shop.accounts", "shop.shop.savings")
    known = consumer.list_topics().topics
    assigned = [
        TopicPartition(topic, one, OFFSET_BEGINNING) for topic in topics for one in known[topic].partitions
    ]
    consumer.assign(assigned)
    view = View({"shop.accounts", "shop.savings"})
    while True:
        for message in consumer.consume(1000, timeout=0.1):
            view.add(
                message, read(message.value(), SerializationContext(message.topic(), MessageField.VALUE))
            )
        for transaction in view.transactions():
            print(transaction, {table: len(rows) for table, rows in view.rows.items()})
        queues = {("shop.transactions", 0): view.ends, **view.waiting}
        ahead = [one for one in assigned if len(queues.get((one.topic, one.partition), ())) > 10_000]
        consumer.pause(ahead)
        consumer.resume([one for one in assigned if one not in ahead])
