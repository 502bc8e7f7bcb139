"""What we use of jinja2 that jinja2 does not promise: it is still there, and it is known where we use it.

Chat templates run as jinja2 compiles them, with our `str` and `~` for its own. `pyproject.toml` bounds the version for
that.
When a test here fails for a new jinja2: look where the package uses its names, correct them, then move the bound.
"""

import inspect
import tomllib
from collections.abc import Iterable

import jinja2
from jinja2.runtime import Context
from packaging.requirements import Requirement

from tests.conftest import ROOT

SAMPLE = "{% macro m(x) %}{{ x }}{% endmacro %}{% for t in messages %}{{ m(t['role'] ~ '!') }}{% endfor %}"


def test_compiled_code_has_the_names_that_we_take_out_and_put_in() -> None:
    """If not: look where the package says `_loop_vars`, `_block_vars`, `compiled["str"]`, `str_join`."""
    source = jinja2.Environment().compile(SAMPLE, raw=True)
    assert {name for name in ("_loop_vars=", "str(", "str_join((") if name not in source} == set()
    assert "_block_vars" in inspect.getsource(Context.call)
    names = jinja2.Environment().from_string(SAMPLE).root_render_func.__globals__
    assert names["str_join"] is jinja2.runtime.str_join


def test_what_a_macro_or_a_block_gives_goes_through_the_environments_own_concat() -> None:
    """Else texts would lose their origins there."""
    joined: list[tuple[str, ...]] = []

    class Own(jinja2.Environment):
        @staticmethod
        def concat(pieces: Iterable[str]) -> str:
            joined.append(tuple(pieces))
            return "".join(joined[-1])

    source = "{% macro m(x) %}<{{ x }}>{% endmacro %}{% set y %}[{{ m('a') }}]{% endset %}{{ y }}"
    assert "".join(Own().from_string(source).root_render_func(Own().from_string(source).new_context())) == "[<a>]"
    assert joined == [("<", "a", ">"), ("[", "<a>", "]")]


def test_the_bound_of_jinja2_is_the_version_that_we_know() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = (need for need in map(Requirement, project["dependencies"]) if need.name == "jinja2")
    assert bound.specifier.contains("3.1.6")
    assert bound.specifier.contains(jinja2.__version__)
    assert not bound.specifier.contains("3.2.0")
