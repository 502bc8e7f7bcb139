"""The config: one JSON file that says what is read, masked, cut and written.

    config = PipelineConfig.from_json("configs/dpo.json")
    config.columns()  # {'chosen': 'int32', 'chosen_mask': 'int32', 'rejected': 'int32', 'rejected_mask': 'int32'}

The config alone decides which columns exist, never the data. All problems of a config are in one `ConfigError`.
"""

from beam_prep.config.pipeline_config import PipelineConfig
from beam_prep.config.values import FORMAT_NAMES

__all__ = ["FORMAT_NAMES", "PipelineConfig"]
