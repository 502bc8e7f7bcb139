"""Finds settings that contradict each other: problems between parts of a config that are valid alone."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from beam_prep.config.parts import InputConfig, OutputConfig, PreprocessingConfig, outputs_of, prompt_first
from beam_prep.config.presets import PRESETS
from beam_prep.config.strict import ALLOWED_DTYPES, LARGEST, Location, Problem, Strict
from beam_prep.data.schema import FILE, LOSS_WEIGHTS, NAME, OFFSET, PROMPT_COMPLETION, RESERVED, name_problems
from beam_prep.formats import FORMATS
from beam_prep.hints import shown, unknown_name
from beam_prep.shards.pack import Positions


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
    yield from _preset_problems(given, preprocessing, output)
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
    packed = preprocessing.packing_strategy != "none"
    outputs = outputs_of(given, output)
    sections = [section for each in outputs for section in each.sections]
    template = any(section.template for section in sections)
    conversation = any(section.template == "conversation" for section in sections)
    sides = [[section.action == "mask" for section in each.sections] for each in outputs[:2]]
    prompts = {each.sections[0].field for each in outputs[:2]}
    pairs = sides == [[True, False], [True, False]] and len(prompts) == 1
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
        (
            ("input", "implicit_prompt"),
            pairs,
            "input.sources, whose first two sources are each a prompt (the same field, action 'mask') and a side",
        ),
        (("mask_options",), conversation, "template: 'conversation'"),
        (("preprocessing", "bos"), conversation, "template: 'conversation'"),
        (("preprocessing", "padding"), one_sequence and not packed, f"{rows}, and not packed"),
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
    holds = contents_of(given, preprocessing, output)
    yield from _keep_fields_problems(holds, output)
    for name, dtype in output.dtype.items():
        at = ("output", "dtype", name)
        if (metadata := output.metadata().get(name)) is not None:
            if dtype != metadata:  # `canonical` configs list the dtype of metadata, too
                yield at, f"found {dtype!r}; it cannot be given here: output.keep_fields has the types of metadata"
        elif name not in holds:
            yield at, unknown_name("column", name, holds)
        elif dtype not in (allowed := ALLOWED_DTYPES[holds[name]]):
            yield at, f"found {dtype!r}; allowed for {holds[name]}: {', '.join(allowed)}"
    dtypes = column_dtypes(given, preprocessing, output)
    for name, first in (("position_ids", 0), ("seq_lens", 1)):
        most = LARGEST.get(dtypes.get(name, ""), LARGEST["int32"]) + 1 - first
        if most < LARGEST["int32"] and (size := preprocessing.row_size) > most:
            text = f"found {dtypes[name]!r}, which is for rows of at most {most} tokens; rows may have {size}"
            yield ("output", "dtype", name), text
    for name, problem in name_problems(output.new_names(dtypes), tuple(dtypes)):
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
    dtypes, columns = column_dtypes(part, PreprocessingConfig(), output), []
    for each in outputs_of(part, output):
        trained = "trained" if each.trains else "not trained"
        mask = "no mask" if each.mask_name is None else f"mask {each.mask_name!r}"
        columns.append(f"{each.name!r} ({each.kind}, {dtypes.get(each.name)}, {trained}, {mask})")
    of = "rollouts" if part.rollouts is not None else "sources" if part.sources else "sequences"
    return f"{of} with {', '.join(columns)}"


def _keep_fields_problems(holds: Collection[str], output: OutputConfig) -> Iterator[Problem]:
    """Problems of names of metadata columns. `output.names` may rename them."""
    at, columns = ("output", "keep_fields"), [*holds, *([FILE.name, OFFSET.name] if output.provenance else [])]
    taken = {*RESERVED, *(output.names.get(name, name).lower() for name in columns)}
    for name in output.keep_fields:
        written = output.names.get(name, name)
        if name in columns:
            yield at, f"found {name!r}; the output has a column of this name, so the field cannot be kept beside it"
        elif not re.fullmatch(NAME, written) or written.lower() in taken:
            wanted = "wanted a name of letters, digits and '_' that is not reserved, and no other column's in any case"
            yield at, f"found {name!r}; {wanted}: name its column in output.names: {json.dumps({name: 'its_name'})}"
        taken.add(written.lower())


def _format_problems(dtypes: Mapping[str, str], output: OutputConfig, packed: bool, lists: bool) -> Iterator[Problem]:
    """Problems of formats that cannot hold a column, or a shard of this size."""
    # Every other column has a value for each token. With lists, the number of values is not known here.
    others = {"seq_lens", *output.metadata()}
    width = sum(np.dtype(dtype).itemsize for name, dtype in dtypes.items() if name not in others)
    strings = [name for name, kind in output.keep_fields.items() if kind == "string"]
    for kind in output.storage_format:
        cannot = FORMATS[kind]
        for name in [name for name, dtype in dtypes.items() if dtype in cannot.unknown_dtypes]:
            text = f"found {dtypes[name]!r}; the format {kind!r} has all dtypes but {', '.join(cannot.unknown_dtypes)}"
            yield ("output", "dtype", name), text
        if cannot.largest is not None and not lists and output.max_tokens_per_shard > cannot.largest // width:
            most = f"at most {cannot.largest // width}, because a shard of {kind!r} has at most {cannot.largest} bytes"
            text = f"found {output.max_tokens_per_shard}, of {width} bytes each; {most} of values"
            yield ("output", "max_tokens_per_shard"), text
        if strings and (cannot.strings == "none" or (packed and cannot.strings == "single")):
            what = "strings" if cannot.strings == "none" else "strings of packed rows"
            text = f"found the string {strings[0]!r}; the format {kind!r} cannot hold {what}: leave out one of them"
            yield ("output", "keep_fields"), text


def _preset_problems(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> Iterator[Problem]:
    """Settings that the trainer of a preset would misread."""
    if output.preset is None:
        return
    preset = PRESETS[output.preset]
    if not (given.sources if preset.pairs else given.sections):
        wanted = "the sources chosen and rejected" if preset.pairs else "input.sections, whose rows are one sequence"
        yield ("output", "preset"), f"found {output.preset!r}, which is for {wanted}"
    elif not preset.reads_masks and not all(each.plain for each in outputs_of(given, output)):
        trains = f"the preset {output.preset!r} trains every token, prompts too"
        yield ("input", "sections"), f"found sections that are not trained in full; {trains}"
    for place, (values, why) in preset.only.items():
        part, key = place.split(".")
        value = getattr(output if part == "output" else preprocessing, key)
        if not any(each in values for each in (value if isinstance(value, tuple) else [value])):
            wanted = f"wanted {' or '.join(map(shown, values))} for the preset {output.preset!r}: {why}"
            yield (part, key), f"found {shown(value)}, {wanted}"


def _preprocessing_problems(given: InputConfig, preprocessing: PreprocessingConfig) -> Iterator[Problem]:
    mode = preprocessing.truncation_mode
    if preprocessing.max_chars < (least := preprocessing.min_chars):
        text = f"found {preprocessing.max_chars}; must not be less than min_chars, which is {least}"
        yield ("preprocessing", "max_chars"), text
    if given.rollouts is not None and mode in ("keep_start", "keep_end"):
        text = f"found {mode!r}; rollouts are not cut, as rewards and log probabilities are of entire ones: "
        yield ("preprocessing", "truncation_mode"), text + "use 'drop' or 'error'"
    if preprocessing.chunks and preprocessing.stride >= (size := preprocessing.chunk_size):
        text = f"found {preprocessing.stride}; it must be less than a chunk, which has {size} tokens"
        yield ("preprocessing", "stride"), text
    rule = preprocessing.decontaminate
    if rule is not None and rule.fields is None and given.tokenized:
        text = "found a rule for records of token ids, which hold no words: name fields with their texts in `fields`"
        yield ("preprocessing", "decontaminate"), text
    for each in outputs_of(given, OutputConfig()) if preprocessing.encode == "joint" else ():
        if each.kind == "ids" and not each.has_template and not prompt_first([part.action for part in each.sections]):
            text = f"found 'joint', and 'mask' after 'train' in {each.name!r}; the prompt must come first"
            yield ("preprocessing", "encode"), text


_CONTENTS: dict[str, str] = {"value": "values", "token_value": "numbers of tokens", "text": "texts"}
"""Kind of an output -> what its column holds. Other kinds hold token ids."""

_DTYPES = {"values": "float32", "numbers of tokens": "float32", "texts": "uint8", "loss weights": "float32"}
"""What a column holds -> its default dtype. Others are int32."""


def _columns(
    given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig
) -> dict[str, tuple[str, bool]]:
    """Column -> (what it holds, a key of `ALLOWED_DTYPES`; True if it is written), in output order.

    Columns that other settings would add are listed, too, even a mask that is left out.
    """
    if output.columns == "prompt_completion":
        return dict.fromkeys(PROMPT_COMPLETION, ("token ids", True))
    found: dict[str, tuple[str, bool]] = {}
    masks, left_out = "labels" if output.columns == "labels" else "masks", []
    for each in outputs_of(given, output):
        found[each.name] = _CONTENTS.get(each.kind, "token ids"), True
        if each.mask_name is not None:
            found[each.mask_name] = masks, True
        elif each.kind in ("ids", "list") and given.rollouts is None:
            left_out.append(f"{each.name}_mask" if given.sources else "loss_mask")
    if given.one_sequence:
        found[LOSS_WEIGHTS] = "loss weights", output.loss_weights
        found["attention_mask"] = "masks", preprocessing.padding != "none"
        found["position_ids"] = "token ids", position_ids_mode_of(preprocessing, output) != "none"
        found["seq_lens"] = "token ids", preprocessing.packing_strategy != "none"
    for name in left_out:
        found.setdefault(name, (masks, False))
    return found


def contents_of(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Column -> what it holds, also of columns that other settings would add."""
    return {name: holds for name, (holds, _) in _columns(given, preprocessing, output).items()}


def column_dtypes(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Column -> dtype, in output order, under the names before renaming."""
    found = {}
    for name, (holds, written) in _columns(given, preprocessing, output).items():
        default = _DTYPES.get(holds, "int32")
        if given.rollouts is not None and name == "policy_version":
            default = "int64"
        if written:
            found[name] = output.dtype.get(name, default)
    return found | output.metadata()


def position_ids_mode_of(preprocessing: PreprocessingConfig, output: OutputConfig) -> Positions:
    """The mode of position ids: as in the config, else `doc_reset` with packing and `none` without."""
    return output.position_ids_mode or ("none" if preprocessing.packing_strategy == "none" else "doc_reset")
