"""The spoken form of written text: digits, money, times, dates and percentages as words.

Both synthesisers get this form, so that they read numbers alike; the model learns to write digits. Knows
nothing of voices.
"""

from __future__ import annotations

import re

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MONTHS = (
    "January February March April May June July August September October November December"
).split()
_MONTH = "|".join(MONTHS)


def cardinal(n: int) -> str:
    """0 .. 999,999,999 in words."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            rest = f" {cardinal(n % size)}" if n % size else ""
            return f"{cardinal(n // size)} {name}{rest}"
    raise AssertionError(n)


def ordinal(n: int) -> str:
    head, _, last = cardinal(n).rpartition(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    else:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return f"{head} {last}".strip()


def year(n: int) -> str:
    """1900 .. 2099 as spoken."""
    if 2000 <= n <= 2009:
        return cardinal(n)
    tail = n % 100
    second = "hundred" if tail == 0 else f"oh {ONES[tail]}" if tail < 10 else cardinal(tail)
    return f"{cardinal(n // 100)} {second}"


def decimal(text: str) -> str:
    whole, _, digits = text.replace(",", "").partition(".")
    if not digits:
        return cardinal(int(whole))
    return f"{cardinal(int(whole))} point {' '.join(ONES[int(d)] for d in digits)}"


def money(text: str) -> str:
    whole, _, cents = text.replace(",", "").partition(".")
    words = f"{cardinal(int(whole))} dollar{'' if int(whole) == 1 else 's'}"
    return words if not cents else f"{words} and {cardinal(int(cents))} cents"


def clock(hour: str, minute: str) -> str:
    m = int(minute)
    if m == 0:
        return cardinal(int(hour))
    return f"{cardinal(int(hour))} {'oh ' if m < 10 else ''}{cardinal(m)}"


RULES = (
    (r"\$(\d[\d,]*\.?\d*) (million|billion)", lambda m: f"{decimal(m[1])} {m[2]} dollars"),
    (r"\$(\d[\d,]*(?:\.\d\d)?)", lambda m: money(m[1])),
    (r"\b(\d{1,2}):(\d\d)\b", lambda m: clock(m[1], m[2])),
    (r"\ba\.m\.", lambda m: "A M"),
    (r"\bp\.m\.", lambda m: "P M"),
    (rf"\b({_MONTH}) (\d{{1,2}})\b", lambda m: f"{m[1]} {ordinal(int(m[2]))}"),
    (r"\b(\d{1,3})(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1]))),
    (r"\b((?:19|20)\d\d)\b(?![,.]\d)", lambda m: year(int(m[1]))),
    (r"(\d[\d,]*(?:\.\d+)?)%", lambda m: f"{decimal(m[1])} percent"),
    (r"\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d+", lambda m: decimal(m[0])),
)


def spoken(text: str) -> str:
    """Return the spoken form of `text`; text without digits is unchanged."""
    for pattern, words in RULES:
        text = re.sub(pattern, words, text)
    return text
