"""``millrace deadletter``: what a service could not pass on, and how it is put through again."""
