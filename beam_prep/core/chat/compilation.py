"""A chat template compiled, with calls in it by which a rendering reports what it writes for which message."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date as Date
from types import CodeType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
import markupsafe
from jinja2 import nodes

from beam_prep.core.chat.clock import Clock
from beam_prep.core.chat.limits import NODE, as_text, joining, made, weigh, weighed
from beam_prep.core.chat.sandbox import (
    DictMaker,
    Namespace,
    Sandbox,
    UnwritableCallable,
    UnwritableCycler,
    UnwritableJoiner,
    limited_filter,
    limited_test,
    raise_exception,
    tojson,
)
from beam_prep.errors import TokenizerError

MARK, ENTER, LEAVE, GENERATION = (f"_beam_prep_{name}" for name in ("mark", "enter", "leave", "generation"))
"""Variables that a template calls: a loop comes to an item, begins, or ends; a generation block is written."""
WEIGHED = "_beam_prep_weighed"
"""The filter of values that are about to be compared."""

COMPARING_TESTS = (
    *("in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le"),
)
_RAISED_BY_COMPILER = (
    jinja2.exceptions.SecurityError,
    SyntaxError,
    ValueError,
    RecursionError,
    MemoryError,
    OverflowError,
)
_CAPTURES = (nodes.AssignBlock, nodes.Macro, nodes.FilterBlock, nodes.CallBlock)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks give their content, and report where it is written."""

    tags = {"generation"}  # noqa: RUF012  (as Extension declares it)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = nodes.Call(nodes.Name(GENERATION, "load"), [], [], None, None)
        return nodes.CallBlock(call, [], [], body).set_lineno(lineno)


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A compiled template.

    Attributes:
        source: its text.
        tree: its syntax tree.
        code: what jinja compiled it to.
        template: runs it.
        generation: it has generation blocks.
        captured: one or more of these are inside a capture or macro.
    """

    source: str
    tree: nodes.Template
    code: CodeType
    template: jinja2.Template
    generation: bool
    captured: bool


@functools.lru_cache(maxsize=16)
def compile_template(source: str, date: str | None) -> CompiledTemplate:
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    del environment.filters["random"]
    environment.filters["tojson"] = tojson
    tests: dict[str, Any] = dict(environment.tests)
    environment.tests.update({name: limited_test(tests[name]) for name in COMPARING_TESTS})
    environment.filters.update({name: limited_filter(name, made) for name, made in environment.filters.items()})
    environment.filters[WEIGHED] = weighed
    environment.globals = {
        "range": UnwritableCallable(jinja2.sandbox.safe_range),
        "cycler": UnwritableCycler,
        "joiner": UnwritableJoiner,
        "dict": DictMaker(),
        "namespace": Namespace,
        "raise_exception": UnwritableCallable(raise_exception),
        "strftime_now": UnwritableCallable(_no_date) if date is None else Clock(date),
    }
    try:
        tree = environment.parse(source)
        _check_steady(tree, date)
        _mark_loops(tree)
        _weigh_compared(tree)
        tree.set_environment(environment)
        code = environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template does not compile: {error.message} (line {error.lineno})") from None
    except _RAISED_BY_COMPILER as error:
        # SecurityError: of what jinja computes. The others: of Python (a NUL, `{% break %}` outside of a loop).
        text = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise TokenizerError(f"the chat template does not compile: {text}") from None
    # A plain dict: every rendering copies it, and jinja's own chain of maps takes ten times as long.
    template = jinja2.Template.from_code(environment, code, dict(environment.globals))
    module = template.root_render_func.__globals__
    module["str"], module["escape"] = as_text, _escaped
    module["str_join"], module["markup_join"] = joining(module["str_join"]), joining(module["markup_join"])
    blocks = list(_generation_blocks(tree))
    captured = {
        id(block) for outer in tree.find_all(_CAPTURES) for block in _generation_blocks(outer) if block is not outer
    }
    return CompiledTemplate(source, tree, code, template, bool(blocks), any(id(block) in captured for block in blocks))


def _escaped(value: Any) -> markupsafe.Markup:
    weigh(value)
    return made(markupsafe.escape(value))  # type: ignore[no-any-return]


def _no_date(*_: Any) -> Any:
    raise jinja2.exceptions.SecurityError("strftime_now without a date")


def _check_steady(tree: nodes.Template, date: str | None) -> None:
    """Refuses templates that give another text in another run."""
    loaded = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    if "strftime_now" in loaded and date is None:
        today = json.dumps(Date.today().isoformat())
        raise TokenizerError(
            "the chat template writes today's date (strftime_now), so another day would give other bytes: add "
            f'"date": {today} to "input" in the config (in a chain written by hand: TextRules(date={today}))'
        )
    chance = ["lipsum"] if "lipsum" in loaded else []
    for node in tree.find_all(nodes.Filter):
        named = [each.value for each in node.args[:1] if node.name == "map" and isinstance(each, nodes.Const)]
        chance += [name for name in (node.name, *named) if name == "random"]
    if chance:
        raise TokenizerError(
            f"the chat template uses {chance[0]}, which gives another text in every run: take it out, or give another "
            "template (input.chat_template)"
        )


def _mark_loops(tree: nodes.Template) -> None:
    """Makes every loop report its items, at the top of its body, and when it begins and ends.

    With an item, it reports what the body costs: so much is paid for each round, and for each call of a macro. Nothing
    that is written changes.
    """
    captured = {id(loop) for outer in tree.find_all(_CAPTURES) for loop in outer.find_all(nodes.For)}
    costs = {id(node): nodes.Const(_cost(node)) for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))}
    for parent in [tree, *tree.find_all(nodes.Node)]:  # a list: what is put in is not visited
        for _, statements in parent.iter_fields():
            if isinstance(statements, list) and any(isinstance(node, nodes.For) for node in statements):
                statements[:] = [node for statement in statements for node in _reporting_loop(statement)]
    nothing, uncaptured = nodes.Const(None), nodes.Const(False)
    for loop in tree.find_all(nodes.For):
        item = nodes.Name(loop.target.name, "load") if isinstance(loop.target, nodes.Name) else nothing
        cost = costs[id(loop)]
        loop.body.insert(0, _call(MARK, loop.lineno, item, nodes.Const(id(loop) in captured), cost))
        if loop.test is not None:  # of an item that fails it, the body does not run
            paid = _call(MARK, loop.lineno, nothing, uncaptured, cost).node
            loop.test = nodes.And(nodes.Not(paid), loop.test).set_lineno(loop.lineno)
    bodies: list[Any] = [*tree.find_all((nodes.Macro, nodes.CallBlock))]
    for node in bodies:
        node.body.insert(0, _call(MARK, node.lineno, nothing, uncaptured, costs[id(node)]))


def _weigh_compared(tree: nodes.Template) -> None:
    """Has values measured that are compared with each other, or are keys."""

    def measured(value: nodes.Expr) -> nodes.Expr:
        if isinstance(value, nodes.Const):
            return value
        return nodes.Filter(value, WEIGHED, [], [], None, None, lineno=value.lineno)

    for compare in tree.find_all(nodes.Compare):
        if not isinstance(compare.expr, nodes.Const) and not all(isinstance(o.expr, nodes.Const) for o in compare.ops):
            compare.expr = measured(compare.expr)
            for operand in compare.ops:
                operand.expr = measured(operand.expr)
    for pair in tree.find_all(nodes.Pair):
        pair.key = measured(pair.key)


def _cost(node: nodes.Node) -> int:
    """Units of work that running the code in a node costs, without what its steps give."""
    return NODE * sum(1 for _ in node.find_all(nodes.Node))


def _reporting_loop(statement: nodes.Node) -> list[nodes.Node]:
    if not isinstance(statement, nodes.For):
        return [statement]
    return [_call(ENTER, statement.lineno), statement, _call(LEAVE, statement.lineno)]


def _call(name: str, lineno: int, *args: nodes.Expr) -> nodes.ExprStmt:
    call = nodes.Call(nodes.Name(name, "load"), list(args), [], None, None)
    return nodes.ExprStmt(call, lineno=lineno)


def _generation_blocks(tree: nodes.Node) -> Iterator[nodes.CallBlock]:
    for block in tree.find_all(nodes.CallBlock):
        if isinstance(block.call.node, nodes.Name) and block.call.node.name == GENERATION:
            yield block
