"""The evaluation of the text pair runs what the product runs, and says which engine that was."""

from __future__ import annotations

from forescribe.speculative import Fixed
from forescribe.speculative.model_engines import causal_decoder
from tests.training.text.test_corpus import NEEDS_WORDNET
from training.text.evaluate import Counted, Pair, prompts, run


def test_the_pair_is_decoded_by_the_engines_that_auto_chooses() -> None:
    pair = Pair.load()
    chosen = {
        "target": str(causal_decoder(pair.target).engine),
        "draft": str(causal_decoder(pair.draft).engine),
    }
    engine = pair.engine(Counted(2), batch=2)
    assert engine.drafter is not None
    used = {"target": engine.target.engine, "draft": engine.drafter.model.engine}  # type: ignore[attr-defined]
    assert pair.engines() == {name: str(each) for name, each in used.items()} == chosen
    assert pair.engine(Fixed(0)).drafter is None


@NEEDS_WORDNET
def test_drafts_change_no_token() -> None:
    pair, work = Pair.load(), prompts()[:2]
    drafted, plain = run(pair, work, 2, 0.0), run(pair, work, 0, 0.0)
    assert [r.tokens for r in drafted.results] == [r.tokens for r in plain.results]
    assert drafted.stats.accepted > 0 and drafted.alpha > 0
