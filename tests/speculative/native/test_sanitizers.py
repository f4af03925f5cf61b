"""The kernels under the address and undefined-behaviour sanitizers, on random shapes, against float64."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native import kernel_build, kernel_files

CASES = 60
FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all")  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("FORESCRIBE_SANITIZERS"),
    reason="FORESCRIBE_SANITIZERS is not set: four instruction sets compile for many minutes",
)
def test_random_shapes_stay_in_their_buffers_and_close_to_float64(tmp_path: Path) -> None:
    try:
        command = [*kernel_build.compiler(), *FLAGS]
    except LoadError as error:
        pytest.skip(str(error))
    isas = kernel_build.instruction_sets()
    has = [f"-DFS_HAS_{name.upper()}" for name in isas]
    jobs = [
        [*command, *flags, f"-DFS_ISA={name}", "-c", str(kernel_files.SOURCES / "numeric.cpp")]
        for name, flags in isas.items()
    ]
    jobs.append([*command, *has, "-c", str(kernel_files.SOURCES / "dispatch.cpp")])
    jobs.append([*command, "-c", str(kernel_files.FOLDER / "tests" / "fuzz.cpp")])
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
    run = subprocess.run([str(program), "1", str(CASES)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "largest error" in run.stdout
