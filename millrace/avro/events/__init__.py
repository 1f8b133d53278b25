"""Records of ``{source}.events``: the Avro schema BinlogEvent, and the way there and back.

The schema follows from the declarations of :mod:`millrace.binlog.events`: a head that is the same for all
events, and a union with one record per event type, whose fields are the declared ones. ``schemas/avro/
BinlogEvent.avsc`` holds it; ``make generate`` writes that file.

What Avro cannot say as it is:

- an unsigned integer of 64 bits is a long of the same bits: add 2^64 to a negative one;
- a name with bytes that are not UTF-8 has each of them as U+FDD0 and the character of the byte's number, and
  a U+FDD0 of its own doubled.

Writers and readers are built once per event class from the same declarations. The bytes are those that any
encoder of Avro gives for the schema; specified in "Binary Encoding" of the Avro specification.
"""

from millrace.avro.events.reading import EventDeserializer, EventRecord
from millrace.avro.events.schema import binlog_event_schema, event_branches
from millrace.avro.events.writing import EventSerializer

__all__ = ["EventDeserializer", "EventRecord", "EventSerializer", "binlog_event_schema", "event_branches"]
