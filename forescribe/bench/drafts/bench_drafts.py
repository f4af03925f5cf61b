"""Compares drafters on the same weights, in one run.

    result = measured(Options(audio=("samples/memo.flac",)), say=print)
    print(result.text())

Every drafter takes turns with plain decoding at each batch size. Knows the order of the measurements and
the result; nothing of commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from forescribe.asr.errors import ForescribeError

from .. import provenance
from . import drafts_table
from .draft_options import Material, Options
from .draft_rows import DraftRow, DraftRun, rows_of


@dataclass(frozen=True)
class Result:
    """All rows, plain decoding of each batch size first, and what they were measured on."""

    options: Options
    material: Material
    rows: Sequence[DraftRow]

    @property
    def differing(self) -> list[DraftRow]:
        """Rows whose tokens are not all those of plain decoding."""
        return [row for row in self.rows if row.error is None and not row.exact]

    def text(self) -> str:
        """Return the tables."""
        kernels = provenance.instruction_set()
        head = [
            self.material.text,
            f"{provenance.device()['cpu']}, "
            + ("no native kernels" if kernels is None else f"native kernels for {kernels}"),
            "x plain: whole run over plain decoding at the same batch size; decoding x: rounds alone; price: "
            "of a proposal, in plain rounds\n",
        ]
        parts = [
            drafts_table.results(self.rows),
            drafts_table.depths(self.rows),
            drafts_table.fastest(self.rows),
        ]
        return "\n".join(head) + "\n" + "\n\n".join(part for part in parts if part)

    def record(self, program: str) -> dict[str, object]:
        """Return the full JSON record; `program` as in `provenance.record`."""
        return {
            "benchmark": "drafts",
            **provenance.record(program),
            "options": asdict(self.options),
            "native_kernels": provenance.instruction_set(),
            "material": self.material.record,
            "rows": [asdict(row) for row in self.rows],
        }


def measured(options: Options, say: Callable[[str], None]) -> Result:
    """Run all drafters; `say` gets a line per turn. Nothing is downloaded.

    Raises UsageError and the errors of loading; ForescribeError if plain decoding fails.
    """
    if options.audio:
        from .speech_drafts import speech_runs as runs_of
    else:
        from .text_drafts import text_runs as runs_of
    material, runs = runs_of(options, say)
    check(runs)
    return Result(options, material, rows_of(runs))


def check(runs: Sequence[DraftRun]) -> None:
    """Raise ForescribeError where there is nothing to compare with."""
    if runs[0].error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {runs[0].error}")
