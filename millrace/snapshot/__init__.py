"""Rows of a table as they are now, in the form in which the binary log has rows."""
