"""Prompts of four kinds for comparing drafts: edits, code, forms and free chat. Twelve of each, written for
this project; the data of a kind is put into few sentences, so that answers resemble each other as they do in
practice. Knows texts only.
"""

from __future__ import annotations

NOTES = (
    "The ferry leaves the old harbour at seven in the morning and returns at dusk. Tickets are sold "
    "on the pier, and children under six travel free. Dogs must be kept on a lead, and bicycles are "
    "stored below deck.",
    "Our bakery opens its second shop in May. It will sell rye bread, seeded rolls and plum cake, and"
    " it will close at noon on Sundays. The first hundred customers receive a cotton bag with the "
    "name of the bakery.",
    "The library moved its maps to the third floor last winter. Readers may borrow up to four maps at"
    " once for two weeks. Large charts stay in the reading room, where the staff will unroll them on "
    "request.",
    "Water the tomato plants early in the day and keep the leaves dry. Tie the stems to a stake when "
    "they reach knee height, and remove the side shoots every week. Feed them with compost once a "
    "month until the autumn.",
)
EDITS = (
    "Repeat the following text word for word, but write it in the past tense:\n\n{}",
    "Correct any mistakes in this text and return the whole text:\n\n{}",
    "Rewrite this text with one sentence per line and change nothing else:\n\n{}",
)

TASKS = (
    "returns the largest number of a list",
    "counts how often every word occurs in a text",
    "reads a CSV file and returns its rows as dictionaries",
    "checks whether a string is a palindrome",
    "computes the n-th Fibonacci number without recursion",
    "merges two sorted lists into one",
    "removes duplicates from a list and keeps the order",
    "converts a temperature from Celsius to Fahrenheit",
)
CLASSES = ("a bank account", "a stack of numbers", "a shopping cart", "a phone book")

PEOPLE = (
    ("Maria Lopez", 34, "Lisbon", "nurse"),
    ("Tom Becker", 51, "Hamburg", "carpenter"),
    ("Aiko Tanaka", 27, "Osaka", "pilot"),
    ("Peter Novak", 45, "Brno", "teacher"),
    ("Ines Martin", 62, "Lyon", "gardener"),
    ("Omar Haddad", 39, "Tunis", "chemist"),
)
FORMS = (
    "Write a JSON object with the keys name, age, city, profession and retired for this person. {0} "
    "is {1} years old, lives in {2} and works as a {3}.",
    "Fill in this form.\n\nName:\nAge:\nCity:\nProfession:\nSummary:\n\nThe facts: {0} is {1} years "
    "old, lives in {2} and works as a {3}.",
)

NAMES = "Anna Karl Sofia Pedro Lena Hugo Mina Ravi Chen Olga Sven Fatima".split()
FAMILIES = "Miller Rossi Dubois Silva Weber Murphy Santos Okafor Ivanova Nakamura".split()
CITIES = "Paris Rome Madrid Berlin Oslo Vienna Prague Athens Dublin Cairo Lima".split()
WORK = "baker plumber lawyer dentist farmer driver painter".split()

QUESTIONS = (
    "Why is the sky blue?",
    "What should I take on a two-day hike?",
    "Explain how a bicycle stays upright.",
    "Tell me a short story about a fox and a clock.",
    "How do I ask my neighbour to play music less loudly?",
    "What is the difference between weather and climate?",
    "Give me three ideas for a rainy Sunday.",
    "Why do people yawn?",
    "Describe the smell of a forest after rain.",
    "How does a refrigerator work?",
    "Is it better to read in the morning or in the evening?",
    "What makes a good teacher?",
)

KINDS: dict[str, list[str]] = {
    "edits": [edit.format(note) for note in NOTES for edit in EDITS],
    "code": [f"Write a Python function that {task}." for task in TASKS]
    + [f"Write a Python class for {thing}, with three methods." for thing in CLASSES],
    "forms": [form.format(*person) for person in PEOPLE for form in FORMS],
    "chat": list(QUESTIONS),
}
"""Twelve prompts of each kind."""

RECORDS = [
    FORMS[0].format(
        f"{NAMES[i % 12]} {FAMILIES[i * 7 % 10]}",
        20 + i * 11 % 50,
        CITIES[i * 5 % 11],
        WORK[i * 3 % 7],
    )
    for i in range(24)
]
"""The same form for 24 people, one after another."""
