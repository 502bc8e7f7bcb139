"""gigatoken as a backend: BPE, byte-level or as SentencePiece's."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.core.data.columns import Texts
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.encoding.fast_backend import Encoded, Unsupported, first_line, wanted_version
from beam_prep.core.encoding.tokenizer import Tokenizer

if TYPE_CHECKING:
    import gigatoken

VERSION = "0.10.0"


def load(tokenizer: Tokenizer) -> "WithGigatoken":
    """Raises `Unsupported`, with the reason in a few words."""
    try:
        import gigatoken
    except ImportError as error:
        raise Unsupported(f"it is not installed here ({error}): pip install 'beam-prep[fast]'") from None
    wanted_version("gigatoken", VERSION)
    try:
        return WithGigatoken(gigatoken.Tokenizer.from_json(tokenizer.contents()["tokenizer.json"]))
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise Unsupported(f"it does not take this tokenizer ({first_line(error)})") from None


class WithGigatoken:
    """A loaded tokenizer."""

    def __init__(self, loaded: "gigatoken.Tokenizer") -> None:
        self._loaded = loaded

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text; none is left to the reference."""
        found = self._loaded.encode_batch(_inputs(texts), parallel=_parallel()).layout
        ids = Ragged(np.asarray(found.content.data).view(np.int32), np.asarray(found.offsets.data))
        return ids, np.zeros(0, np.int64)


def _inputs(texts: Sequence[str]) -> Any:
    """Texts as gigatoken takes them; those of one array without a copy."""
    if not isinstance(texts, Texts):
        return list(texts)
    import awkward  # which gigatoken needs

    data, borders = texts.data
    layout = awkward.contents
    letters = layout.NumpyArray(data, parameters={"__array__": "char"})
    offsets = awkward.index.Index64(borders)
    return awkward.Array(layout.ListOffsetArray(offsets, letters, parameters={"__array__": "string"}))


def _parallel() -> bool:
    # The Rust library's own switch: one process a core has no use for more threads.
    return os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in ("false", "0", "off", "no", "f", "n")
