"""``millrace doctor``: whether source, Kafka and registry are as services need them, before anything runs."""
