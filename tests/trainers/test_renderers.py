"""Masks beside those of the package `renderers`, which writes Qwen3's and Llama 3's conversations without templates.

The templates here are our own, and give the same text. Ids and masks are compared one by one.
"""

import json
import shutil
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import beam_prep as bp
from tests.conftest import ROOT

renderers = pytest.importorskip("renderers")

QWEN3 = """
{%- set ns = namespace(last=messages | length - 1, found=false) -%}
{%- for m in messages[::-1] -%}
  {%- if not ns.found and m.role == 'user' -%}
    {%- set ns.last = messages | length - 1 - loop.index0 -%}{%- set ns.found = true -%}
  {%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  {%- if m.role == 'tool' -%}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- elif m.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- set thought = m.reasoning_content or '' -%}
    {%- if loop.index0 > ns.last and (loop.last or thought) -%}
      {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + (m.content or '').lstrip('\\n') -}}
    {%- else -%}{{- m.content or '' -}}{%- endif -%}
    {%- for call in m.tool_calls or [] -%}
      {%- if (loop.first and m.content) or not loop.first -%}{{- '\\n' -}}{%- endif -%}
      {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
      {{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
LLAMA3 = """
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n' -}}
{{- 'Today Date: 26 Jul 2024\\n\\n' -}}
{%- if messages[0].role == 'system' -%}
  {{- messages[0].content | trim -}}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}
{{- '<|eot_id|>' -}}
{%- for m in rest -%}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content | trim) + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""
TOKENS = {
    "qwen3": [
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"),
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ],
    "llama-3": [
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|eom_id|>"),
    ],
}


@pytest.fixture(scope="module", params=["qwen3", "llama-3"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, bp.Tokenizer]:
    """(family, its renderer, our tokenizer), over the example tokenizer with the family's special tokens."""
    folder = tmp_path_factory.mktemp("renderers") / "tokenizer"
    shutil.copytree(ROOT / "examples" / "tokenizer", folder)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens(TOKENS[request.param])
    made.save(str(folder / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    make = {"qwen3": lambda: renderers.Qwen3Renderer(theirs), "llama-3": lambda: renderers.Llama3Renderer(theirs)}
    return request.param, make[request.param](), bp.Tokenizer.load(folder)


def ours(family: str, chat: list[Any], tokenizer: bp.Tokenizer) -> Any:
    """(ids, mask); None where the record is rejected."""
    output = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),), "mask")
    rules = bp.TextRules(chat_template=QWEN3 if family == "qwen3" else LLAMA3)
    block = bp.ApplyTemplate([output], tokenizer, rules=rules).step()(bp.testing.records([{"messages": chat}]))
    batch = bp.BuildMask({"assistant": "train"}).step()(bp.Tokenize(tokenizer).step()(block))
    return (batch["ids"].flat.tolist(), batch["mask"].flat.tolist()) if len(batch) else None


NAMES = ("how", "far", "is", "it", "to", "Rome", "miles", "and", "one", "two")
WORDS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6).map(" ".join)
CALL = st.builds(
    lambda name, to: {"type": "function", "function": {"name": name, "arguments": {"to": to}}},
    st.sampled_from(["far", "near"]),
    WORDS,
)


@st.composite
def chats(draw: st.DrawFn, family: str) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    if draw(st.booleans()):
        chat.append({"role": "system", "content": draw(WORDS)})
    for _ in range(draw(st.integers(1, 3))):
        chat.append({"role": "user", "content": draw(WORDS)})
        for _ in range(draw(st.integers(0, 2)) if family == "qwen3" else 0):
            chat.append({"role": "assistant", "content": draw(st.one_of(WORDS, st.just("")))})
            if draw(st.booleans()):
                chat[-1]["reasoning_content"] = draw(WORDS)
            chat[-1]["tool_calls"] = draw(st.lists(CALL, min_size=1, max_size=2))
            chat += [{"role": "tool", "content": draw(WORDS)} for _ in chat[-1]["tool_calls"]]
        chat.append({"role": "assistant", "content": draw(WORDS)})
        if family == "qwen3" and draw(st.booleans()):
            chat[-1]["reasoning_content"] = draw(WORDS)
    return chat


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_ids_and_masks_are_those_of_renderers(both: tuple[str, Any, bp.Tokenizer], data: st.DataObject) -> None:
    family, renderer, tokenizer = both
    chat = data.draw(chats(family))
    sample = renderers.build_training_sample(renderer, json.loads(json.dumps(chat)))
    found = ours(family, chat, tokenizer)
    assert found is not None
    assert found[0] == list(sample.token_ids)
    assert found[1] == [int(trained) for trained in sample.loss_mask]
