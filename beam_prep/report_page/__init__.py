"""`report.html`: what became of the records of a run, for people. The counts are the run's own."""
