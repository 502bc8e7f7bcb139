"""Programs that make parts of the docs, and that check tests."""
