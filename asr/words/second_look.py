"""A second look: where the words of a window may be a term, the model says which of the two was spoken.

Its text with the term in place of the words is scored by a teacher-forced pass behind the same prompt, over
the same encoder states; what was written has the probabilities that it was written with, among the tokens
that Whisper's rules allow there. The term is taken where it is nearly as probable. So nothing but these words
can change, what was heard decides, and the result depends on the text alone: not on drafts, the batch or the
engine.

Knows tokens, terms and the model; nothing of recordings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.requests import Result

from ..model.languages import SPACELESS
from ..model.states import EncoderStates
from ..model.whisper import Whisper
from .assembly import MARKS, SENTENCE_END, split_words
from .edits import Change, Edit, edited, texts
from .terms import ALIKE, Candidate, Term, TermList

WORTH, BY_LIKENESS = 2.5, 8.0
"""Nats that the words lack of certainty, with so many for what is more alike than it has to be, from which on
a candidate is scored: of 1,000 terms 2.2 for tiny.en's window of a reader in place of 32, and 179 instead of
182 of 199 terms are right."""

MOST_CANDIDATES = 32
"""Candidates of a window that are scored, the most alike ones: with 10,000 terms there may be many."""

BEHIND = 8
"""Tokens behind a term, up to the next timestamp, whose probabilities count: what was spoken fits what
follows."""

YIELDS, YIELDS_BY_LIKENESS, USUAL_LIKENESS = 2.5, 10.0, 0.75
"""Nats that a term may be less probable than what was written: for each of its tokens, and for what is more
alike than usual."""


class Held(NamedTuple):
    """The row of a decoder whose caches hold the text of an answer."""

    decoder: NativeWhisperDecoder
    row: int


Row = tuple[int, tuple[int, ...]]
"""Tokens, and how many are before them."""


class Variant(NamedTuple):
    """The text of a window with a term in place of some words, and the tokens `behind` them."""

    edit: Edit  # without log-probabilities
    behind: tuple[int, ...]
    yields: float

    @property
    def pair(self) -> tuple[str, str]:
        """What was heard, and what may be written."""
        return self.edit.heard.casefold(), self.edit.written.casefold()

    def scored(self, new: Tensor, old: Sequence[float]) -> Edit:
        """The edit, by the log-probabilities of both. A term is at least as probable as the words that it
        replaces: it shall not make a window doubtful that was not."""
        mean = math.fsum(old[: self.edit.instead]) / self.edit.instead
        own = new[: len(self.edit.tokens)].clamp_min(mean)
        return self.edit._replace(logprobs=tuple(own.tolist()))


@torch.inference_mode()
def look_again(
    whisper: Whisper,
    language: str,
    result: Result,
    states: EncoderStates,
    terms: TermList,
    held: Held | None = None,
) -> tuple[Result, tuple[Change, ...]]:
    """The answer with the terms that were spoken in place of what was written, and these changes in order."""
    variants = list(_variants(whisper, language, result, terms))
    if not variants:
        return result, ()
    better, begin = list[tuple[float, Variant, Edit]](), len(result.request.prompt)
    places = [(begin + v.edit.at, (*v.edit.tokens, *v.behind)) for v in variants]
    scores = _scores(whisper, held, states, result, places)
    for variant, new in zip(variants, scores, strict=True):
        old = result.logprobs[variant.edit.at : variant.edit.end + len(variant.behind)]
        margin = float(new.sum()) - math.fsum(old) + variant.yields
        better.append((margin, variant, variant.scored(new, old)))
    # Once it is a term, the same words are one everywhere in the window.
    taken = {variant.pair for margin, variant, _ in better if margin > 0}
    chosen = list[Edit]()
    for _, variant, edit in sorted(better, key=lambda found: -found[0]):
        if variant.pair in taken and all(
            edit.end <= other.at or other.end <= edit.at for other in chosen
        ):
            chosen.append(edit)
    return edited(whisper, result, chosen)


def _variants(
    whisper: Whisper, language: str, result: Result, terms: TermList
) -> Iterator[Variant]:
    """The variants of an answer that are worth a look."""
    prompt, tokens = result.request.prompt, result.tokens
    found, worth = list[tuple[Candidate, list[str], slice, int]](), set[tuple[str, Term]]()
    for begin, run in texts(tokens, whisper.tokens):
        split = split_words(whisper.tokenizer, language, run)
        words, places = [word.text for word in split], [begin]
        for word in split:
            places.append(places[-1] + word.count)
        for candidate in terms.candidates(words, spaces=language not in SPACELESS):
            own = slice(places[candidate.first], places[candidate.last])
            if _parts("".join(words[candidate.first : candidate.last]))[1] == candidate.term.text:
                continue  # it is written, and would take the place of others
            doubt = -math.fsum(result.logprobs[own])
            gain = doubt + BY_LIKENESS * (candidate.likeness - ALIKE)
            if gain * candidate.term.weight > WORTH:
                worth.add((candidate.form, candidate.term))
            found.append((candidate, words, own, places[-1]))
    found = [each for each in found if (each[0].form, each[0].term) in worth]
    found.sort(key=lambda each: -each[0].likeness)
    for candidate, words, own, end in found[:MOST_CANDIDATES]:
        heard = "".join(words[candidate.first : candidate.last])
        before = words[candidate.first - 1].rstrip() if candidate.first else "."
        written = _form(candidate, heard, begins=before[-1:] in SENTENCE_END)
        lead, core, tail = _parts(heard)
        if written[-1:] in MARKS:
            tail = tail.lstrip(MARKS)
        ids = whisper.tokenizer.encode(lead + written + tail, add_special_tokens=False)
        behind = tuple(tokens[own.stop : min(own.stop + BEHIND, end)])
        fits = len(prompt) + own.start + len(ids) + len(behind) <= whisper.positions
        if (
            heard != lead + written + tail
            and fits
            and all(token < whisper.tokens.end for token in ids)
        ):
            usual = YIELDS * len(ids)
            unusual = YIELDS_BY_LIKENESS * (candidate.likeness - USUAL_LIKENESS)
            yields = candidate.term.weight * (usual + unusual)
            place = (own.start, own.stop - own.start, tuple(ids), ())
            yield Variant(Edit(*place, len(lead), core, written, "terms"), behind, yields)


def _parts(heard: str) -> tuple[str, str, str]:
    """Words without what stands before and behind them, and that: spaces and punctuation."""
    marks = MARKS + " "
    behind = heard.lstrip(marks)
    core = behind.rstrip(marks)
    return heard[: len(heard) - len(behind)], core, behind[len(core) :]


def _form(candidate: Candidate, heard: str, *, begins: bool) -> str:
    """The term as it is written there: with a capital where a sentence `begins`."""
    text = candidate.term.text
    if begins and text == text.lower() and _parts(heard)[1][:1].isupper():
        text = text[:1].upper() + text[1:]
    return text + candidate.ending


def _scores(
    whisper: Whisper,
    held: Held | None,
    states: EncoderStates,
    result: Result,
    places: Sequence[Row],
) -> list[Tensor]:
    """Log-probabilities of the tokens of each place, behind so many of the prompt and the answer. Native
    kernels read of each what differs, the last one first, so that what is before it stays in their caches,
    where the engine may hold it already; modules read all in one pass."""
    text = (*result.request.prompt, *result.tokens)
    if held is not None:
        return _read(*held, text, places)
    with whisper.reading() as decoder:
        if decoder is None:
            return _read_together(whisper, states, text, places)
        row, begin = torch.zeros(1, dtype=torch.int64), len(result.request.prompt)
        decoder.prefill(row, torch.tensor([text[:begin]]), [states])
        last = max(at for at, _ in places) - 1
        if last > begin:  # without logits: half the time in a small model
            between = torch.tensor([text[begin:last]])
            decoder.score_at(between, row + begin, row, reach=last)
        return _read(decoder, 0, text, places)


def _read(
    decoder: NativeWhisperDecoder, row: int, text: Sequence[int], places: Sequence[Row]
) -> list[Tensor]:
    """`_scores` by a decoder whose `row` holds the text up to the last place."""
    read, rows = [torch.empty(0)] * len(places), torch.tensor([row])
    for index in sorted(range(len(places)), key=lambda index: -places[index][0]):
        at, tokens = places[index]
        given = torch.tensor([[text[at - 1], *tokens[:-1]]])
        start = torch.tensor([at - 1])
        scores = decoder.score(given, start, reach=at + len(tokens) - 1, rows=rows)
        read[index] = _logprobs(scores.logits[0], tokens)
    return read


def _read_together(
    whisper: Whisper,
    states: EncoderStates,
    text: Sequence[int],
    rows: Sequence[tuple[int, Sequence[int]]],
) -> list[Tensor]:
    """Log-probabilities of the tokens of each row behind as many of `text`, in one pass."""
    place = whisper.device.torch
    texts = [[*text[:at], *tokens] for at, tokens in rows]
    longest = max(map(len, texts))
    padded = [[*own, *[whisper.tokens.end] * (longest - len(own))] for own in texts]
    hidden = whisper.target.model.decoder(
        input_ids=torch.tensor(padded, device=place),
        encoder_hidden_states=states.target.expand(len(rows), -1, -1),
        use_cache=False,
    ).last_hidden_state
    return [
        _logprobs(whisper.target.proj_out(own[at - 1 : at - 1 + len(tokens)]), tokens)
        for own, (at, tokens) in zip(hidden, rows, strict=True)
    ]


def _logprobs(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Of `tokens [n]`, from the logits `[n, V]` at the places before them."""
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0].cpu()
