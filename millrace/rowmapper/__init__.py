"""What the row mapper does, without Kafka, clock or threads: typed events in, the rows of transactions out.

:mod:`.assembly` finds where transactions end and what in them was undone, :mod:`.binding` knows the tables
and how their rows are written, :mod:`.publication` turns a transaction into records, :mod:`.stage` moves
records through these and keeps the state. The service and the Spark job ``reprocess`` run the same code.
"""
