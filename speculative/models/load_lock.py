"""Exclusive: at most one load of weights at a time in a process.

    with loading():                        # or @loading() on a function
        model = kind.from_pretrained(folder)

transformers 5 changes state of the whole process while it builds a model, and puts back what it found:
`PreTrainedModel.tie_weights` becomes a no-op (`initialization.no_tie_weights`), torch's default dtype the
checkpoint's (`local_torch_dtype`), `torch.nn.init.*` and `torch.linspace` its own. Of two loads that
overlap, the one that ends last "puts back" the other's no-op, for good: from then on no model of the
process has its output layer tied, and each load ends with "its weights lack proj_out.weight". Whatever
else makes parameters meanwhile has the other's dtype. So every load takes this lock: speech and text
models, their drafts, tokenizers, diarizers, voice activity. Knows nothing of them, imports nothing.
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
