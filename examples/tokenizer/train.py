"""Trains the example tokenizer: byte-level BPE on the sample data in examples/data.

Writes tokenizer.json, tokenizer_config.json and chat_template.jinja. The same
sample data and vocabulary size always give the same bytes. From the root of the
repository:

    python examples/tokenizer/train.py

The folder then loads with transformers.AutoTokenizer.from_pretrained.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"

BOS, PAD, START, END = "<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"

# One alternative per line: contractions, words with the one sign or space before
# them, single digits, signs, line breaks, other white space. Vowel signs
# (\p{M}) count as letters, or words of Hindi and Arabic would be split. The pattern
# is that of Qwen 3.5, so that gigatoken supports it.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}
            {{- message['content'] + '<|im_end|>' -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message['content'] + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": END,
    "pad_token": PAD,
    "additional_special_tokens": [START],
    "clean_up_tokenization_spaces": False,
}


def strings_in(value: object) -> Iterator[str]:
    """Yields every string inside a JSON value, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)


def training_texts(folder: Path) -> Iterator[str]:
    """Yields the strings of all JSONL files of a folder, in the order of their names."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                row.pop("id", None)
                yield from strings_in(row)


def train(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, START, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    files = {
        "tokenizer.json": tokenizer.to_str() + "\n",
        "tokenizer_config.json": json.dumps(CONFIG, indent=2) + "\n",
        "chat_template.jinja": CHAT_TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the example tokenizer.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write into")
    parser.add_argument("--vocab_size", type=int, default=4096, help="special tokens included")
    args = parser.parse_args()
    write(train(training_texts(DATA), args.vocab_size), args.output)


if __name__ == "__main__":
    main()
