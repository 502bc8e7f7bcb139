"""`beam-prep init FILES`: writes a config that fits the records, and the reasons for it."""
