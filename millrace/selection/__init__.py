"""What of a source goes into row topics: tables, columns, rows.

Selection acts on row topics alone. The raw topic, the events and the dead letters hold everything.
"""
