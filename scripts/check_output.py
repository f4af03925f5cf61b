"""Check what `forescribe transcribe` wrote for a sample against its reference text.

    python scripts/check_output.py OUT STEM REFERENCE.txt --wer 0.10

Exit status 0 if OUT/STEM.txt, .srt and .json exist, the subtitles are in order, and the word error rate
of the text is at most the bound.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import jiwer

CUE = re.compile(
    r"(?P<index>\d+)\n"
    r"(?P<h1>\d\d+):(?P<m1>[0-5]\d):(?P<s1>[0-5]\d),(?P<f1>\d{3}) --> "
    r"(?P<h2>\d\d+):(?P<m2>[0-5]\d):(?P<s2>[0-5]\d),(?P<f2>\d{3})\n"
    r"(?P<text>.+)",
    re.DOTALL,
)


def words(text: str) -> str:
    """Lower case without punctuation, for the word error rate."""
    return " ".join(re.findall(r"[\w']+", text.lower()))


def cues(srt: str) -> list[tuple[float, float, str]]:
    """Start and end in seconds, and the text. Raises ValueError for an invalid file."""
    found = []
    for number, block in enumerate(srt.strip().split("\n\n"), start=1):
        match = CUE.fullmatch(block)
        if match is None or int(match["index"]) != number:
            raise ValueError(f"cue {number} is not an SRT cue: {block!r}")
        start, end = (
            int(match[f"h{i}"]) * 3600
            + int(match[f"m{i}"]) * 60
            + int(match[f"s{i}"])
            + int(match[f"f{i}"]) / 1000
            for i in (1, 2)
        )
        if start >= end or (found and start < found[-1][1]):
            raise ValueError(f"cue {number} is out of order: {start} to {end} s")
        found.append((start, end, match["text"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("stem")
    parser.add_argument("reference", type=Path)
    parser.add_argument("--wer", type=float, default=0.10, help="highest word error rate")
    options = parser.parse_args()
    text, srt, record = (
        (options.out / f"{options.stem}.{ending}").read_text(encoding="utf-8")
        for ending in ("txt", "srt", "json")
    )
    spoken = words(" ".join(cue[2] for cue in cues(srt)))
    if not spoken == words(text) == words(json.loads(record)["text"]):
        print("the words of txt, srt and json differ", file=sys.stderr)
        return 1
    rate = jiwer.wer(words(options.reference.read_text(encoding="utf-8")), words(text))
    print(f"{options.stem}: word error rate {rate:.1%} (at most {options.wer:.0%} allowed)")
    return int(rate > options.wer)


if __name__ == "__main__":
    sys.exit(main())
