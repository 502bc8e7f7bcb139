"""The process that answers for the reference: what it says is what is said without it, whatever becomes of it."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beam_prep import Tokenizer
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]

START = """
import os, signal, sys
from beam_prep import answering
from beam_prep.core.encoding import asking


def process(askers, first=iter(())):
    found = answering.AnsweringProcess(askers, first)
    asking.answered_by(found)
    return found


def forked(asker, found, say):
    read, write = os.pipe()
    if os.fork() == 0:
        found.become(asker)
        os.write(write, repr(say()).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        return pipe.read()

"""


def said(code: str, *words: str) -> list[str]:
    """The lines that a program prints."""
    command = [sys.executable, "-c", START + code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_another_process_calls_the_function() -> None:
    code = "process(1); pid = asking.answer(os.getpid); print(pid != os.getpid(), asking.answer(os.getpid) == pid)"
    assert said(code) == ["True True"]


def test_it_answers_before_it_has_prepared_all() -> None:
    """Else whoever asks would wait for what it does not need."""
    code = "process(1, iter(int, 1)); print(asking.answer(max, 3, 5))"  # steps without an end
    assert said(code) == ["5"]


def test_each_fork_asks_by_a_pipe_of_its_own() -> None:
    code = """
found = process(3)
print(forked(1, found, lambda: asking.answer(pow, 2, 5)), forked(2, found, lambda: asking.answer(pow, 2, 6)))
print(asking.answer(pow, 2, 7), asking.is_another())
"""
    assert said(code) == ["32 64", "128 True"]


def test_what_is_asked_and_said_may_be_larger_than_a_pipe() -> None:
    code = "process(1); text = 'x' * 10_000_000; print(asking.answer(str.upper, text) == text.upper())"
    assert said(code) == ["True"]


def test_who_asks_for_much_gets_a_process_of_its_own() -> None:
    """One alone would keep the others waiting."""
    code = """
found = process(4)
first = asking.answer(os.getpid)
for asker, size in ((1, 9_000_000), (2, 10), (3, 9_000_000)):
    print(forked(asker, found, lambda: (asking.answer(len, "x" * size), asking.answer(os.getpid) == first)))
print(asking.answer(os.getpid) == first)
"""
    assert said(code) == ["(9000000, False)", "(10, True)", "(9000000, False)", "True"]


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(asking.answer(os.getpid), signal.SIGKILL)",
        "os.kill(asking.answer(os.getpid), signal.SIGTERM)",
        "asking.answer_here(); asking.end_unasked()",
        "found.end()",
        "found.become(7)",  # for which there is no pipe
    ],
)
def test_who_asks_answers_itself_when_there_is_no_other(end: str) -> None:
    code = f"found = process(1); {end}; print(asking.answer(os.getpid) == os.getpid(), asking.is_another())"
    assert said(code) == ["True False"]


def test_an_error_is_that_of_the_function() -> None:
    code = """
process(1)
try:
    asking.answer(int, "two")
except ValueError as error:
    print(error)
print(asking.answer(os.getpid) == os.getpid())
"""
    assert said(code) == ["invalid literal for int() with base 10: 'two'", "True"]


def test_nothing_of_it_is_left_when_it_was_ended() -> None:
    code = """
found = process(2)
forked(1, found, lambda: asking.answer(len, "x" * 9_000_000))
found.end()
os.wait()  # the fork
try:
    os.wait()
except ChildProcessError:
    print("no child")
"""
    assert said(code) == ["no child"]


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_one() -> None:
    code = """
def stop(*given):
    raise KeyboardInterrupt


process(1)
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    asking.answer(signal.pause)
except KeyboardInterrupt:
    print(asking.answer(max, 3, 5))
"""
    assert said(code) == ["5"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it(number: signal.Signals) -> None:
    """What it prints to is closed when no process has it any more."""
    code = START + f"process(20); asking.answer(os.getpid); os.kill(os.getpid(), {int(number)})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode == -number


REFERENCE = """
import json
from beam_prep.core.encoding import tokenizer as module
from beam_prep.core.encoding.spans import CharSpans
from beam_prep.core.encoding.token_bytes import token_bytes
import numpy as np

path = sys.argv[1]
texts = json.loads(sys.argv[2])
spans = CharSpans(*(np.array(each) for each in ([0, 1, 1], [1, 0, 2], [4, 2, 5])))


def all_of(tokenizer):
    ids = tokenizer.encode(texts, True)
    return repr([
        ids.to_lists(), tokenizer.encode([], False).to_lists(), tokenizer.encode_spans(texts, False, spans),
        tokenizer.makeup, tokenizer.pieces(ids.flat.tolist()), token_bytes(tokenizer), tokenizer.pad_id,
        tokenizer.controls, sorted(tokenizer.special_ids),
    ])


answering.begin(path, 1)
tokenizer = answering.resolved(path)
other, loaded = all_of(tokenizer), module._loaded.cache_info().currsize
asking.answer_here()
token_bytes.cache_clear()
module._makeup.cache_clear()
print(other == all_of(tokenizer), loaded, module._loaded.cache_info().currsize)
"""
TEXTS = ["Hello there, 3.14!", "  Grüße \U0001f600 \x00 e\u0301", "", "<|im_end|>a<|im_end|>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tokenizer, which transformers is not asked for."""
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.load(ROOT / "examples" / "tokenizer").save(folder)
    return folder


def test_the_reference_says_the_same_from_there(tokenizer: Path) -> None:
    """Ids, spans, texts of tokens, and what it is made of; and this process has not loaded it."""
    assert said(REFERENCE, str(tokenizer), json.dumps(TEXTS)) == ["True 0 1"]


@pytest.mark.parametrize(
    ("text", "full", "loads"),
    [("plain", False, 0), ("plain", True, 1), ("a\u0301 o\u0308", False, 1)],
    ids=["few", "all of them, too", "not normalised"],
)
def test_workers_share_the_reference_where_it_encodes_many_texts(
    tmp_path: Path, text: str, full: bool, loads: int
) -> None:
    """It is loaded before the others are forked, and the other process ends."""
    normalising = shutil.copytree(ROOT / "examples" / "tokenizer", tmp_path / "tokenizer")
    source = json.loads((normalising / "tokenizer.json").read_text())
    (normalising / "tokenizer.json").write_text(json.dumps({**source, "normalizer": {"type": "NFC"}}))
    tokenizer = Tokenizer.load(normalising).save(tmp_path / "saved").folder
    code = f"""
from beam_prep.core.encoding import tokenizer as module
from beam_prep.core.encoding.backends import choose

process = answering.begin(sys.argv[1], 1)
print(choose(answering.resolved(sys.argv[1]), "auto", [{text!r}] * 8, full={full})[0])
print(module._loaded.cache_info().currsize, asking.is_another())
"""
    assert said(code, str(tokenizer)) == ["gigatoken", f"{loads} {not loads}"]


def test_it_does_without_where_too_many_files_are_open(tokenizer: Path) -> None:
    code = """
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print(answering.begin(sys.argv[1], 100), asking.is_another())
"""
    assert said(code, str(tokenizer)) == ["None False"]


def test_a_tokenizer_that_cannot_be_read_is_told_by_who_needs_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    code = "answering.begin(sys.argv[1], 1); print(answering.resolved(sys.argv[1]), asking.answer(max, 3, 5))"
    assert said(code, str(tmp_path)) == ["None 5"]
