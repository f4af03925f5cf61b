"""Synthesise every training sentence in a random training voice and store the clips in shards.

    python -m training.speech.synthesize fortunes --passes 2 --workers 2

A shard is SOURCE-PASS-NUMBER.npy (int16 samples of all its clips, concatenated) and a .jsonl file with one
line per clip: text, start and length in samples, speaker family. Existing shards are kept, so that an
interrupted run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import random
from multiprocessing import Pool

import numpy as np

from training.paths import MADE
from training.sentences import fortunes, meeting, rare_words, wordnet
from training.sentences.held_out import held_out, read_lines
from training.sentences.read_aloud import spoken
from training.speech.voices import RATE, speak, training_voice

CLIPS = MADE / "clips"
PER_SHARD = 400
LONGEST = 14 * RATE


def sentences(source: str, turn: int) -> list[str]:
    """All training sentences of a source; `turn` varies the generated ones."""
    if source == "fortunes":
        found = fortunes.sentences()
    elif source == "wordnet":
        found = wordnet.sentences()
    elif source == "words":
        found = rare_words.utterances(turn)
    elif source == "meeting":
        found = meeting.sentences(5000, seed=100 + turn)
    else:
        found = read_lines(f"{source}.txt")
    kept = [text for text in found if not held_out(text)]
    random.Random(turn).shuffle(kept)
    return kept


def make_shard(job: tuple[str, int, int, list[str]]) -> str:
    source, turn, number, texts = job
    path = CLIPS / f"{source}-{turn}-{number:03d}.npy"
    if path.exists():
        return f"{path.name}: kept"
    clips, lines, start = [], [], 0
    for index, text in enumerate(texts):
        rng = random.Random(f"{source}:{turn}:{number}:{index}")
        voice = training_voice(rng)
        audio = speak(spoken(text), voice)
        if not RATE // 4 <= len(audio) <= LONGEST:
            continue
        line = {"text": text, "start": start, "length": len(audio), "family": voice.family}
        lines.append(json.dumps(line))
        clips.append(audio)
        start += len(audio)
    path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    temporary = path.with_suffix(".tmp.npy")
    np.save(temporary, np.concatenate(clips))
    temporary.rename(path)
    return f"{path.name}: {len(clips)} clips, {start / RATE / 60:.1f} min"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "source", help="fortunes, wordnet, words, meeting, or a list in training/data"
    )
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first pass")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    CLIPS.mkdir(parents=True, exist_ok=True)
    jobs = []
    for turn in range(options.first, options.first + options.passes):
        texts = sentences(options.source, turn)
        for number, begin in enumerate(range(0, len(texts), PER_SHARD)):
            jobs.append((options.source, turn, number, texts[begin : begin + PER_SHARD]))
    with Pool(options.workers) as pool:
        for report in pool.imap_unordered(make_shard, jobs):
            print(report, flush=True)


if __name__ == "__main__":
    main()
