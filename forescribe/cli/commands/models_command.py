"""`forescribe models`: the presets, and which of them are downloaded.

Knows how the list is printed; the presets are in `asr.model.presets`.
"""

from __future__ import annotations

import typer


def models() -> None:
    """List the model presets and which of them are on this machine.

    The columns are the preset, its state (ready, target only, or - if it is not downloaded), the
    target and its drafts."""
    from forescribe.asr.model.presets import cached

    for entry in cached():
        preset = entry.preset
        drafts = ", ".join(draft.name for draft in preset.drafts) or "-"
        if not entry.target:
            state = "-"
        else:
            state = "target only" if entry.draft is False else "ready"
        typer.echo(f"{preset.name:18} {state:12} {preset.target:38} {drafts}")
        typer.echo(f"{'':18} {'':12} {preset.note}")
