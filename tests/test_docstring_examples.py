"""Every public name shows in its docstring how it is used, and the example gives what it says.

An example runs as a user would type it in the root of the project, after `import apache_beam as beam`,
`import beam_prep as bp` and `import numpy as np`. It may read `configs/`, `examples/` and `out/chat`, the output of

    beam-prep run examples/data/chat.jsonl -o out/chat -c configs/sft_conversation.json \
        --tokenizer_path examples/tokenizer
"""

import doctest
import pydoc
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest

import beam_prep as bp
from tests.conftest import Folders, Patch, checkout

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Folders) -> Path:
    folder = checkout(tmp_path_factory.mktemp("checkout"))
    # What examples read; of `out/pipeline` one finds that it is there, as it may run in another process than others.
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)  # with the paths of the examples
        for name, output in (("sft_conversation", "chat"), ("sft_chat", "pipeline")):
            config, data = f"configs/{name}.json", "examples/data/chat.jsonl"
            bp.Pipeline(config, data, f"out/{output}", "examples/tokenizer").run(["--runner=FnApiRunner"])
    return folder


@pytest.mark.parametrize("name", [*bp.__all__, "inspect.picture.picture"])
def test_the_example_of_a_public_name_gives_what_it_says(name: str, folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(folder)
    names = {"beam": beam, "bp": bp, "np": np}
    # The docstring of the name itself comes first, those of its methods and functions follow.
    tests = doctest.DocTestFinder().find(pydoc.locate(f"beam_prep.{name}"), name, globs=names)
    own, *_ = sorted(tests, key=lambda test: test.name)
    assert own.name == name
    assert own.examples, f"bp.{name} has no >>> example in its docstring"
    printed: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=printed.append)
    assert not printed, "".join(printed)
