"""`beam-prep init FILES`: looks at records, and writes the config that fits them, with the reasons beside it."""
