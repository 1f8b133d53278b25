"""What the jobs share: session, reading from Kafka, decoding events in the executors, reports."""
