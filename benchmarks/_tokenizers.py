"""Small tokenizers of the kinds that the test material has not, trained from its records at first use.

* `llama3-like`: byte-level BPE with Llama 3's splitting and merges, a BOS, and headers of special tokens.
* `gemma-like`: SentencePiece's BPE without a dummy prefix; unknown characters become bytes, turns have special tokens.
* `bert-like`: WordPiece, lower case, `[CLS]` and `[SEP]` around a text; no chat template.

And the one of examples/, with a template that writes tools and calls, where there is no test material.

The same records and the same version of `tokenizers` give the same bytes.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from _corpora import texts_of
from _measure import ROOT, say
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VERSION = 1
"""Of what is made here: another one is made anew."""

SIZE = 32_000
"""Entries of a vocabulary."""

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA_3_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}{{- message['content'] | trim + '<|eot_id|>' -}}{%- endgeneration -%}
    {%- else -%}
        {{- message['content'] | trim + '<|eot_id|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""

_GEMMA_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {{- '<start_of_turn>model\\n' -}}
        {%- generation -%}{{- message['content'] | trim + '<end_of_turn>' -}}{%- endgeneration -%}
        {{- '\\n' -}}
    {%- else -%}
        {{- '<start_of_turn>' + message['role'] + '\\n' + message['content'] | trim + '<end_of_turn>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""

_SAMPLE_TEMPLATE = """\
{%- if tools -%}
    {{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}
            {{- message['content'] or '' -}}
            {%- for call in message['tool_calls'] or () -%}
                {{- '<tool_call>' + call['function'] | tojson + '</tool_call>' -}}
            {%- endfor -%}
            {{- '<|im_end|>' -}}
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


def sample(cache: Path) -> Path:
    """A folder with examples/tokenizer and a template of its own."""
    folder = cache / "tokenizers" / f"sample-{VERSION}"
    say("no test material: examples/tokenizer in its place, whose 4,096 entries make more tokens a MB than a model's")
    shutil.copytree(ROOT / "examples" / "tokenizer", folder, dirs_exist_ok=True)
    _write_templates(folder, _SAMPLE_TEMPLATE)
    return folder


def trained(name: str, shared: Path, cache: Path) -> Path:
    """The folder of one of `TRAINED`, trained unless it is there."""
    folder = cache / "tokenizers" / f"{name}-{VERSION}-{tokenizers.__version__}"
    if not folder.is_dir():
        say(f"training {folder}")
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make, template, config = TRAINED[name]
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
        (part / "tokenizer.json").write_text(make(lambda: texts_of(shared)).to_str(), encoding="utf-8")
        (part / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        if template:
            _write_templates(part, template)
        part.rename(folder)
    return folder


def _write_templates(folder: Path, template: str) -> None:
    """As the material's tokenizers have them: a template, and one that says where the assistant speaks."""
    plain = re.sub(r"\{%- (end)?generation -%\}", "", template)
    (folder / "chat_template.jinja").write_text(plain, encoding="utf-8")
    (folder / "chat_template_generation.jinja").write_text(template, encoding="utf-8")


Texts = Callable[[], Iterator[str]]


def llama3_like(texts: Texts) -> Tokenizer:
    made = Tokenizer(models.BPE(ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = SIZE - len(special)
    made.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(_special(special))
    made.post_processor = _around(made, "<|begin_of_text|> $A")
    return made


def gemma_like(texts: Texts) -> Tokenizer:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    rows = [text.replace(" ", "▁") for text in texts()]
    # The trainer's own choice among characters of one frequency differs from run to run.
    counts = Counter(character for text in rows for character in text)
    alphabet = [character for character, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3000]]
    learned = Tokenizer(models.BPE())
    # Words begin with the blank before them; runs of line ends stay together.
    learned.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁*[^▁\n]+|▁+|\n+"), behavior="isolated")
    learned.train_from_iterator(
        rows,
        trainers.BpeTrainer(
            vocab_size=SIZE,
            special_tokens=[*special, *(f"<0x{value:02X}>" for value in range(256))],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    model = json.loads(learned.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    made = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")  # as in Gemma's own file
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(_special(special))
    made.post_processor = _around(made, "<bos> $A")
    return made


def bert_like(texts: Texts) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts():
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    # The most frequent words, and ends of words; with all characters, so that few words are unknown.
    ends: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(max(1, len(word) - 8), len(word)):
            ends[word[begin:]] += count
    characters = sorted({character for word in words for character in word})
    vocabulary = dict.fromkeys([*special, *characters, *(f"##{character}" for character in characters)])
    vocabulary |= dict.fromkeys(f"##{end}" for end in _most(ends, SIZE // 5))
    vocabulary |= dict.fromkeys(_most(words, max(0, SIZE - len(vocabulary))))
    made = Tokenizer(models.WordPiece({piece: place for place, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, splitter, decoders.WordPiece()
    made.add_special_tokens(_special(special))
    made.post_processor = _around(made, "[CLS] $A [SEP]")
    return made


def _most(counts: Counter[str], size: int) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:size]


def _special(contents: list[str]) -> list[AddedToken]:
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def _around(made: Tokenizer, single: str) -> Any:
    tokens = [(word, made.token_to_id(word)) for word in single.split() if word != "$A"]
    return processors.TemplateProcessing(single=single, special_tokens=tokens)


TRAINED: dict[str, tuple[Callable[[Texts], Tokenizer], str, dict[str, str]]] = {
    "llama3-like": (
        llama3_like,
        _LLAMA_3_TEMPLATE,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "gemma-like": (
        gemma_like,
        _GEMMA_TEMPLATE,
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "bert-like": (
        bert_like,
        "",
        {
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        },
    ),
}
"""Name -> (what trains it, its chat template, its special tokens)."""
