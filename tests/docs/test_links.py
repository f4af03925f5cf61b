"""Links lead somewhere: files exist, and so do the headings in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, ROOT, pages

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.M)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def broken(page: Path) -> list[str]:
    """Targets of a page's links that are not there."""
    found = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, heading = match["target"].partition("#")
        if re.match(r"\w+:", target):
            continue  # another site's
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            found.append(match["target"])
        elif heading and heading not in map(anchor, HEADING.findall(path.read_text())):
            found.append(match["target"])
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Here, now\n")
    page = tmp_path / "a.md"
    page.write_text("[1](b.md#here-now) [2](b.md#there) [3](c.md) [4](https://x.org/y) [5](b.md)\n")
    assert broken(page) == ["b.md#there", "c.md"]


def test_the_index_leads_to_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    named = {(docs / m["target"].partition("#")[0]).resolve() for m in LINK.finditer(index)}
    every = {p for p in docs.rglob("*.md") if p.parent.name != "adr"} - {docs / "README.md"}
    assert {p.relative_to(docs).as_posix() for p in every - named} == set()
