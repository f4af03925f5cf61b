"""The figures of the methods' map: tokens per round against the price of a round, from one file.

    python -m benchmarks.methods            # fills the map's cells and draws the picture, from methods.csv
    python -m benchmarks.methods --check    # says whether they are up to date

Each line of docs/methods/methods.csv is one measurement, with its page and program. `speed` is against
plain decoding of the same run, and the price of a round, in plain rounds, follows: tokens / speed. Where
no time was measured, `price` may be a sum of forwards, which leaves out what more positions cost (hollow
marks). The cells "figure here" of docs/methods/README.md are the lines with `shown`. Knows files only.
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
WIDTH, HEIGHT, EDGE = 560, 330, 34
MOST_TOKENS, MOST_PRICE = 7.6, 7.2  # of the picture
HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    'font-size="10" text-anchor="middle"><style>.e{fill:#1f5fa8;stroke:#1f5fa8}.l{fill:#c0392b;'
    "stroke:#c0392b}.h{fill:#fff}g text{font-size:8px;fill:#fff;stroke:none}g .h+text{fill:#333}"
    f'path{{stroke:#999}}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
)


@dataclass(frozen=True)
class Figure:
    """One line: `tokens` per round of at most `gamma` drafts. `price` is of a round, None where unknown."""

    number: int
    method: str
    on: str
    gamma: int
    tokens: float
    speed: float | None
    price: float | None
    guarantee: str
    page: str
    program: str
    shown: bool


def read(path: Path = FOLDER / "methods.csv") -> list[Figure]:
    """Raises ValueError, with the line, for one that cannot be."""
    found = []
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            speed, price = (float(row[name]) if row[name] else None for name in ("speed", "price"))
            tokens, gamma = float(row["tokens"]), int(row["gamma"])
            both = speed is not None and price is not None
            if int(row["number"]) != number or not 1 <= tokens <= gamma + 1 or both:
                raise ValueError(f"not a figure, or not line {number}: {row}")
            texts = {name: row[name] for name in ("method", "on", "guarantee", "page", "program")}
            price = tokens / speed if speed else price
            found.append(
                Figure(number=number, gamma=gamma, tokens=tokens, speed=speed, price=price,
                       shown=bool(row["shown"]), **texts)
            )  # fmt: skip
    return found


def filled(text: str, figures: Sequence[Figure]) -> str:
    """The page with the cells "figure here" of all methods that have figures."""
    cells: dict[str, list[str]] = {}
    for each in figures:
        if each.shown:
            cell = f"{each.tokens:.2f} of {each.gamma} ({each.on})"
            cells.setdefault(each.method, []).append(cell)
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
    return "\n".join(made) + "\n"


def picture(figures: Sequence[Figure]) -> str:
    """Tokens per round over the price of a round, as SVG; lines of equal speed start at the origin."""

    def at(price: float, tokens: float, right: int = 0, down: int = 0) -> tuple[int, int]:
        x = EDGE + (WIDTH - 2 * EDGE) * price / MOST_PRICE
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * tokens / MOST_TOKENS
        return round(x) + right, round(y) + down

    def said(where: tuple[int, int], what: object) -> str:
        return f'<text x="{where[0]}" y="{where[1]}">{what}</text>'

    parts = [
        HEAD,
        said((WIDTH // 2, HEIGHT - 6), "price of a round, in plain rounds"),
        f'<text transform="translate(11 {HEIGHT // 2}) rotate(-90)">tokens per round</text>',
        *(said(at(price, 0, 0, 12), price) for price in range(1, int(MOST_PRICE) + 1)),
        *(said(at(0, tokens, -8, 3), tokens) for tokens in range(1, int(MOST_TOKENS) + 1)),
    ]
    for speed in (0.5, 1, 1.5, 2, 3):
        price = min(MOST_PRICE, MOST_TOKENS / speed)
        end = price, price * speed
        (left, bottom), (right, top) = at(0, 0), at(*end)
        thick = 2 if speed == 1 else 1
        parts.append(f'<path d="M{left} {bottom}L{right} {top}" stroke-width="{thick}"/>')
        parts.append(said(at(*end, 13, 3), f"{speed:g} x"))
    parts.append("<g>")
    for each in figures:
        if each.price is not None:
            kind = ("e" if each.guarantee == "exact" else "l") + " h" * (each.speed is None)
            x, y = at(each.price, each.tokens)
            parts.append(f'<circle r="7" class="{kind}" cx="{x}" cy="{y}"/>')
            parts.append(said((x, y + 3), each.number))
    return "\n".join([*parts, "</g></svg>", ""])


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
    for path in old:
        if given.check:
            print(f"{path.name} is not what methods.csv says: run python -m benchmarks.methods")
        else:
            path.write_text(made[path], "utf-8")
            print(f"written: {path}")
    return int(given.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
