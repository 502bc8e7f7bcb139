"""`beam-prep audit FILES -c C --tokenizer_path T`: finds problems of data and config on a sample, before a run."""
