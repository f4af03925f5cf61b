"""A lock that allows one load of weights at a time in a process.

    with loading():                        # or @loading() on a function
        model = kind.from_pretrained(folder)

transformers 5 changes global state while it builds a model, and restores it afterwards:
`PreTrainedModel.tie_weights` becomes a no-op (`initialization.no_tie_weights`), torch's default dtype
becomes the checkpoint's (`local_torch_dtype`), and `torch.nn.init.*` and `torch.linspace` are replaced. Of
two loads that overlap, the one that ends last restores the other's no-op permanently: from then on no
model of the process has its output layer tied, and each load fails with "its weights lack
proj_out.weight". Parameters created meanwhile have the wrong dtype. So every load takes this lock: speech
and text models, their drafts, tokenizers, diarizers, voice activity. Knows none of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.RLock()
"""Reentrant: a load may be part of another."""


@contextmanager
def loading() -> Iterator[None]:
    """Waits until no other thread loads."""
    with _one:
        yield
