"""Writes ``schemas/avro/BinlogEvent.avsc`` from the declarations."""

import json
from pathlib import Path

from millrace.avro.events.schema import SCHEMA_NAME, binlog_event_schema
from millrace.avro.schemas import schema_folder

path = Path(str(schema_folder())) / f"{SCHEMA_NAME}.avsc"
path.write_text(json.dumps(binlog_event_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
