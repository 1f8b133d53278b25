"""``millrace status``: where each service of a source stands, and how far it is behind the one before it."""
