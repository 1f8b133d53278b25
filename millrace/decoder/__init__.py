"""The decoder: exact event bytes in, typed Avro events out.

The service and the Spark job ``reprocess`` run the same :mod:`.stage`, which has no Kafka, clock or threads.
"""
