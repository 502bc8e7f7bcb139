"""Pipelines in Beam YAML: the examples give the bytes of the same job, and what is wrong in one is said."""

import contextlib
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions

import beam_prep as bp
from beam_prep import beam_yaml
from beam_prep.recipe import chain
from tests.conftest import ROOT, run_job, says, text_config, tree
from tests.test_configs import CONFIGS

pytest.importorskip("docstring_parser", reason="no apache-beam[yaml] here")

TOKENIZER = str(ROOT / "examples" / "tokenizer")
CHAT = str(ROOT / "configs" / "sft_conversation.json")
TEXT = text_config(preprocessing={"min_chars": 1})
ROWS = [{"text": "One."}, {"text": "Two."}, {"text": "Two."}]


def run(transforms: list[dict[str, Any]], *options: str) -> None:
    """Runs a chain of transforms: those that the provider lists, and Beam's own."""
    from apache_beam.yaml import yaml_transform

    providers = [{"include": str(beam_yaml.PROVIDERS)}]
    spec = yaml.dump({"providers": providers, "pipeline": {"type": "chain", "transforms": transforms}}, sort_keys=False)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner", *options])) as pipeline:
        yaml_transform.expand_pipeline(pipeline, spec)


def step(name: str, **config: Any) -> dict[str, Any]:
    return {"type": name, "config": config}


def rows(output: Path) -> dict[str, bytes]:
    """The files of an output but the manifest: a chain does not know that it is a job."""
    return {name: data for name, data in tree(output).items() if name != "manifest.json"}


@pytest.mark.long
def test_the_example_of_files_gives_the_same_in_worker_processes(tmp_path: Path) -> None:
    """As a user runs it, who types `python -m apache_beam.yaml.main`."""
    from apache_beam.yaml import main

    for name, options in (("one", []), ("two", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])):
        given = ["--runner=FnApiRunner", "--jinja_variables", json.dumps({"output": str(tmp_path / name)}), *options]
        with contextlib.chdir(ROOT):
            main.run([f"--yaml_pipeline_file={ROOT / 'examples' / 'beam_yaml' / 'chat.yaml'}", *given])
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


def test_a_config_that_composes_gives_the_bytes_of_the_job(tmp_path: Path) -> None:
    config = json.loads(Path(CHAT).read_bytes())
    config["preprocessing"] |= {"deduplicate": {"by": ["messages"]}}
    config["output"] |= {"shuffle": {"seed": 3}, "splits": {"train": 0.8, "test": 0.2}}
    data, ways = str(ROOT / "examples/data/chat.jsonl"), {"config": config, "tokenizer": TOKENIZER}
    run_job(config, data, tmp_path / "job")
    ends = step("Prepare", **ways), step("Shard", output=str(tmp_path / "yaml"), **ways)
    run([step("ReadJSONL", inputs=data), *ends])
    assert rows(tmp_path / "yaml") == rows(tmp_path / "job")
    assert bp.open(tmp_path / "yaml", split="all").splits == ("train", "test")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_of_a_config_is_the_one_of_prepare(name: str) -> None:
    path = ROOT / "configs" / f"{name}.json"
    config, tokenizer = bp.PipelineConfig.from_json(path), bp.Tokenizer.load(TOKENIZER)
    if config.input.chat_template is not None:
        tokenizer = tokenizer.with_template(config.input.chat_template)
    (provider,) = yaml.safe_load(beam_yaml.PROVIDERS.read_text())
    for wanted in chain(config, tokenizer, "auto", "sample"):
        module, _, function = provider["transforms"][type(wanted).__name__].rpartition(".")
        assert module == beam_yaml.__name__
        made = getattr(beam_yaml, function)(config=str(path), tokenizer=TOKENIZER)
        assert type(made) is type(wanted)
        assert settings(made) == settings(wanted)


def settings(made: Any) -> Any:
    hidden = {"tokenizer", "eos_id", "policy"}
    return {name: value for name, value in vars(made).items() if name not in hidden and not name.startswith("_")}


def test_rows_of_beam_are_records_with_what_is_nested(tmp_path: Path) -> None:
    chat = says(user="Hi", assistant="Yes.")
    given = {"config": CHAT, "tokenizer": TOKENIZER}
    output = str(tmp_path / "out")
    elements = [{"id": 1, "messages": chat}, {"id": 2, "messages": chat[:1]}]
    create, read = step("Create", elements=elements), step("FromRecords")
    run([create, read, step("Prepare", **given), step("Shard", **given, max_no_loss_rate=1, output=output)])
    dataset = bp.open(output)
    (row,) = map(dataset.decode, range(len(dataset)))
    assert row == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
    assert dataset.manifest["ledger"]["dropped"] == {"rows_without_loss": 1}


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("Prepare", {"config": TEXT}, "tokenizer\n  Missing required argument"),
        ("Prepare", {"config": TEXT, "tokeniser": "x"}, "tokeniser\n  Unexpected keyword argument"),
        ("Prepare", {"config": "none.json", "tokenizer": TOKENIZER}, "none.json: the config cannot be read"),
        ("Shift", {"config": TEXT, "tokenizer": TOKENIZER}, "Shift: this config has no such step; its steps are "),
        ("FromRecords", {"buckets": 3}, "buckets is 3, wanted a power of 2"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(name: str, config: dict[str, Any], message: str) -> None:
    steps = [step("Create", elements=ROWS), *([] if name == "FromRecords" else [step("FromRecords")])]
    with pytest.raises(ValueError, match=r'at "\w+" at line \d+') as caught:
        run([*steps, step(name, **config)])
    assert message in str(caught.value)


def test_what_is_wrong_in_a_source_is_said() -> None:
    with pytest.raises(ValueError, match="block_bytes is True, wanted a multiple of 65536"):
        run([step("ReadJSONL", inputs="x", block_bytes=True)])
