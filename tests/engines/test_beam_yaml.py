"""Pipelines in Beam YAML give the same bytes on Prism."""

from pathlib import Path

from tests.conftest import tree
from tests.engines.build import built
from tests.test_beam_yaml import launch


def test_prism_gives_the_same_bytes(tmp_path: Path) -> None:
    example = "chat.yaml"
    launch(example, tmp_path / "here")
    launch(example, tmp_path / "prism", "--runner=PrismRunner", f"--prism_location={built('prism') / 'prism'}")
    assert tree(tmp_path / "prism") == tree(tmp_path / "here")
    assert list((tmp_path / "here").glob("*/*.bin"))
