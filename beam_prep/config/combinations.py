"""Finds settings that contradict each other: problems between parts of a config that are valid alone."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np

from beam_prep.config.input import InputConfig, outputs_of, prompt_first
from beam_prep.config.output import OutputConfig
from beam_prep.config.preprocessing import PreprocessingConfig
from beam_prep.config.strict import Location, Problem, Strict
from beam_prep.config.values import ALLOWED_DTYPES
from beam_prep.data.metadata import FILE, OFFSET
from beam_prep.data.schema import LOSS_WEIGHTS, NAME, PROMPT_COMPLETION, RESERVED, name_problems
from beam_prep.formats import FORMATS
from beam_prep.hints import shown, unknown_name

MAX_PADDED = 1 << 22
"""Most tokens to which rows are padded: a padded row must fit into memory."""


def joint_problems(
    given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig, mask_options: object
) -> Iterator[Problem]:
    """Problems between the parts of a config."""
    if given.groups is not None:
        yield from _group_problems(given, preprocessing, output, mask_options)
        return
    for place, works, where in _needs(given, preprocessing, output):
        parts = {"input": given, "preprocessing": preprocessing, "output": output, "mask_options": mask_options}
        value, default = parts[place[0]], None
        if len(place) == 2 and isinstance(value, Strict):
            default = type(value).model_fields[place[1]].default
            value = getattr(value, place[1])
        if not works and value != default:
            found = "an object" if isinstance(value, Strict) else shown(value)
            yield place, f"found {found}; it works only with {where}"
    yield from _preprocessing_problems(given, preprocessing)
    if output.columns == "prompt_completion":
        sides = {side.name: side for side in outputs_of(given, output)}
        if {*sides} != {"chosen", "rejected"} or any(side.kind != "ids" or not side.trains for side in sides.values()):
            text = "found 'prompt_completion'; it works only with the sources chosen and rejected, and no others"
            yield ("output", "columns"), text
            return
    if given.one_sequence or output.columns != "labels":
        yield from _column_problems(given, preprocessing, output)


def _needs(
    given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig
) -> Iterable[tuple[tuple[str, ...], bool, str]]:
    """(place, True if it works here, what it needs) of each setting that needs another setting."""
    one_sequence, rows = given.one_sequence, "input.sections, whose rows are one sequence"
    outputs = outputs_of(given, output)
    sections = [section for each in outputs for section in each.sections]
    template = any(section.template for section in sections)
    conversation = any(section.template == "conversation" for section in sections)
    turns = sections and all(each.template == "conversation" and each.action == "$role" for each in sections)
    document = one_sequence and not given.tokenized and len(sections) == 1 and outputs[0].char_limits
    return [
        (("input", "date"), template, "a template, which may ask for the date"),
        (("input", "template_variables"), template, "a template"),
        (
            ("input", "turns"),
            bool(turns) and one_sequence,
            "sections with template: 'conversation' and action: '$role', whose turns the roles of `mask` train",
        ),
        (("mask_options",), conversation, "template: 'conversation'"),
        (("preprocessing", "bos"), conversation, "template: 'conversation'"),
        (("preprocessing", "padding"), one_sequence, rows),
        (("preprocessing", "packing_strategy"), one_sequence, rows),
        (("preprocessing", "truncation_mode"), one_sequence or not preprocessing.chunks, rows),
        (("preprocessing", "stride"), preprocessing.chunks, "truncation_mode: 'chunk'"),
        (("preprocessing", "shift"), output.columns == "labels", "output.columns: 'labels'"),
        (("output", "columns"), one_sequence or output.columns != "labels", "input.sections: use 'loss_mask'"),
        (("output", "position_ids_mode"), one_sequence or output.position_ids_mode == "none", rows),
        (("output", "loss_weights"), one_sequence, rows),
        (("output", "fim"), document, "one section in input.sections: text that trains"),
    ]


def _column_problems(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> Iterator[Problem]:
    """Problems of column names and dtypes, and of formats that cannot hold them."""
    holds = contents_of(given, output)
    yield from _keep_fields_problems(holds, output)
    for name, dtype in output.dtype.items():
        at = ("output", "dtype", name)
        if (metadata := output.metadata().get(name)) is not None:
            if dtype != metadata:  # `canonical` configs list the dtype of metadata, too
                kept = "this column is kept as metadata: give its type in output.keep_fields"
                yield at, f"found {dtype!r}; {kept if name in output.keep_fields else 'it cannot be changed'}"
        elif name not in holds:
            yield at, unknown_name("column", name, holds)
        elif dtype not in (allowed := ALLOWED_DTYPES[holds[name]]):
            yield at, f"found {dtype!r}; allowed for {holds[name]}: {', '.join(allowed)}"
    dtypes = column_dtypes(given, preprocessing, output)
    for name, problem in name_problems(output.names, tuple(dtypes)):
        yield ("output", "names", name), problem
    packed = preprocessing.packing_strategy != "none"
    yield from _format_problems(dtypes, output, packed, lists=bool(given.sources))


_FOR_SOME: tuple[Location, ...] = (
    *(("input", "date"), ("input", "template_variables")),
    *(("preprocessing", "bos"), ("mask_options",)),
)
"""Settings that only some inputs need. They do not affect the other groups."""


def _group_problems(
    given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig, mask_options: object
) -> Iterator[Problem]:
    """Problems between a group and the other parts of the config, and between groups."""
    groups, parts = given.groups or (), given.parts(output)
    found: dict[Problem, list[int]] = {}
    for number, part in enumerate(parts):
        for problem in joint_problems(part, preprocessing, output, mask_options):
            found.setdefault(problem, []).append(number)
    for (place, text), numbers in found.items():
        if len(numbers) == len(groups):
            yield place, text
        elif place not in _FOR_SOME:
            yield place, f"{text}; this concerns input.groups[{numbers[0]}]"
    rows = [_rows_of(part, output) for part in parts]
    for number, row in enumerate(rows):
        if row != rows[0]:
            text = f"its rows are {row}, and those of input.groups[0] are {rows[0]}: one output has rows of one kind"
            yield ("input", "groups", number), f"{text}; give both the same, or make two jobs"
    domains = [group.domain for group in groups]
    if output.mix is not None and None not in domains:
        for name in output.mix:
            if name not in domains:
                yield ("output", "mix", name), unknown_name("domain", name, dict.fromkeys(map(str, domains)))


def _rows_of(part: InputConfig, output: OutputConfig) -> str:
    """A text that describes the columns of a group's rows before packing, and what each holds."""
    kinds = {"ids": "token ids", "list": "lists of token ids", "value": "values", "token_value": "numbers of tokens"}
    columns, dtypes = [], _dtypes_of_outputs(part, output)
    for each in outputs_of(part, output):
        untrained = "" if each.trains or each.kind not in ("ids", "list") else ", none is trained"
        columns.append(f"{each.name!r} ({kinds.get(each.kind, 'texts')}, {dtypes[each.name]}{untrained})")
        if each.mask_name is not None:
            columns.append(f"{each.mask_name!r} ({'labels' if output.columns == 'labels' else 'mask'})")
    of = "rollouts" if part.rollouts is not None else "sources" if part.sources else "sequences"
    return f"{of} with {', '.join(columns)}"


def _keep_fields_problems(holds: Collection[str], output: OutputConfig) -> Iterator[Problem]:
    """Problems of names of metadata columns. `output.names` may rename them."""
    provenance = [FILE.name, OFFSET.name] if output.provenance else []
    taken = {output.names.get(name, name).lower(): name for name in (*holds, *provenance)}
    at = ("output", "keep_fields")
    for name in output.keep_fields:
        written = output.names.get(name, name)
        if name in holds or name in provenance:
            of = "provenance adds a column" if name in provenance else "the tokens have a column"
            yield at, f"found {name!r}; {of} of this name, so the field cannot be kept as metadata"
        elif name in output.names and re.fullmatch(NAME, written):
            continue  # `name_problems` checks it
        elif not re.fullmatch(NAME, written) or written.lower() in RESERVED:
            why = "is reserved" if written.lower() in RESERVED else "is no name of letters, digits and '_'"
            example = json.dumps({name: "its_name"})
            yield at, f"found {name!r}, which {why}; name its column in output.names: {example}"
        elif (other := taken.setdefault(written.lower(), name)) != name:
            why = "columns become file names, so upper and lower case count as equal; use output.names"
            yield at, f"found {name!r} beside column {other!r}; {why}"


def _format_problems(dtypes: Mapping[str, str], output: OutputConfig, packed: bool, lists: bool) -> Iterator[Problem]:
    """Problems of formats that cannot hold a column, or a shard of this size."""
    # Every other column has a value for each token. With lists, the number of values is not known here.
    others = {"seq_lens", *output.metadata()}
    width = sum(np.dtype(dtype).itemsize for name, dtype in dtypes.items() if name not in others)
    strings = [name for name, kind in output.keep_fields.items() if kind == "string"]
    for kind in output.formats:
        cannot = FORMATS[kind]
        for name in [name for name, dtype in dtypes.items() if dtype in cannot.unknown_dtypes]:
            text = f"found {dtypes[name]!r}; the format {kind!r} has all dtypes but {', '.join(cannot.unknown_dtypes)}"
            yield ("output", "dtype", name), text
        if cannot.largest is not None and not lists and output.max_tokens_per_shard > cannot.largest // width:
            most = f"at most {cannot.largest // width}, because a shard of {kind!r} has at most {cannot.largest} bytes"
            text = f"found {output.max_tokens_per_shard}, of {width} bytes each; {most} of values"
            yield ("output", "max_tokens_per_shard"), text
        if strings and cannot.strings == "none":
            text = f"found the string {strings[0]!r}; the format {kind!r} holds numbers alone: leave out one of them"
            yield ("output", "keep_fields"), text
        elif strings and packed and cannot.strings == "single":
            of = f"a packed row has a list of them, which the format {kind!r} cannot hold"
            yield ("output", "keep_fields"), f"found the string {strings[0]!r}; {of}"


def _preprocessing_problems(given: InputConfig, preprocessing: PreprocessingConfig) -> Iterator[Problem]:
    mode, padding, packed = preprocessing.truncation_mode, preprocessing.padding, preprocessing.packing_strategy
    if given.rollouts is not None and mode in ("keep_start", "keep_end"):
        text = f"found {mode!r}; rollouts are not cut, as rewards and log probabilities are of entire ones: "
        yield ("preprocessing", "truncation_mode"), text + "use 'drop' or 'error'"
    if preprocessing.chunks and preprocessing.stride >= (size := preprocessing.chunk_size):
        text = f"found {preprocessing.stride}; it must be less than a chunk, which has {size} tokens"
        yield ("preprocessing", "stride"), text
    if padding != "none" and packed != "none":
        text = f"found {padding!r} beside packing_strategy; packed rows are padded by the trainer"
        yield ("preprocessing", "padding"), text
    padded = preprocessing.max_seq_len if padding == "max_length" else padding
    if isinstance(padded, int) and padded > MAX_PADDED:
        text = f"found {padding!r}, which pads every row to {padded} tokens; at most {MAX_PADDED}"
        yield ("preprocessing", "padding"), text
    rule = preprocessing.decontaminate
    if rule is not None and rule.fields is None and given.tokenized:
        text = "found a rule for records of token ids, which hold no words: name fields with their texts in `fields`"
        yield ("preprocessing", "decontaminate"), text
    for each in outputs_of(given, OutputConfig()) if preprocessing.encode == "joint" else ():
        if each.kind == "ids" and not each.has_template and not prompt_first([part.action for part in each.sections]):
            text = f"found 'joint', and 'mask' after 'train' in {each.name!r}; the prompt must come first"
            yield ("preprocessing", "encode"), text


_DTYPES = {"value": "float32", "token_value": "float32", "text": "uint8"}


def _dtypes_of_outputs(given: InputConfig, output: OutputConfig) -> dict[str, str]:
    """Column -> dtype: each output, then its mask."""
    columns = {}
    for each in outputs_of(given, output):
        version = given.rollouts is not None and each.name == "policy_version"
        columns[each.name] = output.dtype.get(each.name, "int64" if version else _DTYPES.get(each.kind, "int32"))
        if each.mask_name is not None:
            columns[each.mask_name] = output.dtype.get(each.mask_name, "int32")
    return columns


def column_dtypes(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Column -> dtype, in output order, under the names before renaming."""
    if output.columns == "prompt_completion":
        return {name: output.dtype.get(name, "int32") for name in PROMPT_COMPLETION} | output.metadata()
    columns = _dtypes_of_outputs(given, output)
    if output.loss_weights:
        columns[LOSS_WEIGHTS] = "float32"
    more = {
        "attention_mask": preprocessing.padding != "none",
        "position_ids": position_ids_mode_of(preprocessing, output) != "none",
        "seq_lens": preprocessing.packing_strategy != "none",
    }
    columns |= {name: output.dtype.get(name, "int32") for name, there in more.items() if there}
    return columns | output.metadata()


def position_ids_mode_of(
    preprocessing: PreprocessingConfig, output: OutputConfig
) -> Literal["none", "doc_reset", "continuous"]:
    """The mode of position ids: as in the config, else `doc_reset` with packing and `none` without."""
    default: Literal["none", "doc_reset"] = "none" if preprocessing.packing_strategy == "none" else "doc_reset"
    return output.position_ids_mode or default


def contents_of(given: InputConfig, output: OutputConfig) -> dict[str, str]:
    """Column -> what it holds (a key of `ALLOWED_DTYPES`), for every possible column, even a mask that is left out."""
    if output.columns == "prompt_completion":
        return dict.fromkeys(PROMPT_COMPLETION, "token ids")
    outputs = outputs_of(given, output)
    kinds = {"value": "values", "token_value": "numbers of tokens", "text": "texts"}
    holds = {each.name: kinds.get(each.kind, "token ids") for each in outputs}
    holds |= {each.mask_name: "labels" if output.columns == "labels" else "masks" for each in outputs if each.mask_name}
    for each in outputs:
        if each.kind in ("ids", "list") and each.mask_name is None and given.rollouts is None:
            holds.setdefault(f"{each.name}_mask" if given.sources else "loss_mask", "masks")
    if given.one_sequence:
        holds |= {LOSS_WEIGHTS: "loss weights"} if output.loss_weights else {}
        holds |= {"attention_mask": "masks", "position_ids": "token ids", "seq_lens": "token ids"}
    return holds
