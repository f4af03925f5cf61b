"""Corrections of a job's transcript by people: their JSON, their versions, and the transcript with them.

    {"segments": [0, {"start": 2.5, "end": 4.0, "text": " Good day.", "speaker": "A",
                      "words": [7, [" day.", 3.1, 4.0]]}, 2],
     "names": {"Speaker A": "Anna"}, "merged": {"Speaker C": "Speaker A"}, "note": "Corrected at 0:02"}

An integer is a segment of the result, or a word of it, as it is: what nobody has changed keeps its times,
probabilities and tokens, and takes a few bytes. The result itself stays as it was decoded. Each saved version
is a file of the job; the latest `MAX_VERSIONS` are kept. A version names its result.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Segment, Turn, Word, samples_at
from forescribe.diarize.turns import Turns

from ..errors import ApiError, invalid
from ..http.bodies import label
from ..wording import Frozen
from .database import Tx
from .store import Store
from .tables import Job

ROLE = re.compile(r"corrections-(\d+)")
"""The role of the file of a version, by its number."""

MAX_VERSIONS = 50
MAX_BYTES = 4 << 20
"""Of a body: three hours in which every word is another one have about 2 MB."""

MAX_SEGMENT, MAX_NAME, MAX_SPEAKERS = 20_000, 200, 500
"""Characters, characters, names."""

Number = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e7)]
Text = Annotated[str, Field(strict=True, max_length=MAX_SEGMENT)]
Name = Annotated[str, Field(strict=True, max_length=MAX_NAME, pattern=r"\S")]
NewWord = tuple[Text, Seconds, Seconds]
"""Text with its leading space, start, end."""


class NewSegment(Frozen):
    """A segment that somebody has changed. `text` has a leading space, as in the result, and is that of its
    words, if it has any."""

    start: Seconds
    end: Seconds
    text: Text
    speaker: Name | None = None
    words: list[Number | NewWord] | None = None


class Corrections(Frozen):
    """What has been changed. `merged` speakers count as others, then `names` replace labels."""

    segments: list[Number | NewSegment]
    names: Annotated[dict[Name, Name], Field(max_length=MAX_SPEAKERS)] = {}
    merged: Annotated[dict[Name, Name], Field(max_length=MAX_SPEAKERS)] = {}
    note: Annotated[str, Field(strict=True, max_length=MAX_NAME)] = ""

    def apply(self, transcript: Transcript) -> Transcript:
        """The transcript with the corrections. Raises ApiError `invalid_value` if they do not fit it."""
        chained = self.merged.keys() & set(self.merged.values())
        if chained:
            raise invalid("merged", f"{chained.pop()!r} is merged and merged into")
        changed = [s for s in self.segments if isinstance(s, NewSegment)]
        words = (word for segment in changed for word in segment.words or ())
        _check_once("segments", self.segments, len(transcript.segments))
        _check_once("words", words, len(transcript.words))
        original = _Original(transcript)
        made = (
            transcript.segments[s] if isinstance(s, int) else original.replaced(s)
            for s in self.segments
        )
        segments = tuple(replace(segment, id=n) for n, segment in enumerate(made))
        said = [
            (part.speaker if isinstance(new, int) else original.voice(new), part)
            for new, segment in zip(self.segments, segments, strict=True)
            for part in segment.words or (segment,)
        ]
        corrected = replace(
            transcript,
            segments=segments,
            turns=_turns(Turns(transcript.turns), said).turns,
            diarized=transcript.diarized or any(segment.speaker for segment in segments),
            settings={**transcript.settings, "corrected": True},
        )
        merged = {label: self.merged.get(label, label) for label in corrected.speakers}
        names = {label: self.names.get(other, other) for label, other in merged.items()}
        return corrected.renamed(names) if self.names or self.merged else corrected


class _Original:
    """What corrections refer to: the segments of a result in the order of their starts, its words, and the
    last sample that they may reach: Whisper's own segments may end in the padding behind the audio."""

    def __init__(self, transcript: Transcript) -> None:
        self.segments = sorted(transcript.segments, key=lambda s: s.start_sample)
        self.words = transcript.words
        self.last = max([transcript.sample_count, *(s.end_sample for s in self.segments)])

    def replaced(self, new: NewSegment) -> Segment:
        """The new segment. It keeps window and guard values, which some formats require, of the segment of
        the result at its time."""
        start, end = self._times(new.start, new.end)
        words = None
        if new.words is not None:
            words = tuple(self._word(word, new.speaker) for word in new.words)
            if "".join(w.text for w in words).split() != new.text.split():
                raise invalid("segments", f"the text at {new.start} s is not that of its words")
        return replace(
            self._at(start),
            start_sample=start,
            end_sample=end,
            text=new.text,
            tokens=(),
            words=words,
            speaker=new.speaker,
            speaker_confidence=None,
            doubt=None,
            continues=False,
            corrections=(),
        )

    def voice(self, new: NewSegment) -> str | None:
        """Who was heard there: in the first of its words that is one of the result's, or at its time."""
        kept = (self.words[n] for n in new.words or () if isinstance(n, int))
        return next(kept, self._at(samples_at(new.start))).speaker

    def _word(self, word: int | NewWord, speaker: str | None) -> Word:
        if not isinstance(word, int):
            return Word(word[0], *self._times(word[1], word[2]), speaker=speaker)
        old = self.words[word]
        if old.speaker == speaker:
            return old
        return replace(old, speaker=speaker, speaker_confidence=None)

    def _times(self, start_s: float, end_s: float) -> tuple[int, int]:
        """In samples."""
        start, end = samples_at(start_s), samples_at(end_s)
        if not start <= end <= self.last:
            raise invalid("segments", f"from {start_s} to {end_s} s is no time of this recording")
        return start, end

    def _at(self, start: int) -> Segment:
        if not self.segments:
            return Segment(0, 0, 0, start, start, "", (), 0.0, 0.0, 0.0, 0.0)
        after = bisect_right(self.segments, start, key=lambda s: s.start_sample)
        return self.segments[max(0, after - 1)]


def _turns(turns: Turns, said: Sequence[tuple[str | None, Word | Segment]]) -> Turns:
    """Who speaks when, by who was heard in each word and who has said it. A turn is parted halfway between
    its speaker's words that are of two people now; one without words goes with the next if its speaker has
    none left. Words outside the turns of who was heard make turns of their own."""
    if all(voice == part.speaker for voice, part in said):
        return turns
    said, left = sorted(said, key=lambda one: one[1].start_sample), {p.speaker for _, p in said}
    own = {who: [part for voice, part in said if voice == who] for who in turns.speakers}
    found, held = list[Turn](), set[int]()
    for turn in turns:
        words, known = own[turn.speaker], {turn.speaker: turn.confidence}
        first = bisect_right(words, turn.start_sample, key=lambda word: word.end_sample)
        last = bisect_left(words, turn.end_sample, key=lambda word: word.start_sample)
        held.update(map(id, words[first:last]))
        inside = words[first:last] or (words[first:] or words)[:1] * (turn.speaker not in left)
        middles = [(one.end_sample + other.start_sample) // 2 for one, other in pairwise(inside)]
        shares = pairwise([turn.start_sample, *middles, turn.end_sample])
        for part, (start, end) in zip((*inside,) or (turn,), shares, strict=True):
            start, end = max(start, turn.start_sample), min(end, turn.end_sample)
            if part.speaker is not None and start < end:
                found.append(Turn(start, end, part.speaker, known.get(part.speaker)))
    lost = (
        Turn(part.start_sample, max(part.end_sample, part.start_sample + 1), part.speaker)
        for voice, part in said
        if part.speaker not in (None, voice) and id(part) not in held
    )
    return Turns((*found, *Turns(tuple(lost)).joined(SAMPLE_RATE))).joined()


@dataclass(frozen=True)
class Version:
    """A saved version: its number, the file with it, and its content; 0 is the result without corrections."""

    number: int
    file: str
    saved: Mapping[str, Any]

    @property
    def etag(self) -> str:
        """Changes with each save and with the result."""
        return f'"{self.file}"'

    def view(self) -> dict[str, Any]:
        """The JSON for clients."""
        told = {k: v for k, v in self.saved.items() if k != "base"}
        return {"object": "corrections", "version": self.number, **told}


NONE = Corrections(segments=[]).model_dump() | {"segments": None, "saved_at": None, "history": []}
"""The content of version 0."""


class CorrectedJobs:
    """The corrections of the jobs of a store. `get` and `result` give an owner's job and its transcript as
    it was decoded. The methods raise ApiError as these do, and `conflict` if the corrections belong to
    another result."""

    def __init__(
        self, store: Store, get: Callable[[str, str], Job], result: Callable[[str, str], Transcript]
    ) -> None:
        self.store, self._get, self._original = store, get, result

    def transcript(self, id: str, owner: str) -> Transcript:
        """The transcript as it has been corrected."""
        transcript = self._original(id, owner)
        version = self._current(id, owner)
        if not version.number:
            return transcript
        told = {name: version.saved[name] for name in Corrections.model_fields}
        return Corrections.model_validate(told).apply(transcript)

    def get(self, id: str, owner: str, number: int | None = None) -> Version:
        """The latest version, or the one with this number. Raises ApiError `in_progress` without a result."""
        self._original(id, owner)
        version = self._current(id, owner)
        if number is None or number == version.number:
            return version
        job = self._get(id, owner)
        if not number or f"corrections-{number}" not in job.files:
            text = f"the job keeps no version {number}; the latest is {version.number}"
            raise ApiError("not_found", text, param="version")
        return self._version(job, number)

    def put(self, id: str, owner: str, corrections: Corrections, etag: str) -> Version:
        """Save a new version, if `etag` is that of the latest. Raises ApiError: `version_conflict` if it is
        not, `conflict` unless the job has succeeded, `invalid_value` for corrections that do not fit."""
        transcript, before = self._original(id, owner), self._current(id, owner)
        if before.etag != etag:
            raise _stale()
        corrections.apply(transcript)
        saved, number = self._next(before, corrections), before.number + 1

        def refer(tx: Tx, name: str) -> tuple[Version, str | None]:
            job = self.store.jobs.locked(tx, id)
            if job is None:
                raise ApiError("job_not_found", "there is no such job")
            if job.state != "succeeded":
                text = f"the job is {job.state}: its text can be corrected at its end"
                raise ApiError("conflict", text)
            latest = latest_version(job)
            now = (latest, job.files.get(_role(latest)), job.files["result"])
            if now != (before.number, before.file, saved["base"]):
                raise _stale()
            files = {**job.files, _role(number): name}
            oldest = files.pop(f"corrections-{number - MAX_VERSIONS}", None)
            self.store.jobs.update(tx, id, files=files)
            return Version(number, name, saved), oldest

        text = json.dumps(saved, ensure_ascii=False)
        version, oldest = self.store.save(id, _role(number), text, refer)
        if oldest is not None:
            self.store.files.delete(id, oldest)
        return version

    def delete(self, id: str, owner: str) -> None:
        """Delete all versions; the result is shown as it was decoded."""
        self._get(id, owner)
        self.store.drop(id, ROLE)

    def _current(self, id: str, owner: str) -> Version:
        """The latest version. Raises ApiError `conflict` if it counts in a result that was replaced."""
        job = self._get(id, owner)
        try:
            version = self._version(job, latest_version(job))
        except FileNotFoundError:
            if self._get(id, owner) == job:
                raise
            return self._current(id, owner)  # it was deleted meanwhile
        if version.number and version.saved["base"] != job.files["result"]:
            text = f"the corrections belong to an earlier result: DELETE /v1/jobs/{id}/corrections"
            raise ApiError("conflict", text)
        return version

    def _version(self, job: Job, number: int) -> Version:
        saved = self.store.read(job, _role(number)) if number else NONE
        return Version(number, job.files[_role(number)], saved)

    def _next(self, before: Version, corrections: Corrections) -> dict[str, Any]:
        """The content of the version after this one."""
        number, now = before.number + 1, self.store.now()
        entry = {"version": number, "saved_at": int(now), "note": label(corrections.note) or ""}
        kept = [old for old in before.saved["history"] if old["version"] > number - MAX_VERSIONS]
        return {
            "base": before.saved["base"] if before.number else before.file,
            "saved_at": now,
            **corrections.model_dump(),
            "history": [*kept, entry],
        }


def _check_once(what: str, items: Iterable[object], count: int) -> None:
    """Each number at most once: a few bytes that name a long segment many times would fill the memory."""
    for number, times in Counter(item for item in items if isinstance(item, int)).items():
        if number >= count:
            text = f"the result has {count} {what}, and none is number {number}"
            raise invalid("segments", text)
        if times > 1:
            raise invalid("segments", f"number {number} of the {what} is named twice")


def _role(number: int) -> str:
    """The role of the file of a version."""
    return f"corrections-{number}" if number else "result"


def latest_version(job: Job) -> int:
    """The number of the latest version; 0 without one."""
    found = (ROLE.fullmatch(role) for role in job.files)
    return max((int(match[1]) for match in found if match), default=0)


def _stale() -> ApiError:
    text = "the transcript has been changed by somebody else: read its corrections again"
    return ApiError("version_conflict", text, param="If-Match")
