"""The config: a JSON file with the settings of a run: what is read, masked, cut and written.

    config = PipelineConfig.from_json("configs/dpo.json")
    config.columns()  # {'chosen': 'int32', 'chosen_mask': 'int32', 'rejected': 'int32', 'rejected_mask': 'int32'}

Only the config, never the data, decides which columns exist. One `ConfigError` lists all problems of a config.
"""

from beam_prep.config.pipeline_config import PipelineConfig
from beam_prep.config.strict import FORMAT_NAMES

__all__ = ["FORMAT_NAMES", "PipelineConfig"]
