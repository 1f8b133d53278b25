"""What every service and command stands on: settings, logs, health and metrics, errors and their exit codes.

:mod:`.service` is the frame in which a service runs. Nothing here knows of Kafka, of a database or of Avro.
"""
