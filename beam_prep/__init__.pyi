"""The public names, for type checkers; `__init__.py` reads from here which module has which name."""

from beam_prep import testing as testing
from beam_prep._version import __version__ as __version__
from beam_prep.config import PipelineConfig as PipelineConfig
from beam_prep.data.ragged import Ragged as Ragged
from beam_prep.data.rendered import Rendered as Rendered
from beam_prep.data.schema import Column as Column
from beam_prep.data.schema import MaskOptions as MaskOptions
from beam_prep.data.schema import Output as Output
from beam_prep.data.schema import Section as Section
from beam_prep.data.schema import TextRules as TextRules
from beam_prep.pipeline import Pipeline as Pipeline
from beam_prep.readers.collate import collate as collate
from beam_prep.readers.dataset import Dataset as Dataset
from beam_prep.readers.dataset import open_dataset
from beam_prep.readers.views import mixture as mixture
from beam_prep.reading.records import Records as Records
from beam_prep.reading.rollouts import RolloutFields as RolloutFields
from beam_prep.reading.verdicts import FieldUse as FieldUse
from beam_prep.recipe import Prepare as Prepare
from beam_prep.replay import Replay as Replay
from beam_prep.shards.compose import Compose as Compose
from beam_prep.shards.compose import DomainMix as DomainMix
from beam_prep.shards.compose import Splits as Splits
from beam_prep.shards.layout import Chunking as Chunking
from beam_prep.shards.layout import Layout as Layout
from beam_prep.tokens.batch import Batch as Batch
from beam_prep.tokens.batch import Segments as Segments
from beam_prep.tokens.rows import Padding as Padding
from beam_prep.tokens.rows import RoleMask as RoleMask
from beam_prep.tokens.tokenizer import Tokenizer as Tokenizer
from beam_prep.transforms.shard import Shard as Shard
from beam_prep.transforms.steps import AdaptRecords as AdaptRecords
from beam_prep.transforms.steps import ApplyTemplate as ApplyTemplate
from beam_prep.transforms.steps import BuildMask as BuildMask
from beam_prep.transforms.steps import CountBadAnswers as CountBadAnswers
from beam_prep.transforms.steps import Decontaminate as Decontaminate
from beam_prep.transforms.steps import FilterByChars as FilterByChars
from beam_prep.transforms.steps import FilterRecords as FilterRecords
from beam_prep.transforms.steps import FromRecords as FromRecords
from beam_prep.transforms.steps import FromRollouts as FromRollouts
from beam_prep.transforms.steps import FromTokens as FromTokens
from beam_prep.transforms.steps import KeepFields as KeepFields
from beam_prep.transforms.steps import KeyRecords as KeyRecords
from beam_prep.transforms.steps import Labels as Labels
from beam_prep.transforms.steps import MapRecords as MapRecords
from beam_prep.transforms.steps import Pad as Pad
from beam_prep.transforms.steps import ReadJSONL as ReadJSONL
from beam_prep.transforms.steps import Shift as Shift
from beam_prep.transforms.steps import SplitPrompt as SplitPrompt
from beam_prep.transforms.steps import Tokenize as Tokenize
from beam_prep.transforms.steps import Truncate as Truncate

open = open_dataset
__all__: list[str]
