"""Short made-up texts with people, places, dates and figures in them, as material for other tasks."""

# ruff: noqa: E501 - the sentences of a prompt are kept whole

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sealed_evals.generator.words import DAYS, FIRMS, TOWNS, TRADES, date, person, pick


def passage(rng: Random, sentences: int) -> str:
    """A text of one kind, chosen at random."""
    return rng.choice((news, notice, letter, diary, review))(rng, sentences)


def news(rng: Random, sentences: int) -> str:
    """A report from a local paper."""
    town, firm, who, other = rng.choice(TOWNS), rng.choice(FIRMS), person(rng), person(rng)
    money, jobs, year = rng.randint(2, 90), rng.randint(20, 900), rng.randint(2012, 2031)
    first = pick(
        rng,
        f"{firm} will build a new plant in {town}, its director {who} announced on {date(rng)}.",
        f"The council of {town} voted on {rng.choice(DAYS)} to close the old bridge to cars.",
        f"After {rng.randint(3, 30)} years the swimming pool of {town} opens again on {date(rng)}.",
        f"A storm tore the roof off the market hall of {town} in the night to {rng.choice(DAYS)}.",
        f"Archaeologists led by {who} have found a kiln from the {rng.randint(9, 16)}th century near {town}.",
    )
    more: tuple[Callable[[], str], ...] = (
        lambda: f"The work will cost {money} million dollars and be finished in {year}.",
        lambda: f"{other}, who has lived next door since {rng.randint(1970, 2010)}, is not convinced.",
        lambda: (
            f"'We have waited long enough for this,' said {who}, {pick(rng, 'smiling', 'visibly tired', 'at noon')}."
        ),
        lambda: f"According to {firm}, about {jobs} jobs depend on the decision.",
        lambda: f"A petition against the plan was signed by {rng.randint(300, 9000)} people within a week.",
        lambda: (
            f"Trains between {town} and {rng.choice(TOWNS)} ran {rng.randint(10, 90)} minutes late that day."
        ),
        lambda: (
            f"The {rng.choice(TRADES)} {person(rng)} offered {rng.randint(2, 40)} rooms to those who need one."
        ),
        lambda: f"Schools stayed shut until {rng.choice(DAYS)}, and the fire brigade counted no injuries.",
        lambda: (
            f"The last comparable case, in {rng.choice(TOWNS)}, took {rng.randint(2, 9)} years to settle."
        ),
        lambda: f"A second hearing is planned for {date(rng)} in the town hall.",
        lambda: f"Shops along the river report {rng.randint(5, 60)} percent fewer customers than last year.",
    )
    return _joined(rng, first, more, sentences)


def notice(rng: Random, sentences: int) -> str:
    """An announcement of an office, a club or a museum."""
    town, who, hour = rng.choice(TOWNS), person(rng), rng.randint(7, 19)
    what = pick(
        rng,
        "rowing club",
        "natural history museum",
        "allotment society",
        "night school",
        "chess circle",
        "library",
    )
    first = pick(
        rng,
        f"The {what} of {town} invites all members to its yearly meeting on {date(rng)} at {hour}:30.",
        f"Please note that the {what} of {town} moves to {rng.randint(2, 180)} {rng.choice(TRADES).title()} Lane.",
        f"From {date(rng)} on, the {what} in {town} has new opening hours.",
    )
    more: tuple[Callable[[], str], ...] = (
        lambda: f"Questions are answered by {who} under extension {rng.randint(100, 999)}.",
        lambda: (
            f"The fee rises from {rng.randint(8, 20)} to {rng.randint(21, 45)} dollars a year; children pay half."
        ),
        lambda: (
            f"On {rng.choice(DAYS)}s the doors open at {rng.randint(6, 11)} and close at {rng.randint(15, 22)}."
        ),
        lambda: (
            f"Bring your card, {pick(rng, 'warm clothes', 'a pencil', 'your own cup')} and some patience."
        ),
        lambda: (
            f"The {rng.choice(TRADES)} {person(rng)} has repaired the stairs free of charge, for which we thank."
        ),
        lambda: f"Of {rng.randint(40, 400)} lockers, {rng.randint(2, 39)} are still free.",
        lambda: f"Dogs are welcome except on {rng.choice(DAYS)}s.",
        lambda: f"Whoever cannot come may send a vote by post; it has to arrive by {date(rng)}.",
        lambda: (
            f"The summer trip goes to {rng.choice(TOWNS)} and costs {rng.randint(15, 160)} dollars a head."
        ),
    )
    return _joined(rng, first, more, sentences)


def letter(rng: Random, sentences: int) -> str:
    """A complaint or a request to a firm."""
    firm, order, me = rng.choice(FIRMS), rng.randint(10000, 99999), person(rng)
    thing = pick(rng, "kettle", "bookcase", "pair of boots", "garden hose", "tent", "desk lamp", "suitcase")
    first = pick(
        rng,
        f"Dear {firm}, on {date(rng)} I ordered a {thing} (number {order}) and it has still not come.",
        f"To whom it may concern at {firm}: the {thing} you sent me under number {order} is broken.",
        f"Hello {firm}, I write about my {thing}, order {order}, which is not the one in your catalogue.",
    )
    more: tuple[Callable[[], str], ...] = (
        lambda: (
            f"I paid {rng.randint(20, 400)} dollars for it, and {rng.randint(3, 25)} dollars for the delivery."
        ),
        lambda: (
            f"Your colleague {person(rng)} promised a reply within {rng.randint(2, 9)} days, which I never got."
        ),
        lambda: f"I need it by {date(rng)}, because we are moving to {rng.choice(TOWNS)} then.",
        lambda: f"I have called {rng.randint(2, 14)} times and always heard the same melody.",
        lambda: (
            f"The {pick(rng, 'lid', 'left side', 'handle', 'colour', 'manual')} is not what I would call new."
        ),
        lambda: (
            f"My neighbour, a {rng.choice(TRADES)}, says that a repair would cost {rng.randint(15, 90)} dollars."
        ),
        lambda: pick(
            rng,
            "I would like my money back.",
            "Please send another one.",
            "I ask for half the price back.",
        ),
        lambda: f"You can reach me on {rng.choice(DAYS)}s after {rng.randint(15, 20)}:00.",
        lambda: "I have been a customer for a long time and would like to remain one.",
    )
    return f"{_joined(rng, first, more, sentences)} Yours, {me}"


def diary(rng: Random, sentences: int) -> str:
    """A page from the diary of a journey."""
    town, mate = rng.choice(TOWNS), person(rng)
    first = pick(
        rng,
        f"{date(rng)}. We left {town} before sunrise, {mate} in front and I with the map behind.",
        f"{date(rng)}. Rain since {rng.choice(DAYS)}, and the inn at {town} has only one stove.",
        f"{date(rng)}. The pass above {town} is open again, or so the {rng.choice(TRADES)} told us.",
    )
    more: tuple[Callable[[], str], ...] = (
        lambda: (
            f"By noon we had walked {rng.randint(6, 28)} kilometres and climbed {rng.randint(200, 1400)} metres."
        ),
        lambda: (
            f"We met {person(rng)}, a {rng.choice(TRADES)} on the way to {rng.choice(TOWNS)}, who shared her bread."
        ),
        lambda: (
            f"The river was so high that we lost {rng.randint(1, 5)} hours looking for a ford, and {mate} one boot."
        ),
        lambda: f"Supper: lentils, for the {rng.randint(3, 9)}th evening running.",
        lambda: f"I counted {rng.randint(11, 80)} cranes over the lake and none of them looked down.",
        lambda: f"The tent weighs {rng.randint(3, 9)} kilos when dry, and it was not dry.",
        lambda: (
            f"At the hut they asked {rng.randint(9, 40)} dollars for a bed; we slept in the barn for nothing."
        ),
        lambda: f"{mate} says we shall be in {rng.choice(TOWNS)} by {rng.choice(DAYS)}. I say nothing.",
        lambda: "The stars came out late, all at once, as if somebody had remembered them.",
    )
    return _joined(rng, first, more, sentences)


def review(rng: Random, sentences: int) -> str:
    """A review of something that was bought or visited."""
    firm, town, stars = rng.choice(FIRMS), rng.choice(TOWNS), rng.randint(1, 5)
    what = pick(
        rng, "walking shoes", "coffee grinder", "night train", "guest house", "headphones", "bread oven"
    )
    first = pick(
        rng,
        f"{stars} stars for the {what} by {firm}, after {rng.randint(2, 18)} months of use.",
        f"I tried the {what} of {firm} in {town} and have mixed feelings.",
        f"Whoever thinks of the {what} from {firm} should read this first.",
    )
    more: tuple[Callable[[], str], ...] = (
        lambda: (
            f"The price of {rng.randint(30, 500)} dollars is {pick(rng, 'fair', 'steep', 'a joke', 'a bargain')}."
        ),
        lambda: f"It arrived in {rng.choice(TOWNS)} {rng.randint(2, 20)} days after the order, well packed.",
        lambda: (
            f"What I like: the {pick(rng, 'silence', 'weight', 'smell', 'view', 'colour')}. What I do not: the "
            f"{pick(rng, 'noise', 'instructions', 'smell of glue', 'queue', 'buttons')}."
        ),
        lambda: (
            f"My brother {person(rng)} has had the older model since {rng.randint(2005, 2022)} and prefers it."
        ),
        lambda: (
            f"The service answered after {rng.randint(1, 70)} hours and sent a spare part for nothing, "
            "which is rare."
        ),
        lambda: f"It broke on {date(rng)}, was mended within {rng.randint(2, 9)} days, and has worked since.",
        lambda: (
            f"Compared with what {rng.choice(FIRMS)} offers, it is {pick(rng, 'lighter', 'louder', 'better made')}."
        ),
        lambda: (
            f"Would I buy it again? {pick(rng, 'Yes.', 'No.', 'At half the price.', 'Ask me in a year.')}"
        ),
    )
    return _joined(rng, first, more, sentences)


def _joined(rng: Random, first: str, more: tuple[Callable[[], str], ...], sentences: int) -> str:
    chosen = rng.sample(more, min(len(more), max(1, sentences - 1)))
    return " ".join([first, *(say() for say in chosen)])
