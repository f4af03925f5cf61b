"""The meeting grammar's word lists and templates, read from data/meeting.txt.

Format: a line `[slot]` begins a list. Words are separated by commas, templates by line breaks.
"""

from __future__ import annotations

from pathlib import Path

from training.paths import DATA

PATH = DATA / "meeting.txt"


def load(path: Path = PATH) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    slot = ""
    for line in path.read_text("utf-8").splitlines():
        line = line.strip()
        if line.startswith("["):
            slot = line.strip("[]")
            lists.setdefault(slot, [])
        elif line and slot == "template":
            lists[slot].append(line)
        elif line:
            lists[slot] += [word.strip() for word in line.split(",") if word.strip()]
    return lists


LISTS = load()
