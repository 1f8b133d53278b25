"""``millrace binlog``: look into binary logs, wherever they are."""
