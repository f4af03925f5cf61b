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


def test_tests_that_a_page_names_exist() -> None:
    """Pages claim what they hold, as `docs/exactness.md` does."""
    named = {
        name for page in pages() for name in re.findall(r"`(tests/[\w./]+)`", page.read_text())
    }
    assert named and sorted(name for name in named if not (ROOT / name).exists()) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Here, now\n")
    page = tmp_path / "a.md"
    page.write_text("[1](b.md#here-now) [2](b.md#there) [3](c.md) [4](https://x.org/y) [5](b.md)\n")
    assert broken(page) == ["b.md#there", "c.md"]


@pytest.mark.parametrize("folder", ["docs", "docs/development"])
def test_an_index_names_every_page_below_it(folder: str) -> None:
    """Decisions are listed by their folder; the pages for developers have an index of their own."""
    index = ROOT / folder / "README.md"
    links = LINK.finditer(index.read_text(encoding="utf-8"))
    named = {(index.parent / m["target"].partition("#")[0]).resolve() for m in links}
    below = {p for p in index.parent.rglob("*.md") if p.parent.name != "adr"} - {index}
    if folder == "docs":
        below -= set((ROOT / "docs" / "development").rglob("*.md"))
        assert ROOT / "docs" / "development" / "README.md" in named
    assert {p.relative_to(ROOT).as_posix() for p in below - named} == set()
