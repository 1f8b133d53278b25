"""``millrace run``: reader, decoder and row mapper in one process, with the same topics and states.

Each batch goes through all three stages in memory and is committed in one Kafka transaction. It is made of
the parts of the services, and is the one package that imports them.
"""
