"""Avro: the checked-in schemas, the schemas of tables, serialisation, and the schema registry."""
