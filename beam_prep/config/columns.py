"""The columns that a config gives: their names, their dtypes, and what each holds."""

from typing import Literal

from beam_prep.config.input import InputConfig, specs_of
from beam_prep.config.output import OutputConfig
from beam_prep.config.preprocessing import PreprocessingConfig
from beam_prep.core.data.schema import LOSS_WEIGHTS, PROMPT_COMPLETION


def column_dtypes(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Column to dtype, in output order, under the columns' own names."""
    return _of_tokens(given, preprocessing, output) | output.carried()


def _of_tokens(given: InputConfig, preprocessing: PreprocessingConfig, output: OutputConfig) -> dict[str, str]:
    """Those that steps make."""
    if output.columns == "prompt_completion":
        return {name: output.dtype.get(name, "int32") for name in PROMPT_COMPLETION}
    specs = specs_of(given, output)
    pairs = [((spec.name, spec.dtype), (spec.mask_name, spec.mask_dtype)) for spec in specs]
    columns = {name: dtype for pair in pairs for name, dtype in pair if name is not None and dtype is not None}
    if output.loss_weights:
        columns[LOSS_WEIGHTS] = "float32"
    more = {
        "attention_mask": preprocessing.padding != "none",
        "position_ids": position_ids_mode_of(preprocessing, output) != "none",
        "seq_lens": preprocessing.packing_strategy != "none",
    }
    return columns | {name: output.dtype.get(name, "int32") for name, there in more.items() if there}


def position_ids_mode_of(
    preprocessing: PreprocessingConfig, output: OutputConfig
) -> Literal["none", "doc_reset", "continuous"]:
    """The mode of position ids: the one of the config, else `doc_reset` with packing and `none` without."""
    default: Literal["none", "doc_reset"] = "none" if preprocessing.packing_strategy == "none" else "doc_reset"
    return output.position_ids_mode or default


def contents_of(given: InputConfig, output: OutputConfig) -> dict[str, str]:
    """Column to what it holds (a key of `ALLOWED_DTYPES`), for every possible column, even a mask that is left out."""
    if output.columns == "prompt_completion":
        return dict.fromkeys(PROMPT_COMPLETION, "token ids")
    specs = specs_of(given, output)
    kinds = {"value": "values", "token_value": "numbers of tokens", "text": "texts"}
    holds = {spec.name: kinds.get(spec.kind, "token ids") for spec in specs}
    holds |= {spec.mask_name: "labels" if output.columns == "labels" else "masks" for spec in specs if spec.mask_name}
    for spec in specs:
        if spec.kind in ("ids", "list") and spec.mask_name is None and given.rollouts is None:
            holds.setdefault(f"{spec.name}_mask" if given.sources else "loss_mask", "masks")
    if given.one_sequence:
        holds |= {LOSS_WEIGHTS: "loss weights"} if output.loss_weights else {}
        holds |= {"attention_mask": "masks", "position_ids": "token ids", "seq_lens": "token ids"}
    return holds
