"""The three services, each one process for a source: ``python -m services.NAME`` or ``millrace NAME``.

The reader carries a server's log to the raw topic, the decoder makes typed events of it, the row mapper row
changes. They share topics and schemas, and never import each other.
"""
