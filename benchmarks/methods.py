"""The figures of the methods' map: tokens per round against the price of a round, from one file.

    python -m benchmarks.methods            # writes the table and the picture from docs/methods/methods.csv
    python -m benchmarks.methods --check    # says whether they are up to date

Each line of the file is one measurement, with its page and program. `speed` is against plain decoding of
the same run, and the price of a round, in plain rounds, follows: tokens / speed. Where no time was
measured, `price` may be a sum of forwards, which leaves out what more positions cost (hollow marks). The
cells "figure here" of docs/methods/README.md are the lines with `shown`. Knows files only.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "methods"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
SIZE, EDGE = (560, 330), 34  # of the picture
MOST = 7.6, 7.2  # tokens, price


@dataclass(frozen=True)
class Figure:
    """One line: `tokens` per round of at most `gamma` drafts. `price` is of a round, None where unknown."""

    method: str
    on: str
    gamma: int
    tokens: float
    speed: float | None
    price: float | None
    guarantee: str
    page: str
    program: str
    date: str
    shown: bool

    @property
    def measured(self) -> bool:
        return self.speed is not None

    @property
    def cell(self) -> str:
        return f"{self.tokens:.2f} of {self.gamma} ({self.on})"


def read(path: Path = FOLDER / "methods.csv") -> list[Figure]:
    """Raises ValueError, with the line, for one that cannot be."""
    found = []
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            speed, price = (float(row[name]) if row[name] else None for name in ("speed", "price"))
            tokens, gamma = float(row["tokens"]), int(row["gamma"])
            if not 1 <= tokens <= gamma + 1 or (speed is not None and price is not None):
                raise ValueError(f"not a figure: {row}")
            found.append(
                Figure(
                    row["method"],
                    row["on"],
                    gamma,
                    tokens,
                    speed,
                    tokens / speed if speed else price,
                    row["guarantee"],
                    row["page"],
                    row["program"],
                    row["date"],
                    bool(row["shown"]),
                )
            )
    return found


def table(figures: Sequence[Figure]) -> str:
    lines = [
        "| | method | on | drafts | tokens a round | price | speed | page, program, date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, each in enumerate(figures, 1):
        price = "" if each.price is None else f"{each.price:.2f}"
        price += "" if each.measured or not price else " or more"
        speed = "" if each.speed is None else f"{each.speed:.2f}"
        name = each.method + (f", **{each.guarantee}**" if each.guarantee != "exact" else "")
        source = f"[{Path(each.page).stem}]({each.page}), `{each.program}`, {each.date[5:]}"
        cells = number, name, each.on, each.gamma, f"{each.tokens:.2f}", price, speed, source
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def filled(text: str, figures: Sequence[Figure]) -> str:
    """The page with its table between the marks, and the cells "figure here" of methods that have figures."""
    cells: dict[str, list[str]] = {}
    for each in figures:
        if each.shown:
            cells.setdefault(each.method, []).append(each.cell)
    made, place = [], -1
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if "figure here" in parts:
            place = parts.index("figure here")
        elif not line.startswith("|"):
            place = -1
        elif place > 0 and not line.startswith("|---"):
            name = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", parts[0])
            known = [method for method in cells if name.startswith(method)]
            if known:
                parts[place] = "; ".join(cells.pop(max(known, key=len)))
                line = f"| {' | '.join(parts)} |".replace("|  |", "| |")
        made.append(line)
    if cells:
        raise ValueError(f"no row of the page is of {', '.join(cells)}")
    before, rest = "\n".join(made).split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}\n"


def picture(figures: Sequence[Figure]) -> str:
    """Tokens per round over the price of a round, as SVG; lines of equal speed start at the origin."""
    width, height = SIZE

    def x(price: float) -> float:
        return EDGE + (width - 2 * EDGE) * price / MOST[1]

    def y(tokens: float) -> float:
        return height - EDGE - (height - 2 * EDGE) * tokens / MOST[0]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="10" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{width / 2:.0f}" y="{height - 6}">price of a round, in plain rounds</text>',
        f'<text transform="translate(11 {height / 2:.0f}) rotate(-90)">tokens per round</text>',
    ]
    for speed in (0.5, 1, 1.5, 2, 3):
        price = min(MOST[1], MOST[0] / speed)
        bold = 1.6 if speed == 1 else 0.6
        parts.append(
            f'<path d="M{x(0):.0f} {y(0):.0f}L{x(price):.0f} {y(price * speed):.0f}" stroke="#999" '
            f'stroke-width="{bold}"/><text x="{x(price) + 12:.0f}" y="{y(price * speed) + 3:.0f}" '
            f'fill="#666">{speed:g} x</text>'
        )
    for tick in range(1, int(max(MOST)) + 1):
        if tick <= MOST[1]:
            parts.append(f'<text x="{x(tick):.0f}" y="{y(0) + 12:.0f}">{tick}</text>')
        parts.append(f'<text x="{x(0) - 8:.0f}" y="{y(tick) + 3:.0f}">{tick}</text>')
    for number, each in enumerate(figures, 1):
        if each.price is None:
            continue
        colour = "#1f5fa8" if each.guarantee == "exact" else "#c0392b"
        fill, ink = (colour, "#fff") if each.measured else ("#fff", colour)
        place = f'x="{x(each.price):.1f}" y="{y(each.tokens) + 3:.1f}"'
        parts.append(
            f'<g><title>{each.method}: {each.on}</title><circle cx="{x(each.price):.1f}" '
            f'cy="{y(each.tokens):.1f}" r="7" fill="{fill}" stroke="{colour}"/>'
            f'<text {place} font-size="8" fill="{ink}">{number}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    figures, page = read(), FOLDER / "README.md"
    made = {
        page: filled(page.read_text("utf-8"), figures),
        FOLDER / "methods.svg": picture(figures),
    }
    old = [p for p, text in made.items() if not p.exists() or p.read_text("utf-8") != text]
    if given.check:
        for path in old:
            print(f"{path.name} is not what methods.csv says: run python -m benchmarks.methods")
        return int(bool(old))
    for path in old:
        path.write_text(made[path], "utf-8")
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
