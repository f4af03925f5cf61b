"""Mutants of the modules on which exactness rests, and the tests that must notice them.

    python scripts/mutate.py                     # all subjects, 12 mutants each
    python scripts/mutate.py round guards -n 40  # these, more of each
    python scripts/mutate.py round --only 7      # one mutant again, with pytest's output

A mutant differs from its module in one place: a comparison, a sign, `and` or `or`, a constant, a condition or
a call whose result nobody reads. Which places is drawn by a fixed seed, spread over the functions. The tests
of the subject run with each mutant, in a copy of the tree; a mutant with which all of them pass has survived,
and the exit status is 1. `EQUIVALENT` lists survivors that change nothing that a caller can see.

Every run is a fork of one process that has imported torch and the like already, which takes most of the time
of a short run. As many subjects as there are cores are tried at once.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 0
PATIENCE = 3
"""Times the run without a mutant, plus a minute: one that takes longer waits for ever, which is noticed."""

IMPORTED = (
    "torch",
    "transformers.integrations.hub_kernels",
    "transformers.generation",
    "sqlalchemy.orm",
    "pytest",
)
"""What every fork has from the beginning: nothing of ours, as that is what changes."""


@dataclass(frozen=True)
class Subject:
    """A module, and the tests that protect it, the quick ones first."""

    module: str
    tests: tuple[str, ...]


SUBJECTS = {
    "round": Subject(
        "speculative/rounds/round.py",
        (
            "tests/speculative/rounds/test_rounds.py",
            "tests/speculative/rounds/test_choice.py",
            "tests/speculative/rounds/test_graph.py",
            "tests/speculative/engine/test_guesses.py",
            "tests/speculative/engine/test_engine.py",
            "tests/speculative/engine/test_needs.py",
            "tests/speculative/rounds/test_sampling.py",
            "tests/speculative/rounds/test_noise.py",
            "tests/speculative/engine/test_periods.py",
        ),
    ),
    "periods": Subject(
        "speculative/engine/polls.py",
        (
            "tests/speculative/engine/test_periods.py",
            "tests/speculative/engine/test_engine.py",
            "tests/speculative/engine/test_runs.py",
            "tests/speculative/engine/test_faults.py",
            "tests/speculative/engine/test_stats.py",
            "tests/speculative/engine/test_confidence.py",
            "tests/speculative/engine/test_beams.py",
            "tests/speculative/rounds/test_sampling.py",
        ),
    ),
    "guards": Subject(
        "asr/decode/judge.py",
        (
            "tests/asr/decode/test_guards.py",
            "tests/asr/decode/test_hints.py",
            "tests/asr/decode/test_rests.py",
            "tests/asr/decode/test_fallback.py",
            "tests/asr/decode/test_faults.py",
            "tests/asr/decode/test_transcriber.py",
        ),
    ),
    "walk": Subject(
        "api/jobs/walk.py",
        (
            "tests/api/jobs/test_jobs.py",
            "tests/api/jobs/test_jobs_shared.py",
            "tests/api/jobs/test_jobs_machine.py",
            "tests/api/jobs/test_storage.py",
        ),
    ),
    "store": Subject(
        "api/jobs/store.py",
        (
            "tests/api/jobs/test_tables.py",
            "tests/api/jobs/test_storage.py",
            "tests/api/jobs/test_jobs_machine.py",
            "tests/api/jobs/test_queue.py",
            "tests/api/jobs/test_jobs.py",
        ),
    ),
    "reach": Subject("api/jobs/reach.py", ("tests/api/jobs/test_reach.py",)),
    "database": Subject(
        "api/jobs/database.py",
        (
            "tests/api/jobs/test_reach.py",
            "tests/api/jobs/test_storage.py",
            "tests/api/jobs/test_folders.py",
        ),
    ),
    "files": Subject(
        "api/jobs/files.py",
        (
            "tests/api/jobs/test_files.py",
            "tests/api/jobs/test_storage.py",
            "tests/api/jobs/test_jobs_on_objects.py",
        ),
    ),
    "ledger": Subject(
        "asr/batch/ledger.py",
        (
            "tests/asr/batch/test_fingerprint.py",
            "tests/asr/batch/test_outputs.py",
            "tests/asr/batch/test_results.py",
            "tests/asr/batch/remote/test_remote_batch.py",
        ),
    ),
    "word_speakers": Subject(
        "diarize/attribution.py",
        (
            "tests/diarize/attribution/test_word_speakers.py",
            "tests/diarize/attribution/test_transcript_speakers.py",
        ),
    ),
    "stores": Subject(
        "asr/storage/store.py",
        (
            "tests/asr/storage/test_stores.py",
            "tests/asr/storage/test_opening_stores.py",
            "tests/asr/storage/test_web_backend.py",
            "tests/asr/storage/test_hub_backend.py",
        ),
    ),
}

UNSEEN = ("strict", "usedforsecurity")
"""Arguments that change no result."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("files", "_copy", "1 -> 2 in shutil.copyfileobj(source, file, 1 << 20)"): "parts of any size",
    (
        "files",
        "_copy",
        "20 -> 21 in shutil.copyfileobj(source, file, 1 << 20)",
    ): "parts of any size",
    (
        "guards",
        "_first_tokens",
        "token < end -> (token <= end)",
    ): "the end token is an answer's last (`commit` of round.py), and no text is behind it to count",
    (
        "guards",
        "answer_of",
        "True -> False in return Answer(result, Judgement.KEEP, None, (True, mean))",
    ): "without guards no answer is decoded again, and ranks are compared of two",
    (
        "ledger",
        "Record",
        "0 -> 1 in attempt: int = 0",
    ): "every record of a manifest names its attempt",
    (
        "ledger",
        "Destination.exists",
        "False -> True in return False",
    ): "without records nobody asks",
    (
        "periods",
        "Period",
        "False -> True in sampling: bool = False",
    ): "`begin` makes the period of which rounds are part",
    (
        "periods",
        "Periods.read",
        "2 -> 3 in snapshot = Snapshot(numbers[:batch], numbers[batch : 2 * batch], totals)",
    ): "lengths are read by row, and what follows the last row's is not",
    (
        "periods",
        "Periods.end",
        "table.texts > 1 -> (table.texts >= 1)",
    ): "with one text for each row a length is multiplied by one",
    (
        "guards",
        "_search_of",
        "mean_logprob(answer.result.logprobs) > DOUBTFUL_LOGPROB -> (mean_logprob(answer.result.logprobs) >= "
        "DOUBTFUL_LOGPROB)",
    ): "a mean of exactly this number may count either way",
    (
        "guards",
        "_spoken",
        "end - start >= CLICK -> (end - start > CLICK)",
    ): "a run of exactly this length may count either way",
    (
        "reach",
        "Reach.asking",
        "each > self._answered_s -> (each >= self._answered_s)",
    ): "a request that began at the very tick of an answer may count either way",
    (
        "reach",
        "Reach.asking",
        "now - since_s > self._slow_s -> (now - since_s >= self._slow_s)",
    ): "a silence of exactly this length may count either way",
    (
        "reach",
        "Reach.asking",
        "now - each < self._look_s -> (now - each <= self._look_s)",
    ): "a look of exactly this age may count either way",
    (
        "store",
        "JobTable.set_progress",
        '3 -> 4 in self._append(tx, id, "progress", {"done_s": round(done_s, 3)})',
    ): "a digit more of a second is the same progress",
    (
        "store",
        "Store.sweep",
        "FOLDERS.c.at <= database_time(tx) - older_s -> (FOLDERS.c.at < database_time(tx) - older_s)",
    ): "a folder of exactly this age may be swept either time",
    (
        "stores",
        "Store.fetch",
        "2 -> 3 in time.sleep(random.random() * PAUSE_S * 2**attempt)",
    ): "a pause of any length",
    (
        "walk",
        "Run.__init__",
        "False -> True in self.alone = False",
    ): "who claims a job sets it before its work begins",
    (
        "word_speakers",
        "_SpeakerTurns.__init__",
        "1 -> 2 in self.turns = [np.array(rows).reshape(-1, 3) for rows in own.values()]",
    ): "numpy infers a size from any negative number",
    (
        "word_speakers",
        "_boundaries",
        "pauses > COSTS.pause -> (pauses >= COSTS.pause)",
    ): "a pause of exactly 0.35 s may count either way",
    (
        "word_speakers",
        "_SpeakerTurns.evidence",
        '0 -> 1 in following = np.searchsorted(turns[:, 1], spans[:, 0], side="right")',
    ): "a turn that ends within the word overlaps it, and then distances are not read",
}
"""Survivors that are no fault: (subject, function, change) to the reason."""


# Mutants


@dataclass(frozen=True)
class Mutant:
    """`source` differs from the module in `change`, at `line` of `function`."""

    function: str
    line: int
    change: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of the places."""
    found = []
    for function, node in places(ast.parse(source), ""):
        for old, new in replacements(node):
            start, end = span(source, old)
            change = " ".join(f"{source[start:end]} -> {new}".split())
            if isinstance(old, ast.Constant):
                change += f" in {source.splitlines()[old.lineno - 1].strip()}"
            changed = source[:start] + new + source[end:]
            found.append(Mutant(function, old.lineno, change, changed))
    return found


def places(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """The nodes in the bodies of functions, with the function's name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = f"{function}.{node.name}".removeprefix(".")
        for part in node.body:
            yield from places(part, name)
        return
    if isinstance(node, ast.keyword) and node.arg in UNSEEN:
        return
    if function:
        yield function, node
    for child in ast.iter_child_nodes(node):
        yield from places(child, function)


SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes to replace, with their new text."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in SWAPS:
            yield node, f"({ast.unparse(left)} {SWAPS[type(op)]} {ast.unparse(right)})"
        case ast.BinOp(left, op, right) if type(op) in SWAPS and not (texts(left) or texts(right)):
            yield node, f"(({ast.unparse(left)}) {SWAPS[type(op)]} ({ast.unparse(right)}))"
        case ast.BoolOp(op, values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield node, f"({other.join(f'({ast.unparse(value)})' for value in values)})"
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(bool(value)):
            yield node, str(not value)
        case ast.Constant(int(value)):
            yield node, str(value + 1)
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() as test):
            yield test, f"(not {ast.unparse(test)})"
        case ast.IfExp(ast.Name() | ast.Attribute() | ast.Call() as test):
            yield test, f"(not {ast.unparse(test)})"
        case ast.Expr(ast.Call() | ast.Await()):
            yield node, "pass"


def texts(node: ast.expr) -> bool:
    """Whether texts, types or paths are joined: no arithmetic."""
    return isinstance(node, ast.JoinedStr) or any(
        isinstance(part, ast.Constant) and (part.value is None or isinstance(part.value, str))
        for part in ast.walk(node)
    )


def span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where the node stands in the text."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        return len(b"".join(lines[: line - 1]).decode()) + len(lines[line - 1][:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def drawn(found: list[Mutant], count: int) -> list[Mutant]:
    """`count` of them: one of each function in turn, functions and places in an order drawn by the seed."""
    chance = random.Random(SEED)
    functions: dict[str, list[Mutant]] = {}
    for mutant in found:
        functions.setdefault(mutant.function, []).append(mutant)
    queues = list(functions.values())
    chance.shuffle(queues)
    for queue in queues:
        chance.shuffle(queue)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(queues):
        chosen += [queue.pop() for queue in queues if queue]
    return chosen[:count]


# Runs


def copied(folder: Path) -> Path:
    """The tree, with links to the environment and to the kernels."""
    tree = folder / "tree"
    left_out = shutil.ignore_patterns(".git", ".venv", ".uv", ".editor", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
    return tree


def run(tree: Path, tests: tuple[str, ...], log: Path, limit_s: float) -> str:
    """What becomes of the tests in the tree, in a fork of this process: passed, failed or late."""
    child = os.fork()
    if child == 0:
        try:
            run_here(tree, tests, log)
        except BaseException:
            traceback.print_exc()
        os._exit(70)  # without the parent's clean-up
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "late"


def run_here(tree: Path, tests: tuple[str, ...], log: Path) -> None:
    """Runs the tests in this process and ends it with their status."""
    os.setsid()
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(told, 1)
    os.dup2(told, 2)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    import pytest

    known = (
        "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
    )
    given = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", known]
    status = pytest.main([*given, *tests])
    sys.stdout.flush()
    os._exit(int(status))


def write(path: Path, source: str, age: int) -> None:
    """Each with a time of its own: Python tells stale bytecode by time and length."""
    path.write_text(source, encoding="utf-8")
    os.utime(path, (age, age))


def check(name: str, count: int, only: int | None) -> list[str]:
    """Runs the mutants of one subject, in a tree of its own, and prints a line for each; the survivors."""
    with tempfile.TemporaryDirectory() as folder:
        return check_in(copied(Path(folder)), name, SUBJECTS[name], count, only)


def check_in(tree: Path, name: str, subject: Subject, count: int, only: int | None) -> list[str]:
    path, log = tree / subject.module, tree.parent / "log"
    source = path.read_text(encoding="utf-8")
    began = time.monotonic()
    if run(tree, subject.tests, log, 3600) != "passed":
        sys.exit(f"mutations: the tests of {name} fail without a mutant:\n{log.read_text()}")
    alone = time.monotonic() - began
    print(f"{name}: {subject.module}, {alone:.0f} s without a mutant", flush=True)
    survivors = []
    for number, mutant in enumerate(drawn(mutants(source), count)):
        if only not in (None, number):
            continue
        write(path, mutant.source, 2 * number + 1)
        began = time.monotonic()
        became = run(tree, subject.tests, log, PATIENCE * alone + 60)
        write(path, source, 2 * number + 2)
        reason = EQUIVALENT.get((name, mutant.function, mutant.change))
        word = {"failed": "killed", "late": "late"}.get(
            became, "equivalent" if reason else "SURVIVED"
        )
        line = f"  {name} {number:2d} {word:10s} {mutant.function}, line {mutant.line}: {mutant.change}"
        print(f"{line}  [{time.monotonic() - began:.0f} s]", flush=True)
        if only is not None:
            print(log.read_text())
        if word == "SURVIVED":
            survivors.append(line)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("-n", type=int, default=12, help="mutants of each (12)")
    parser.add_argument("--only", type=int, help="this one alone, with pytest's output")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in IMPORTED:
        __import__(module)
    one = partial(check, count=given.n, only=given.only)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as lanes:
        survivors = list(chain(*lanes.map(one, given.subjects or SUBJECTS)))
    print(f"{len(survivors)} survived", *survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
