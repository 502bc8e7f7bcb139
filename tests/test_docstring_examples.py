"""Every public name shows in its docstring how it is used, and the example gives what it says.

An example runs as a user would type it in the root of the project, after `import apache_beam as beam`,
`import beam_prep as bp` and `import numpy as np`. It may read `configs/`, `examples/` and `out/chat`, the output of

    beam-prep run examples/data/chat.jsonl -o out/chat -c configs/sft_conversation.json \
        --tokenizer_path examples/tokenizer
"""

import ast
import dataclasses
import doctest
import pydoc
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest

import beam_prep as bp
from tests.conftest import ROOT, Folders, Patch, checkout

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


@pytest.mark.parametrize("name", [*bp.__all__, "inspect.picture.picture", "transforms.steps.BlockStep"])
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


# What `import beam_prep as bp` offers

# Composed by configs only.
WITHOUT_A_NAME = {"AdaptRecords", "ByGroup", "FromTokens", "InDomain"}
TRANSFORMS = [name for name in bp.__all__ if beam.PTransform in getattr(getattr(bp, name), "__mro__", ())]


def test_all_names_are_there() -> None:
    assert bp.__all__ == sorted(set(bp.__all__))
    for name in bp.__all__:
        assert getattr(bp, name) is not None
    assert {*bp.__all__, "__version__"} <= set(dir(bp))


def test_every_transform_is_public() -> None:
    bases = {"beam.PTransform", "BlockStep"}
    found = {
        node.name
        for path in (ROOT / "beam_prep" / "transforms").glob("[a-z]*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}
    } - bases
    assert found == {*TRANSFORMS} - {"Prepare"} | WITHOUT_A_NAME
    assert {"ApplyTemplate", "BuildMask", "ReadJSONL", "Shard", "Shift", "Tokenize", "Truncate"} <= found


def test_a_transforms_docstring_says_what_goes_in_and_out() -> None:
    firsts = {name: getattr(bp, name).__doc__.splitlines()[0] for name in TRANSFORMS}
    assert [name for name, first in firsts.items() if " -> " not in first] == []


def test_beam_can_set_attributes_of_a_transform_and_hash_it() -> None:
    classes = [getattr(bp, name) for name in TRANSFORMS]
    made = [vars(each)["__dataclass_params__"] for each in classes if dataclasses.is_dataclass(each)]
    assert not any(each.frozen or each.eq for each in made)
