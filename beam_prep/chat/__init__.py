"""Chat templates: renders records as texts, and finds the characters that a model should learn."""
