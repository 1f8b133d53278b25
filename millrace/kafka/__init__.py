"""Kafka as the services use it: one writer for each state, and exactly once.

:mod:`.exactly_once` is the loop that reads, hands over and commits output and state in one transaction;
:mod:`.state` holds the states, :mod:`.topics` the topics with their settings, :mod:`.chunks` events larger
than a record. No other package imports confluent_kafka.
"""
