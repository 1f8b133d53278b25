"""What the decoder does, without Kafka, clock or threads: raw records in, typed events out.

The service and the Spark job ``reprocess`` run the same code.
"""
