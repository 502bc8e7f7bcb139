"""`beam-prep audit FILES -c C --tokenizer_path T`: what is wrong with data and config, on a sample, before a run."""
