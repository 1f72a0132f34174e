"""Word problems: a quantity that a chain of events changes, and frames with rates, shares and sizes.

Numbers are drawn so that every quantity on the way is a positive whole number.
"""

# ruff: noqa: E501 - the sentences of a prompt are kept whole

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sealed_evals.generator.words import GOODS, NAMES, TOWNS, TRADES, Goods, pick


class _Step(NamedTuple):
    """A sentence and the quantity after it."""

    text: str
    left: int


class _Tale(NamedTuple):
    """Who and what a chain of events is about."""

    name: str
    goods: Goods


def word_problem(rng: Random) -> str:
    """One problem."""
    return rng.choice(_FRAMES)(rng)


def _chain(rng: Random) -> str:
    name, goods, town = rng.choice(NAMES), rng.choice(GOODS), rng.choice(TOWNS)
    start = 12 * rng.randint(4, 30)
    opening = pick(
        rng,
        f"{name} runs a stall in {town} and starts the week with {start} {goods.many}.",
        f"At the beginning of the month the {rng.choice(TRADES)} {name} has {start} {goods.many} in the cellar.",
        f"A shop in {town} has {start} {goods.many} on its shelves when {name} opens the door.",
        f"{name} has packed {start} {goods.many} for the fair in {town}.",
    )
    left, sentences = start, [opening]
    for change in rng.sample(_CHANGES, rng.randint(2, 4)):
        text, left = change(rng, left, _Tale(name, goods))
        sentences.append(text)
    return " ".join([*sentences, _question(rng, goods, name)])


def _question(rng: Random, goods: Goods, name: str) -> str:
    price = rng.randint(goods.low, goods.high)
    return pick(
        rng,
        f"How many {goods.many} are there in the end?",
        f"How many {goods.many} does {name} have now?",
        f"If every {goods.one} that is left sells for ${price}, how much money does {name} take in?",
        f"What remains is sold at ${price} a piece. What is it worth altogether?",
        f"{name} then sells everything that is left for ${price} each and pays $"
        f"{rng.randint(2, 9) * 5} for the pitch. How many dollars does {name} keep?",
    )


def _sells_part(rng: Random, left: int, tale: _Tale) -> _Step:
    part = rng.choice([d for d in (2, 3, 4, 6) if left % d == 0] or [1])
    words = {1: "none", 2: "half", 3: "a third", 4: "a quarter", 6: "a sixth"}[part]
    rest = left if part == 1 else left - left // part
    day = pick(rng, "Before noon", "On the first day", "By Thursday", "In the first hour")
    return _Step(f"{day} {words} of the {tale.goods.many} are sold.", rest)


def _gives_away(rng: Random, left: int, tale: _Tale) -> _Step:
    number = rng.randint(1, max(1, left // 5))
    whom = pick(rng, "the neighbours", "a school", "two cousins", "the hospital", "an old friend")
    return _Step(f"{tale.name} gives {number} of them to {whom}.", left - number)


def _brings_more(rng: Random, left: int, tale: _Tale) -> _Step:
    boxes, each = rng.randint(2, 9), rng.randint(3, 15)
    what = pick(
        rng, "A van brings", "The supplier delivers", f"{tale.name}'s sister comes with", "There arrive"
    )
    return _Step(f"{what} {boxes} boxes with {each} {tale.goods.many} in each.", left + boxes * each)


def _loses_some(rng: Random, left: int, tale: _Tale) -> _Step:
    number = rng.randint(1, max(1, left // 6))
    how = pick(rng, "are damaged by rain", "turn out to be faulty", "fall off the cart", "cannot be found")
    return _Step(f"Then {number} of the {tale.goods.many} {how}.", left - number)


def _makes_daily(rng: Random, left: int, tale: _Tale) -> _Step:
    days, made = rng.randint(2, 7), rng.randint(3, 20)
    return _Step(f"For {days} days {tale.name} makes {made} new ones a day.", left + days * made)


def _doubles(rng: Random, left: int, tale: _Tale) -> _Step:
    factor, word = rng.choice([(2, "twice"), (3, "three times")])
    return _Step(
        f"After a good season the stock of {tale.goods.many} grows to {word} what it was.", left * factor
    )


def _orders(rng: Random, left: int, tale: _Tale) -> _Step:
    customers = rng.randint(2, 6)
    each = max(1, rng.randint(1, max(1, left // (customers * 2))))
    return _Step(
        f"Each of {customers} customers takes {each} of the {tale.goods.many}.",
        max(1, left - customers * each),
    )


_Change = Callable[[Random, int, _Tale], _Step]
_CHANGES: tuple[_Change, ...] = (
    *(_sells_part, _gives_away, _brings_more, _loses_some, _makes_daily, _doubles, _orders),
)


def _journey(rng: Random) -> str:
    name, legs = rng.choice(NAMES), rng.randint(2, 3)
    towns = rng.sample(TOWNS, legs + 1)
    how = pick(rng, "drives", "cycles", "travels by bus", "rides a scooter", "takes the slow train")
    sentences = [f"{name} {how} from {towns[0]} to {towns[-1]}."]
    for leg in range(legs):
        speed, hours = 4 * rng.randint(3, 20), rng.randint(1, 5)
        lead = "The stretch" if leg == 0 else pick(rng, "After that, the road", "The next part")
        sentences.append(
            f"{lead} from {towns[leg]} to {towns[leg + 1]} is {speed * hours} kilometres long, and {name} "
            f"covers it at {speed} kilometres an hour."
        )
        if rng.random() < 0.5:
            sentences.append(f"In {towns[leg + 1]} there is a break of {5 * rng.randint(2, 12)} minutes.")
    sentences.append(
        pick(
            rng,
            "How long does the whole trip take, in minutes?",
            "How many hours and minutes pass between leaving and arriving?",
            f"If {name} leaves at {rng.randint(5, 9)}:{rng.choice(['00', '15', '30', '45'])} in the morning, "
            "when is the arrival?",
        )
    )
    return " ".join(sentences)


def _shopping(rng: Random) -> str:
    name, chosen = rng.choice(NAMES), rng.sample(GOODS, rng.randint(2, 3))
    counts = [(rng.randint(2, 9), goods, rng.randint(goods.low, goods.high)) for goods in chosen]
    listed = [f"{n} {goods.many} at ${price} each" for n, goods, price in counts]
    total = sum(n * price for n, _, price in counts)
    percent = rng.choice((5, 10, 15, 20, 25))
    extra = pick(
        rng,
        f"The seller takes {percent} percent off the whole bill.",
        f"A delivery fee of ${rng.randint(3, 12)} is added.",
        f"There is a tax of {percent} percent on everything.",
        f"A voucher takes ${rng.randint(2, max(2, total // 6))} off the bill.",
    )
    note = (total * 13 // 1000 + 1) * 100
    return (
        f"At a market in {rng.choice(TOWNS)}, {name} buys {', '.join(listed[:-1])} and {listed[-1]}. {extra} "
        + pick(
            rng,
            f"How much change is there from ${note}?",
            "What does the purchase cost in the end?",
            f"How much does each of {rng.randint(2, 5)} people pay if they split the bill evenly?",
        )
    )


def _sharing(rng: Random) -> str:
    people, parts = rng.sample(NAMES, 3), [rng.randint(1, 7) for _ in range(3)]
    unit, what = (
        rng.randint(4, 60),
        pick(rng, "a prize", "the rent", "a bag of coins", "a legacy", "the profit"),
    )
    total = unit * sum(parts)
    first = (
        f"{people[0]}, {people[1]} and {people[2]} divide {what} of ${total} in the ratio "
        f"{parts[0]} to {parts[1]} to {parts[2]}."
    )
    twist = pick(
        rng,
        f"{people[1]} then passes ${rng.randint(1, max(1, unit * parts[1] // 2))} on to {people[0]}.",
        f"{people[2]} spends {rng.choice(['half', 'a quarter'])} of the share at once.",
        f"Before that, ${rng.randint(2, 20)} had been set aside for stamps.",
    )
    return f"{first} {twist} " + pick(
        rng,
        f"How much money does {people[rng.randint(0, 2)]} have at the end?",
        "By how many dollars do the largest and the smallest share differ now?",
    )


def _workers(rng: Random) -> str:
    name, trade, goods = rng.choice(NAMES), rng.choice(TRADES), rng.choice(GOODS)
    crew, rate, hours = rng.randint(2, 8), rng.randint(2, 9), rng.randint(3, 8)
    gone = rng.randint(1, crew - 1)
    return (
        f"The {trade} {name} employs {crew} helpers, and each of them finishes {rate} {goods.many} an hour. "
        f"They work for {hours} hours; then {gone} of them {pick(rng, 'go home', 'are sent on an errand')} and "
        f"the others work {rng.randint(2, 5)} hours more. "
        + pick(
            rng,
            f"How many {goods.many} are finished that day?",
            f"Each helper is paid ${rng.randint(9, 24)} an hour. What are the wages of the whole day?",
            f"The order was for {crew * rate * hours + rng.randint(1, 90)} {goods.many}. How many are missing "
            "or left over?",
        )
    )


def _plot(rng: Random) -> str:
    width, more, step = rng.randint(5, 30), rng.randint(2, 15), rng.choice((2, 3, 4, 5))
    place = pick(rng, "playground", "orchard", "paddock", "rose garden", "courtyard", "vegetable bed")
    return (
        f"In {rng.choice(TOWNS)} a rectangular {place} is {width} metres wide and {more} metres longer than that. "
        + pick(
            rng,
            f"A post stands at every corner and every {step} metres between. A post costs "
            f"${rng.randint(3, 18)}. What do all posts cost?",
            f"A path {rng.randint(1, 3)} metres wide runs round it on the outside. What is the area of the path?",
            f"Turf is sold in rolls of {step} square metres at ${rng.randint(6, 30)} a roll, and only whole rolls "
            "are sold. How much does it cost to cover the ground?",
            f"Its owner {rng.choice(NAMES)} fences three of the four sides, leaving one long side open. How much "
            "fence is needed?",
        )
    )


def _saving(rng: Random) -> str:
    name, weekly, weeks = rng.choice(NAMES), rng.randint(4, 40), rng.randint(5, 26)
    start, price = rng.randint(10, 120), rng.randint(90, 900)
    what = pick(rng, "a telescope", "a canoe", "a sewing machine", "a saddle", "a cello bow", "a trip")
    spent = rng.randint(2, max(2, weekly // 2))
    return (
        f"{name} is saving for {what} that costs ${price}. There are ${start} in the tin, and every week "
        f"${weekly} are added, but every {rng.choice(['second', 'third', 'fourth'])} week ${spent} are taken out "
        f"for {pick(rng, 'bus fares', 'a cake', 'library fines', 'string', 'paint')}. "
        + pick(
            rng,
            f"How much is in the tin after {weeks} weeks?",
            "After how many weeks is there enough?",
            f"How much is still missing after {weeks} weeks?",
        )
    )


_FRAMES = (_chain, _chain, _chain, _journey, _shopping, _sharing, _workers, _plot, _saving)
