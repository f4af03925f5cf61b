"""The kernels under the address and undefined-behaviour sanitizers, on random inputs: the best instruction
set of this machine, against float64 and against `generic` (kernels/tests). All sets are the same templates,
and each compiles for minutes."""

from __future__ import annotations

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
FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fopenmp")  # fmt: skip


@pytest.mark.nightly
@pytest.mark.native
def test_random_inputs_stay_in_their_buffers_and_results_agree(tmp_path: Path) -> None:
    try:
        command = [*library_file.find_compiler(), *FLAGS]
    except library_file.CompilerError as error:
        pytest.skip(str(error))
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
            [str(program), subject, "1", str(cases)], capture_output=True, text=True, check=False
        )
        sys.stdout.write(run.stdout)
        assert run.returncode == 0, run.stdout + run.stderr[-3000:]
        assert subject in run.stdout
