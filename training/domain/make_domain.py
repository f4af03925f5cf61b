"""A domain that the bundled draft does not know: dictation of a clinic, in an accent.

    python -m training.domain.make_domain out/clinic --recordings 24

Neither the accents nor most of the words occur in the training of the bundled pair. Each recording is one
voice and about a minute and a half of sentences with pauses. For `forescribe distill`, docs/distill.md.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import soundfile

from training.speech.voices import RATE, Voice, speak

ACCENTS = ("en-029", "en-gb-scotland", "en-gb-x-gbclan")
DRUGS = (
    "amoxicillin warfarin metformin lisinopril atorvastatin omeprazole prednisone furosemide "
    "metoprolol amlodipine gabapentin sertraline levothyroxine clopidogrel azithromycin diazepam"
).split()
FINDINGS = (
    "bronchitis, hypertension, tachycardia, pneumonia, sciatica, gastritis, sinusitis, anaemia, "
    "atrial fibrillation, a mild oedema, a herniated disc, chronic kidney disease, type two diabetes, "
    "an ear infection, a torn meniscus, iron deficiency"
).split(", ")
PARTS = (
    "left lung, right knee, lower back, abdomen, left shoulder, thyroid, right ankle, chest"
).split(", ")
FORMS = (
    "The patient presents with {finding} and pain in the {part}.",
    "Prescribed {drug}, {dose} milligrams, {often}.",
    "Continue {drug} {often} and stop {other}.",
    "No known allergy to {drug} or {other}.",
    "Auscultation of the {part} was unremarkable.",
    "An ultrasound of the {part} showed {finding}.",
    "History of {finding}, treated with {drug}.",
    "We increased {drug} to {dose} milligrams because of {finding}.",
    "Follow up in {weeks} weeks with a blood count and an electrocardiogram.",
    "Palpation of the {part} is painful, reflexes are symmetrical.",
)
OFTEN = ("once daily", "twice daily", "three times a day", "at bedtime", "with meals")


def sentence(rng: random.Random) -> str:
    """A dictated sentence."""
    drug, other = rng.sample(DRUGS, 2)
    return rng.choice(FORMS).format(
        drug=drug,
        other=other,
        finding=rng.choice(FINDINGS),
        part=rng.choice(PARTS),
        often=rng.choice(OFTEN),
        dose=rng.choice((5, 10, 20, 40, 50, 250, 500)),
        weeks=rng.choice(("two", "three", "six", "eight")),
    )


def recording(rng: random.Random, voice: Voice, seconds: float) -> np.ndarray:
    """Samples [N] int16 of about this length."""
    parts: list[np.ndarray] = []
    length = 0
    while length < seconds * RATE:
        clip = speak(sentence(rng), voice)
        pause = np.zeros(int(rng.uniform(0.25, 0.7) * RATE), np.int16)
        parts += [clip, pause]
        length += len(clip) + len(pause)
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recordings", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--accents", nargs="+", default=list(ACCENTS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in range(options.recordings):
        rng = random.Random(options.seed * 1000 + number)
        accent = options.accents[number % len(options.accents)]
        voice = Voice("espeak", accent, float(rng.randint(150, 185)), float(rng.randint(40, 60)))
        samples = recording(rng, voice, options.seconds)
        soundfile.write(options.folder / f"{number:03d}-{accent}.flac", samples, RATE)


if __name__ == "__main__":
    main()
