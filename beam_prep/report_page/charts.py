"""Charts of the page, as SVG. They need matplotlib: `pip install 'beam-prep[report]'`."""

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from beam_prep.data.receipts import BORDERS

TRAINED, OTHER = "#0072b2", "#e69f00"
"""Blue and orange, which colour-blind people tell apart (Okabe and Ito, Color Universal Design, 2008)."""
_TEXT = "#010203"  # stands for the colour of the page's text, in light and in dark
_BARS = 20


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def lengths_chart(kept: Sequence[int], uncut: Sequence[int]) -> str:
    """The histogram of lengths, before and after rows were cut."""
    first = next(place for place, count in enumerate(uncut) if count)
    names = [f"{BORDERS[place]:,}" for place in range(first, len(uncut))]
    figure, axes = _figure(3.2)
    places = range(len(names))
    after = [*kept, *[0] * len(uncut)][first : len(uncut)]
    axes.bar(places, uncut[first:], width=0.9, color="none", edgecolor=OTHER, hatch="//", label="before rows were cut")
    axes.bar(places, after, width=0.6, color=TRAINED, label="as kept")
    axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
    axes.set_xlabel("tokens of a row, at least")
    axes.set_ylabel("rows")
    _legend(axes)
    return _svg(figure)


def trained_chart(counts: Mapping[str, tuple[int, int]]) -> str:
    """Bars of tokens, trained and not, of the largest entries.

    Args:
        counts: name -> (trained tokens, all tokens).
    """
    largest = sorted(counts.items(), key=lambda entry: -entry[1][1])[:_BARS][::-1]
    names = [name if len(name) <= 30 else f"{name[:29]}…" for name, _ in largest]
    trained = [part for _, (part, _) in largest]
    others = [whole - part for _, (part, whole) in largest]
    figure, axes = _figure(0.9 + 0.28 * len(names))
    places = range(len(names))
    axes.barh(places, trained, color=TRAINED, label="trained")
    axes.barh(places, others, left=trained, color="none", edgecolor=OTHER, hatch="//", label="not trained")
    axes.set_yticks(places, [_plain(name) for name in names])
    axes.set_xlabel("tokens")
    _legend(axes)
    return _svg(figure)


def seconds_chart(seconds: Mapping[str, float]) -> str:
    """Bars of the seconds that the steps took, of all workers together."""
    from matplotlib.ticker import AutoLocator, ScalarFormatter

    figure, axes = _figure(0.7 + 0.25 * len(seconds))
    names = list(seconds)[::-1]
    axes.barh(range(len(names)), [seconds[name] for name in names], color=TRAINED)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("seconds of all workers together")
    axes.xaxis.set_major_locator(AutoLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    return _svg(figure)


def _plain(text: str) -> str:
    """Text in which matplotlib sees no formula, and that a font can draw."""
    return "".join(char if char.isprintable() else "·" for char in text).replace("$", r"\$")


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, labelcolor=_TEXT)


def _figure(inches: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(7.5, inches), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(_TEXT)
    axes.tick_params(colors=_TEXT, labelsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(_TEXT)
        axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return figure, axes


def _svg(figure: Any) -> str:
    """The figure as an element for HTML, in the colours of the page; the same bytes each time."""
    from matplotlib import rc_context

    sink = io.StringIO()
    with rc_context({"svg.hashsalt": "beam_prep", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None})
    text = sink.getvalue()
    return text[text.index("<svg") :].replace(_TEXT, "currentColor")
