"""Tokenising by a backend, with the account of which encoder made how many records."""

from beam_prep.core.data.rendered import Rendered
from beam_prep.core.encoding.backends import encoder_of, name_of
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.tokenize import tokenize

REFERENCE = "reference"


def tokenize_with(rendered: Rendered, tokenizer: Tokenizer, backend: str, sampled: bool) -> Batch:
    """Encodes the texts of a block by a backend; `sampled`: the reference encodes a sample of them, too."""
    if backend == REFERENCE:
        return tokenize(rendered, tokenizer, tokenizer.bos_id)
    encoder = encoder_of(tokenizer, backend)
    batch = tokenize(rendered, encoder, tokenizer.bos_id, reference=tokenizer if sampled else None)
    again = "blocks_encoded_again" in batch.made
    theirs = len(batch) if again or encoder.backend == "transformers" else min(encoder.fell_back, len(batch))
    for name, records in ((encoder.backend, len(batch) - theirs), ("transformers", theirs)):
        if records:
            batch.made[f"encoded_by_{name}"] = records
            batch.made[f"encoder: {name_of(name)}"] = records
    return batch
