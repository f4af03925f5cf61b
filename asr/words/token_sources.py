"""Token sources: how many tokens each source produced, and how many drafts were accepted at each depth.

A round yields a run of accepted tokens and one further token of the target: a correction means that the
next draft was judged and rejected, a bonus that no draft was left, a plain token that there were no
drafts. So the sources of the tokens alone determine what became of every draft that was judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from forescribe.speculative.requests import Source

from ..formats.transcript import TOKEN_SOURCES, Json, TokenSource


def name_of(source: Source) -> TokenSource:
    """The name of a source in a transcript. Prompt tokens are not part of transcripts."""
    assert source is not Source.PROMPT
    return cast(TokenSource, source.name.lower())


def stats(results: Iterable[Sequence[Source]]) -> dict[str, Json]:
    """Figures from the token sources of a recording's windows.

    `written` counts tokens by source, timestamps and end tokens included. Entry i of
    `judged_at_depth` counts the drafts at depth i + 1 that were judged, because all earlier drafts of
    their round were accepted; entry i of `accepted_at_depth` those that were accepted.
    """
    counts, judged, accepted = Counter[TokenSource](), Counter[int](), Counter[int]()
    for sources in results:
        counts.update(map(name_of, sources))
        for length, rejected in _rounds(sources):
            accepted.update(range(length))
            judged.update(range(length + rejected))
    depths = range(max(judged, default=-1) + 1)
    return {
        "written": {name: counts[name] for name in TOKEN_SOURCES},
        "judged_at_depth": [judged[depth] for depth in depths],
        "accepted_at_depth": [accepted[depth] for depth in depths],
    }


def _rounds(sources: Sequence[Source]) -> Iterator[tuple[int, bool]]:
    """The number of drafts accepted in each round, and whether the next one was rejected. The last
    round may end with a draft: at the end of the text, or of the room for it. A guess was not drafted."""
    length = 0
    for source in sources:
        if source is Source.GUESSED:
            continue
        if source is Source.ACCEPTED:
            length += 1
        else:
            yield length, source is Source.CORRECTION
            length = 0
    if length:
        yield length, False
