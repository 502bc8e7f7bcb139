"""Trains the three tokenizers on the records in data/.

    python -m tests.material.make_tokenizers

The same records and versions give the same bytes. Each folder loads with transformers.AutoTokenizer.from_pretrained.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.material.make_data import DATA, FILES

FOLDER = Path(__file__).with_name("tokenizers")

BYTES = [f"<0x{value:02X}>" for value in range(256)]

# The way of Qwen 3.5: vowel signs are letters, each digit is alone.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


METASPACE = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")


def training_texts() -> Iterator[str]:
    """Every string in the records, without the keys, in the order of the files."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from strings(item)

    for name in FILES:
        with (DATA / f"{name}.jsonl").open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield from strings(json.loads(line))


def specials(*contents: str) -> list[AddedToken]:
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def byte_bpe() -> Tokenizer:
    """Byte-level BPE, NFC, no BOS; the control tokens have the last ids."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        training_texts(), trainers.BpeTrainer(vocab_size=2997, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(specials("<|end|>", "<|turn|>", "<|pad|>"))
    return made


def llama_bpe() -> Tokenizer:
    """SentencePiece's BPE as Llama has it: a space is written before the text, unknown characters become bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = METASPACE
    # The trainer's own choice among characters of one frequency differs from run to run.
    counts = Counter("".join(training_texts()).replace(" ", "▁"))
    alphabet = [character for character, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:400]]
    trained.train_from_iterator(
        training_texts(),
        trainers.BpeTrainer(
            vocab_size=3000,
            special_tokens=["<unk>", "<s>", "</s>", *BYTES],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    made = Tokenizer(
        models.BPE(
            model["vocab"],
            [tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.add_special_tokens(specials("<unk>", "<s>", "</s>"))
    return made


def unigram() -> Tokenizer:
    """SentencePiece's Unigram as T5 has it: NFKC, runs of white space are one space, unknown characters are lost."""
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex("[\u200b\ufeff]"), "")]
    )
    words = Counter(
        word for text in training_texts() for word, _ in METASPACE.pre_tokenize_str(normalizer.normalize_str(text))
    )
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    made = Tokenizer(models.Unigram([*special, *unigram_pieces(words, 2496)], unk_id=2))
    made.normalizer = normalizer
    made.pre_tokenizer = METASPACE
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
    )
    made.add_special_tokens(specials("<pad>", "</s>", "<unk>", "<turn>"))
    return made


def unigram_pieces(words: Counter[str], size: int) -> list[tuple[str, float]]:
    """Pieces with their log probabilities: frequent substrings, of which the best segmentations keep the most used.

    `tokenizers.trainers.UnigramTrainer` gives other pieces in each run.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(len(word)):
            for end in range(begin + 1, min(len(word), begin + 12) + 1):
                counts[word[begin:end]] += count
    characters = {piece for piece in counts if len(piece) == 1 and counts[piece] > 1}
    weights = {piece: count * len(piece) for piece, count in counts.items() if count > 1 or piece in characters}
    for keep in (6 * size, 3 * size, 2 * size, size, size):
        longer = sorted(weights.keys() - characters, key=lambda piece: (-weights[piece], piece))
        pieces = sorted(characters) + longer[: keep - len(characters)]
        total = sum(weights.get(piece, 1) for piece in pieces)
        scored = [(piece, round(math.log(weights.get(piece, 1) / total), 6)) for piece in pieces]
        model = Tokenizer(models.Unigram([("<unk>", 0.0), *scored], unk_id=0))
        used: Counter[str] = Counter()
        for word, count in words.items():
            for token in model.encode(word).tokens:
                used[token] += count
        weights = {piece: used[piece] + (piece in characters) for piece in pieces if used[piece] or piece in characters}
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def config(**tokens: str) -> dict[str, Any]:
    return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens, "clean_up_tokenization_spaces": False}


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "byte_bpe": (byte_bpe, config(eos_token="<|end|>", pad_token="<|pad|>")),
    "llama_bpe": (llama_bpe, config(bos_token="<s>", eos_token="</s>", unk_token="<unk>")),
    "unigram": (unigram, config(eos_token="</s>", pad_token="<pad>", unk_token="<unk>")),
}


def without_marks(template: str) -> str:
    """The template without its generation blocks; all around them strips white space already."""
    return re.sub(r" *{%- (end)?generation -%}\n", "", template)


def files_of(name: str) -> dict[str, bytes]:
    """The files of a tokenizer's folder."""
    train, settings = TOKENIZERS[name]
    template = (FOLDER / name / "chat_template.jinja").read_text(encoding="utf-8")  # written by hand
    files = {
        "tokenizer.json": train().to_str() + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        "chat_template.jinja": template,
        "without_marks.jinja": without_marks(template),
        "made_by.json": json.dumps({"tokenizers": tokenizers.__version__}) + "\n",
    }
    return {name: text.encode() for name, text in files.items()}


def main() -> None:
    for name in TOKENIZERS:
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files_of(name).items():
            (folder / file).write_bytes(content)


if __name__ == "__main__":
    main()
