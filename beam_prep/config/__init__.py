"""The config: one JSON file that says what is read, masked, cut and written.

    config = PipelineConfig.from_json("configs/dpo.json")
    config.columns()  # {'chosen': 'int32', 'chosen_mask': 'int32', 'rejected': 'int32', 'rejected_mask': 'int32'}

Which columns exist is decided here, by the config alone, never by the data. Whatever is wrong with a config comes as
one `ConfigError` that lists all problems.
"""

from beam_prep.config.pipeline_config import PipelineConfig
from beam_prep.config.sections import OutputSpec
from beam_prep.config.values import FORMAT_NAMES

__all__ = ["FORMAT_NAMES", "OutputSpec", "PipelineConfig"]
