"""What tests of the operator run in children, in place of a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from forescribe.asr.child_process import Begin
from forescribe.asr.decode.options import Outcome
from forescribe.asr.errors import CapacityError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span
from forescribe.asr.records.sources import Source


def each(begin: Begin, order: object, sources: Sequence[Source]) -> None:
    """Succeeds, except with what is called poison."""
    for source in sources:
        begin(source.path)
        if "poison" in source.path:
            os.kill(os.getpid(), signal.SIGKILL)
        text = Transcript((), 32000, Coverage((Span(0, 32000, "decoded"),)), language="de")
        begin(Outcome(source.path, text, wall_s=0.5))


def full(begin: Begin, order: object, sources: Sequence[Source]) -> None:
    raise CapacityError("there is no memory for a second model")
