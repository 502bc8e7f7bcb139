"""What is measured: jobs, the tools that do them, and what a run of a tool leaves in the log."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _measure import BenchmarkError, Usage, measure, say

HERE = Path(__file__).resolve().parent
# The versions with which peer_trl.py was written. PyPI has no build of torch for Linux on x86 without CUDA: 5 GB.
TRL = (
    *("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0", "accelerate==1.15.0", "torch==2.13.0"),
    *("tokenizers==0.23.3", "pyarrow==26.0.1", "jinja2==3.1.6"),
)
# Of a run.json: what is not about how the records were worked on.
_HOW_MADE = ("encoded_by_", "rendered_")
"""How the names of counts begin that say how records were made."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a run wrote.

    Attributes:
        documents: records that are in the rows.
        rows: as many, or fewer where they are packed.
        tokens, trained: of all rows.
        left_out: records dropped or rejected.
    """

    documents: int
    rows: int
    tokens: int
    trained: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A run of a tool. `how`: how it ran, in words; `notes`: what else it said."""

    usage: Usage
    written: Written
    how: str
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where tools find things.

    Attributes:
        peer_python: of an environment with TRL; None: the benchmark's own.
        processes: of a peer.
        work: a folder for outputs.
    """

    shared: Path
    tokenizer: Path
    cache: Path
    peer_python: Path | None
    processes: int
    work: Path


Tool = Callable[[Path, Path, Place], Done]
"""(corpus, output, place) -> a run."""


def ours(config: str, *options: str, cores: Collection[int] = (), code: Path | None = None) -> Tool:
    """`beam-prep run` as a user calls it: the runner is not named, unless the options do.

    Args:
        config: the name of a file in configs/.
        options: of `beam-prep run`, in addition.
        cores, code: see `measure`.
    """

    def run(corpus: Path, output: Path, place: Place) -> Done:
        command = [sys.executable, "-m", "beam_prep.cli", "run", str(corpus), "-o", str(output)]
        command += ["-c", str(HERE / "configs" / f"{config}.json"), "--tokenizer_path", str(place.tokenizer)]
        usage = measure([*command, *options], place.work / "ours.log", cores, code)
        run = json.loads((output / "run.json").read_bytes())
        manifest = json.loads((output / "manifest.json").read_bytes())
        totals, ledger = manifest["totals"], manifest["ledger"]
        tokens = sum(totals["tokens"].values())
        written = Written(
            totals["packing"]["rows"] if "packing" in totals else totals["rows"],
            totals["rows"],
            tokens,
            sum(totals["trained"].values()) if totals["trained"] else tokens,
            sum(ledger["dropped"].values()) + sum(ledger["rejected"].values()),
        )
        notes = {key: value for key, value in run.items() if key.startswith(_HOW_MADE)}
        return Done(usage, written, run["how"].removeprefix("runner: "), notes)

    return run


def _datasets(corpus: Path, output: Path, place: Place) -> Done:
    script = place.shared / "bench" / "peer_hf_datasets.py"
    return _mapped([sys.executable, str(script)], corpus, output, place)


def _text_map(corpus: Path, output: Path, place: Place) -> Done:
    return _mapped([sys.executable, str(HERE / "peer_text.py")], corpus, output, place)


def _trl(corpus: Path, output: Path, place: Place) -> Done:
    python = place.peer_python or trl_python(place.cache)
    # Losses on the assistant alone need a template that says where it speaks.
    mode = "assistant" if _marks_the_assistant(place.tokenizer) else "lm"
    script = place.shared / "bench" / "peer_trl.py"
    return _mapped([str(python), str(script)], corpus, output, place, "--mode", mode, "--packing", "bfd")


def _mapped(command: list[str], corpus: Path, output: Path, place: Place, *options: str) -> Done:
    """Scripts that take INPUT OUTDIR TOKENIZER_DIR PROCESSES, and print what they did."""
    place_of = [str(corpus), str(output), str(place.tokenizer), str(place.processes)]
    usage, result = run_script([*command, *place_of, *options], place)
    how = f"{place.processes} processes" + (f", {' '.join(options)}" if options else "")
    return Done(usage, _written(result), how, result)


def _gigatoken(corpus: Path, output: Path, place: Place) -> Done:
    script = HERE / "peer_gigatoken.py"
    usage, result = run_script([sys.executable, str(script), str(corpus), str(place.tokenizer)], place)
    return Done(usage, _written(result), "one process, nothing written", result)


def run_script(command: list[str], place: Place) -> tuple[Usage, dict[str, Any]]:
    """Runs a peer's script, and reads the last line that it printed."""
    log = place.work / "peer.log"
    usage = measure(command, log)
    return usage, json.loads(log.read_text().splitlines()[-1])


def _written(result: Mapping[str, Any]) -> Written:
    documents = result["rows_in"] if "rows_in" in result else result["rows"]
    tokens = result["tokens"]
    return Written(documents, result.get("rows_out", documents), tokens, result.get("label_tokens", tokens))


def marking(place: Place) -> Place:
    """The place with a copy of the tokenizer whose template has `{% generation %}`, where there is such a variant."""
    variant = place.tokenizer / "chat_template_generation.jinja"
    if _marks_the_assistant(place.tokenizer) or not variant.exists():
        return place
    copy = place.cache / f"{place.tokenizer.name}-generation"
    shutil.copytree(place.tokenizer, copy, dirs_exist_ok=True)
    shutil.copyfile(variant, copy / "chat_template.jinja")
    return replace(place, tokenizer=copy)


def _marks_the_assistant(tokenizer: Path) -> bool:
    """Whether the chat template has {% generation %}."""
    path = tokenizer / "chat_template.jinja"
    config = json.loads((tokenizer / "tokenizer_config.json").read_bytes())
    template = path.read_text(encoding="utf-8") if path.exists() else str(config.get("chat_template"))
    return re.search(r"\{%-?\s*generation\b", template) is not None


def trl_python(cache: Path) -> Path:
    """The Python of an environment with TRL, made unless it is there. About 5 GB, and some minutes.

    Raises:
        BenchmarkError: it cannot be made.
    """
    folder, wanted = cache / "venv_trl", "\n".join(TRL)
    python, mark = folder / "bin" / "python", folder / "installed.txt"
    if mark.is_file() and mark.read_text() == wanted:
        return python
    say(f"making {folder}: {', '.join(TRL)} (about 5 GB)")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*pip, *TRL], check=True)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(
            f"no environment with TRL in {folder} (exit code {error.returncode}): give --peer_python, leave the job "
            "chat_trl out of --jobs, or pass --skip_peers"
        ) from None
    mark.write_text(wanted)
    return python


OURS: dict[str, Tool] = {
    f"beam-prep {name}": ours(name) for name in ("chat_last", "chat_role", "chat_packed", "chat_tfrecord", "text")
}
MAP, TEXT_MAP, PACKED, LIMIT = "peer_hf_datasets.py", "peer_text.py", "peer_trl.py", "gigatoken encode_files"
PEERS: dict[str, Tool] = {MAP: _datasets, TEXT_MAP: _text_map, PACKED: _trl, LIMIT: _gigatoken}
TOOLS = OURS | PEERS


@dataclass(frozen=True, slots=True)
class Job:
    """Tools that run in turns on the same corpora. (Five runs where a bound is below 1.3, else three.)

    Attributes:
        corpus: `chat` or `text`.
        sizes: of the corpora, in MB.
        repeats: runs of each tool.
        tools: names in `TOOLS`.
        caption: what is compared, and in what the tools differ.
        marked: with a template that marks what the assistant says, where there is one.
        same_rows: our column -> that of the tool after the first: their rows are compared. Empty: they are not.
        cold: the corpus is not in the page cache.
    """

    corpus: str
    sizes: tuple[float, ...]
    repeats: int
    tools: tuple[str, ...]
    caption: str
    same_rows: dict[str, str] = field(default_factory=dict)
    marked: bool = False
    cold: bool = False


JOBS = {
    "chat_last": Job(
        "chat",
        (100, 200, 800),
        3,
        ("beam-prep chat_last", MAP),
        "Entire conversations, the last message trained, cut at 2,048 tokens, labels unshifted, to `bin`; the peer is "
        "`datasets.map` and `save_to_disk`. Both write the same rows, which are compared; the peer writes an "
        "attention mask as well, ours a manifest with checksums.",
        {"input_ids": "input_ids", "labels": "labels"},
    ),
    "chat_cold": Job(
        "chat",
        (200, 800),
        3,
        ("beam-prep chat_last", MAP),
        "The same, with the input on the disk alone: the page cache has none of it when a run begins.",
        cold=True,
    ),
    "chat_growth": Job(
        "chat",
        (100, 200, 800),
        5,
        ("beam-prep chat_last",),
        "The same job, ours alone: how time and memory grow with the input.",
    ),
    "chat_role": Job(
        "chat",
        (200, 800),
        5,
        ("beam-prep chat_last", "beam-prep chat_role"),
        "The same job with all messages of the assistant trained (`$role`) instead of the last (`$last`).",
    ),
    "chat_trl": Job(
        "chat",
        (200,),
        3,
        ("beam-prep chat_packed", PACKED),
        "All messages of the assistant trained, packed (`bfd`) to 2,048 tokens, to `arrow`; the peer is TRL's "
        "`SFTTrainer` (`--mode assistant`), built with a tiny model, and `save_to_disk`. Both take the template with "
        "`{% generation %}` that is beside the tokenizer's own: without it TRL cannot tell what the assistant says. "
        "The trained tokens are the same. Ours packs groups of 1,000 rows, as TRL does; their borders differ, and so "
        "may the number of packed rows.",
        marked=True,
    ),
    "text": Job(
        "text",
        (200, 800),
        3,
        ("beam-prep text", TEXT_MAP),
        "Pretraining: every document uncut and followed by EOS, to `bin` in uint32. The peer is `datasets.map` and "
        "`save_to_disk`, whose rows are compared with ours.",
        {"sequence": "input_ids"},
    ),
    "text_limit": Job(
        "text",
        (200, 800, 4000),
        5,
        ("beam-prep text", LIMIT),
        "The same job beside a limit, not a peer: gigatoken's `encode_files`, from the same file to ids in memory, on "
        "all cores, without EOS; nothing is written. For 4 GB it needs 12 GB of memory.",
    ),
    "chat_tfrecord": Job(
        "chat",
        (200,),
        5,
        ("beam-prep chat_last", "beam-prep chat_tfrecord"),
        "The job `chat_last`, to `tfrecord` instead of `bin`.",
    ),
}
