"""Who wrote a recording's tokens: how many each writer wrote, and how deep drafts were right.

A round leaves a run of accepted tokens and one token of the target's behind them: a correction says
that the next draft was judged and refused, a bonus that there was none left, a plain one that there
were no drafts. So the tokens' sources alone tell what became of every draft that was judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from forescribe.speculative.requests import Source

from ..formats.transcript import WRITERS, Json, Writer


def writer(source: Source) -> Writer:
    """A source's name in a transcript. Prompts are nobody's words."""
    assert source is not Source.PROMPT
    return cast(Writer, source.name.lower())


def stats(results: Iterable[Sequence[Source]]) -> dict[str, Json]:
    """Of the sources of a recording's windows.

    `written` counts tokens by writer, timestamps and ends included. Entry i of `judged_at_depth`
    counts the drafts at depth i + 1 whose turn came, since all before them in their round were
    accepted; entry i of `accepted_at_depth` those that were accepted themselves.
    """
    counts, judged, accepted = Counter[Writer](), Counter[int](), Counter[int]()
    for sources in results:
        counts.update(map(writer, sources))
        for length, refused in _rounds(sources):
            accepted.update(range(length))
            judged.update(range(length + refused))
    depths = range(max(judged, default=-1) + 1)
    return {
        "written": {name: counts[name] for name in WRITERS},
        "judged_at_depth": [judged[depth] for depth in depths],
        "accepted_at_depth": [accepted[depth] for depth in depths],
    }


def _rounds(sources: Sequence[Source]) -> Iterator[tuple[int, bool]]:
    """Drafts accepted in each round, and whether the next one was refused. The last round may end
    with a draft: the end of the text, or of the room for it."""
    length = 0
    for source in sources:
        if source is Source.ACCEPTED:
            length += 1
        else:
            yield length, source is Source.CORRECTION
            length = 0
    if length:
        yield length, False
