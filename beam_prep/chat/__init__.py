"""Chat templates: records -> texts, and which characters of them a model is to learn."""
