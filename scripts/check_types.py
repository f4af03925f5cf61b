"""Check the types with mypy: `python scripts/check_types.py [OPTION OF MYPY ...]`.

In a checkout the parts of the package lie beside forescribe/, see forescribe/__init__.py. mypy does not
evaluate that, so each file is passed to it with the name that it is imported by: asr/errors.py is
forescribe.asr.errors. Options and overrides are those of [tool.mypy] in pyproject.toml.
"""

from __future__ import annotations

import os
import sys

from module_map import PARTS, ROOT, dotted, sources
from mypy import build, main
from mypy.errors import CompileError
from mypy.fscache import FileSystemCache
from mypy.modulefinder import BuildSource
from mypy.util import FancyFormatter, count_stats, hard_exit

PROGRAMS = ("training", "benchmarks")
"""Folders beside the package that are checked too."""


def files() -> list[BuildSource]:
    """The files of the package and of the programs, each with its module's name."""
    paths = [path for part in (*PARTS, *PROGRAMS) for path in sources(part)]
    return [BuildSource(str(path.relative_to(ROOT)), dotted(path)) for path in paths]


def check(arguments: list[str]) -> int:
    """Print what mypy found. Returns the exit status: 1 with an error, 2 where mypy gave up."""
    os.chdir(ROOT)
    sys.setrecursionlimit(main.RECURSION_LIMIT)
    cache = FileSystemCache()
    # As the command's own main: types are looked up in the environment of this Python.
    _, options = main.process_options(arguments, require_targets=False, fscache=cache)
    options.fast_module_lookup = True  # a module of ours is found by its name, not by its folder
    formatter = FancyFormatter(sys.stdout, sys.stderr, options.hide_error_codes)
    found, messages, gave_up = files(), [], False

    def collect(file: str | None, new: list[str], serious: bool) -> None:
        messages.extend(new)

    try:
        build.build(found, options, None, collect, cache)
    except CompileError:
        gave_up = True
    for message in messages:
        print(formatter.colorize(message) if options.color_output else message)
    errors, _, in_files = count_stats(messages)
    if errors or gave_up:
        print(formatter.format_error(errors, in_files, len(found), blockers=gave_up))
        return 2 if gave_up else 1
    print(formatter.format_success(len(found)))
    return 0


if __name__ == "__main__":
    hard_exit(check(sys.argv[1:]))  # as the command does: freeing its trees takes 20 s
