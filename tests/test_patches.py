"""What is changed in other libraries: only while it is needed, and never in a process of a user's own."""

import contextlib
import functools
import inspect
import logging
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker.statesampler import StateSampler
from apache_beam.transforms import core, userstate

from beam_prep import cli, patches
from tests.conftest import ROOT

STATE = """
import gc, json, logging, os, sys

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner.worker_handlers import WorkerHandler
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker.statesampler import StateSampler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core
from apache_beam.transforms.environments import Environment


def state():
    return {
        "beam": [StateSampler.__init__, PipelineOptions.view_as, core.get_function_args_defaults],
        "finders": [finder for finder in sys.meta_path if type(finder).__module__.startswith("beam_prep")],
        "environments": [*Environment._known_urns, *WorkerHandler._registered_environments],
        "variables": dict(os.environ),
        "disabled": logging.root.manager.disable,
        "root": [logging.root.level, logging.root.handlers[:], logging.root.filters[:]],
        "levels": [logging.getLogger(name).level for name in ("apache_beam", "beam_prep", "urllib3.connectionpool")],
        "collection": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "streams": [sys.stdout, sys.stderr],
    }


with beam.Pipeline("FnApiRunner") as pipeline:  # what Beam itself changes
    pipeline | beam.Create([1])
before = state()
"""

CHAIN = """
import beam_prep as bp

for name in bp.__all__:
    getattr(bp, name)
tokenizer = bp.Tokenizer.load("examples/tokenizer")
config = bp.PipelineConfig.from_json("configs/sft_chat.json")
assert state() == before
with beam.Pipeline("FnApiRunner") as pipeline:
    records = pipeline | bp.ReadJSONL(["examples/data/chat.jsonl"]) | bp.Prepare(config, tokenizer)
    _ = records | bp.Shard(sys.argv[1], tokenizer=tokenizer, max_reject_rate=1.0, max_drop_rate=1.0)
"""

EVERYTHING = """
import beam_prep as bp

config = bp.PipelineConfig.from_json("configs/sft_chat.json")
given = dict(tokenizer_path="examples/tokenizer", max_reject_rate=1.0, max_drop_rate=1.0)
bp.Pipeline(config, ["examples/data/chat.jsonl"], sys.argv[1], **given).run()
mode = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
bp.Pipeline(config, ["examples/data/chat.jsonl"], sys.argv[1] + "2", **given).run(mode)
"""

SAME = """
# Other libraries may add what they like when they are imported: compared is what beam_prep has touched at any time.
for name, value in state().items():
    assert value == before[name], (name, before[name], value)
"""


@pytest.mark.parametrize("code", [CHAIN, EVERYTHING], ids=["a_chain", "Pipeline.run"])
def test_a_process_of_a_user_is_left_as_it_was(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STATE + code + SAME, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


def test_frequent_sampling_ends_with_its_scope_however_it_ends() -> None:
    original = StateSampler.__init__
    with contextlib.suppress(KeyError), patches.frequent_sampling():
        with patches.frequent_sampling():  # of a run in another thread
            assert isinstance(StateSampler.__dict__["__init__"], functools.partialmethod)
        raise KeyError
    assert StateSampler.__init__ is original


def test_beam_still_has_what_is_patched() -> None:
    """Else `beam_prep/patches.py` is the place to look at."""
    assert "sampling_period_ms" in inspect.signature(StateSampler.__init__).parameters
    assert worker_handlers.ControlConnection()._futures_by_id == {}


def test_a_job_runs_in_a_notebook(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam would import pandas there, which may be absent or too new, for the labels of the steps."""
    from apache_beam import pipeline

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    monkeypatch.setitem(sys.modules, "apache_beam.runners.interactive", None)
    original = pipeline.alter_label_if_ipython
    with pytest.raises(ImportError):
        original(None, None)
    config = {"input": {"sections": [{"field": "text", "action": "train"}]}}
    assert run(config, [{"text": "Hello. " * 20}]).manifest["totals"]["rows"] == 1
    assert pipeline.alter_label_if_ipython is original


@pytest.mark.parametrize("imported", [True, False])
def test_ipython_is_asked_only_where_it_is_imported(monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    from apache_beam import pipeline

    monkeypatch.setattr(pipeline, "is_in_ipython", lambda: True)
    if imported:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    else:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    original = pipeline.is_in_ipython
    with patches.ipython_if_imported(), patches.ipython_if_imported():
        assert pipeline.is_in_ipython() is imported
    assert pipeline.is_in_ipython is original


def test_requests_to_a_worker_that_is_gone_end_with_an_error() -> None:
    connection = worker_handlers.ControlConnection()
    waiting, answered = (connection.push(beam_fn_api_pb2.InstructionRequest()) for _ in range(2))
    answered.set(beam_fn_api_pb2.InstructionResponse(error="its own"))
    patches.fail_requests(connection, "it is gone")
    assert (waiting.get().error, answered.get().error) == ("it is gone", "its own")


@pytest.mark.parametrize("raises", [True, False])
def test_unused_libraries_are_back_after_the_import(raises: bool) -> None:
    before = sys.meta_path[:]
    try:
        with patches.without_unused_libraries():
            assert len(sys.meta_path) == len(before) + 1
            if raises:
                raise KeyError
    except KeyError:
        assert raises
    assert sys.meta_path == before


def test_an_import_of_beam_that_fails_leaves_the_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    logging.disable(logging.DEBUG)
    monkeypatch.setattr("beam_prep.cli.importlib.import_module", fail)
    try:
        with pytest.raises(ImportError):
            cli._import_beam()
        assert logging.root.manager.disable == logging.DEBUG
    finally:
        logging.disable(logging.NOTSET)


def test_errors_of_threads_of_beam_are_not_printed_and_those_of_others_are() -> None:
    code = """
import sys, threading, types
from beam_prep import patches
patches.quiet_threads()
for name in ("apache_beam/reader.py", "mine.py"):
    space = {}
    exec(compile("def fail(): raise ValueError('of ' + __file__)", name, "exec"), space | {"__file__": name}, space)
    thread = threading.Thread(target=eval(compile("lambda: fail()", name, "eval"), space | {"__file__": name}))
    space["fail"].__globals__["__file__"] = name
    thread.start()
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "of mine.py" in done.stderr
    assert "of apache_beam" not in done.stderr


def test_gigatoken_gives_the_same_with_arrays_of_numpy_as_with_those_of_awkward() -> None:
    """Each way in a process of its own, as the module is found once."""
    pytest.importorskip("gigatoken")
    code = """
import sys
from beam_prep import Tokenizer, patches
if sys.argv[1] == "numpy":
    patches.numpy_for_awkward()
from beam_prep.core.encoding.with_gigatoken import load
texts = ["", "Hello there", "wörld \\u00e9 \\U0001f600", " " * 40, "", "x" * 3000]
import awkward
ids, left = load(Tokenizer.load("examples/tokenizer")).encode(texts)
print(hasattr(awkward, "operations"), ids.to_lists(), left.tolist())
"""
    words = [sys.executable, "-c", code]
    told = [subprocess.run([*words, way], cwd=ROOT, capture_output=True, text=True) for way in ("numpy", "awkward")]
    assert [each.returncode for each in told] == [0, 0], told
    one, other = ([*each.stdout.split(" ", 1)] for each in told)
    assert (one[0], other[0]) == ("False", "True")
    assert one[1] == other[1]


def test_beartype_and_others_are_imported_when_beam_calls_them() -> None:
    code = """
import sys
from beam_prep import cli, processes
processes.own_program()
cli._import_beam(False)
import beam_prep.pipeline
late = ("beartype", "httplib2", "cryptography", "yaml", "pyarrow.parquet", "awkward.operations")
print([name for name in late if name in sys.modules])
from apache_beam.typehints import Dict, List, typehints
print(typehints.is_consistent_with(bool, int), typehints.is_consistent_with(str, int), "beartype" in sys.modules)
print(typehints.is_subhint(list[bool], list[int]), "beartype" in sys.modules)
from apache_beam.transforms import external, util
print(external.yaml.dump({"a": 1}), util.Fernet(b"A" * 43 + b"=").decrypt)
from apache_beam.runners.portability import stager
print(type(stager.get_new_http()).__name__)
import pyarrow.parquet, yaml
print(yaml.safe_load("a: 1"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["[]", "True False False", "True True"]
    assert lines[3] == "a: 1"
    assert lines[-2:] == ["Http", "{'a': 1}"]


@pytest.mark.parametrize(
    "use",
    [
        "yaml.safe_load('a: 1') == {'a': 1}",
        "is_subhint(list[bool], list[int])",
        "bool(fernet.InvalidToken) and __import__('cryptography.hazmat.primitives.hashes') is not None",
        "all(callable(get) for get in (http_client.get_new_http, http_client.proxy_info_from_environment_var))",
    ],
)
def test_what_beam_uses_while_it_is_imported_is_the_library_itself(use: str) -> None:
    """Another version of Beam, or of what it finds installed, may: then the stand-ins make place."""
    code = f"""
import sys
from beam_prep import patches
with patches.without_unused_libraries(False):
    import yaml
    from beartype.door import is_subhint
    from cryptography import fernet
    from apache_beam.internal import http_client
    assert {use}
assert not patches._stand_ins
import beartype, yaml
assert yaml.__file__ and beartype.__file__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_view_of_options_is_made_once_and_shares_its_values() -> None:
    original = PipelineOptions.view_as
    options, others = PipelineOptions(["--job_name=one"]), PipelineOptions(["--job_name=other"])
    with patches.views_made_once():
        view = options.view_as(GoogleCloudOptions)
        assert options.view_as(GoogleCloudOptions) is view
        assert view.view_as(GoogleCloudOptions) is view
        view.project = "ours"
        assert options.view_as(GoogleCloudOptions).project == "ours"
        assert others.view_as(GoogleCloudOptions).project is None
        assert [each.view_as(GoogleCloudOptions).job_name for each in (options, others)] == ["one", "other"]
        assert options.view_as(StandardOptions).runner is None
    assert PipelineOptions.view_as is original
    assert options.view_as(GoogleCloudOptions).project == "ours"


def test_views_that_another_thread_asks_for_are_made_as_ever() -> None:
    options, found = PipelineOptions(["--job_name=one"]), list[GoogleCloudOptions]()
    with patches.views_made_once():
        mine = options.view_as(GoogleCloudOptions)
        with patches.views_made_once():  # of a run in another thread
            thread = threading.Thread(
                target=lambda: found.extend(options.view_as(GoogleCloudOptions) for _ in range(2))
            )
            thread.start()
            thread.join()
        assert options.view_as(GoogleCloudOptions) is mine
    one, other = found
    assert one is not other
    assert one.job_name == other.job_name == "one"


class _Step(beam.DoFn):
    def process(self, element: int, window: Any = beam.DoFn.WindowParam, *, other: int = 1) -> list[int]:
        return [element + other]


class _Equal:
    """A callable that is equal to one with other arguments."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Equal)

    def __hash__(self) -> int:
        return 1

    def __call__(self, third: int, fourth: int = 4) -> int:
        return third + fourth


class _EqualToo(_Equal):
    def __call__(self, fifth: int, sixth: int = 6) -> int:
        return fifth + sixth


class _Called:
    """A callable that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, first: int, second: int = 2) -> int:
        return first + second


def test_arguments_that_are_found_once_are_those_that_beam_finds() -> None:
    step, other = _Step(), _Step()
    every = [
        step.process,
        other.process,
        _Step.process,
        step.setup,
        _Called(),
        _Equal(),
        _EqualToo(),
        len,
        str.upper,
        _Step,
        lambda a, b=[]: a,
    ]
    original = core.get_function_args_defaults
    expected = [original(each) for each in every]
    assert expected[0] == (["element", "window"], [beam.DoFn.WindowParam])
    assert expected[2] == (["self", "element", "window"], [beam.DoFn.WindowParam])
    with patches.arguments_found_once():
        with patches.arguments_found_once():  # of a run in another thread
            first = [core.get_function_args_defaults(each) for each in every]
        for names, defaults in first:  # a list that a caller changes is its own
            names.append("more")
            defaults.append("more")
        assert [core.get_function_args_defaults(each) for each in every] == expected
        with pytest.raises(TypeError):
            core.get_function_args_defaults(3)
    assert core.get_function_args_defaults is original


def test_the_signature_of_a_method_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()
    original = core.get_signature

    def counted(function: Any) -> Any:
        read[function.__name__] += 1
        return original(function)

    monkeypatch.setattr(core, "get_signature", counted)
    with patches.arguments_found_once():
        for _ in range(3):
            userstate.get_dofn_specs(_Step())
    assert read["process"] == 1
    assert set(read.values()) == {1}
