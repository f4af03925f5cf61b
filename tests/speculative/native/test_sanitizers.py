"""The kernels under the address, undefined-behaviour and thread sanitizers, on random inputs: the best
instruction set of this machine, against float64 and against `generic` (kernels/tests). All sets are the same
templates, and each compiles for minutes.

Threads are watched by Clang, whose OpenMP tells the sanitizer of its barriers (Archer); GCC's does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forescribe.speculative.native import library_file
from forescribe.speculative.native.library import load

CASES = {
    "whisper": 20,
    "decoders": 60,
    "encoders": 60,
    "choices": 1000,
    "alignments": 300,
    "arguments": 1,
}
FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-fopenmp")
BUFFERS = ("-Wno-psabi", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

CLANG = "clang++"


def buffers() -> tuple[list[str], int, dict[str, str]]:
    """The compiler and its options, the share of the cases, and variables for the program."""
    try:
        return [*library_file.find_compiler(), *FLAGS, *BUFFERS], 1, {}
    except library_file.CompilerError as error:
        pytest.skip(str(error))


def threads() -> tuple[list[str], int, dict[str, str]]:
    """The same. Each case takes ten times as long."""
    archer = next(iter(Path("/usr/lib").glob("llvm-*/lib/libarcher.so")), None)
    if shutil.which(CLANG) is None or archer is None:
        pytest.skip("needs Clang with its OpenMP (Debian: clang libclang-rt-dev libomp-dev)")
    environment = {
        "OMP_NUM_THREADS": "4",
        "OMP_TOOL_LIBRARIES": str(archer),
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 halt_on_error=1",
    }
    return [CLANG, *FLAGS, "-fsanitize=thread"], 10, environment


@pytest.mark.nightly
@pytest.mark.native
@pytest.mark.parametrize("watched", [buffers, threads])
def test_random_inputs_harm_nothing_and_results_agree(tmp_path: Path, watched) -> None:
    command, share, environment = watched()
    best, flags = load().instruction_sets()[0], library_file.instruction_sets()
    isas = {name: flags[name] for name in dict.fromkeys((best, "generic"))}
    has = [f"-DFS_HAS_{name.upper()}" for name in isas]
    jobs = [
        [*command, *flags, f"-DFS_ISA={name}", "-c", str(library_file.SOURCES / "numeric.cpp")]
        for name, flags in isas.items()
    ]
    jobs.append([*command, *has, "-c", str(library_file.SOURCES / "dispatch.cpp")])
    tests = sorted((library_file.FOLDER / "tests").glob("*.cpp"))
    jobs += [[*command, "-c", str(path)] for path in tests]
    objects = [tmp_path / f"{i}.o" for i in range(len(jobs))]
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda job: subprocess.run([*job[0], "-o", str(job[1])], check=True),
                zip(jobs, objects, strict=True),
            )
        )
    program = tmp_path / "fuzz"
    subprocess.run([*command, *map(str, objects), "-o", str(program)], check=True)
    for subject, cases in CASES.items():
        run = subprocess.run(
            [str(program), subject, "1", str(max(1, cases // share))],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        sys.stdout.write(run.stdout)
        assert run.returncode == 0, run.stdout + run.stderr[-3000:]
        assert subject in run.stdout
