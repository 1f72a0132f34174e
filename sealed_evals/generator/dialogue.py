"""Two-turn tasks: rewriting, extraction, summaries of made-up texts, and open questions."""

# ruff: noqa: E501 - the sentences of a prompt are kept whole

from __future__ import annotations

from random import Random

from sealed_evals.generator.prose import letter, news, notice, passage
from sealed_evals.generator.words import FIRMS, NAMES, SUBJECTS, TOWNS, TRADES, person, pick

Turns = tuple[str, str]


def rewriting(rng: Random) -> Turns:
    """A text to put into another form, and a second wish."""
    how = pick(
        rng,
        "Rewrite the following text so that a child of nine understands it",
        "Turn this text into a polite and short message",
        "Put the text below into the past tense and into the third person",
        "Make this text sound more formal without adding anything",
        "Correct the style of the text, and keep every figure in it",
        "Rewrite this as a dialogue between two neighbours",
        "Say the same in plain words and in no more than four sentences",
        "Change the tone of this text from cool to friendly",
        "Recast the following as a list of numbered points",
        "Write this text again from the other side's point of view",
    )
    limit = pick(
        rng,
        "",
        f", and use at most {rng.randint(40, 90)} words",
        ", keeping all names",
        f", and begin with the word '{pick(rng, 'Today', 'Although', 'Nobody', 'Finally')}'",
    )
    then = pick(
        rng,
        "Now cut your version to half its length.",
        "Give it a headline of at most six words.",
        f"Do it once more, as {rng.choice(NAMES)}, a {rng.choice(TRADES)}, would say it.",
        "Which facts of the original did you leave out?",
        "Replace every number by a word.",
        "Explain the three largest changes you made.",
    )
    return f"{how}{limit}.\n\n{passage(rng, rng.randint(3, 5))}", then


def extraction(rng: Random) -> Turns:
    """A text to draw fields from, and a second wish."""
    text = rng.choice((news, notice, letter))(rng, rng.randint(4, 7))
    fields = rng.sample(
        [
            "people",
            "places",
            "dates",
            "amounts of money",
            "organisations",
            "numbers",
            "deadlines",
            "promises",
        ],
        rng.randint(2, 4),
    )
    form = pick(
        rng,
        f"as a JSON object with the keys {', '.join(repr(f.replace(' ', '_')) for f in fields)}",
        "as a table with one row for each find",
        "as a bulleted list, grouped by kind",
        "as lines of the form 'kind: value'",
    )
    ask = pick(
        rng,
        f"Find all {', '.join(fields[:-1])} and {fields[-1]} in the text and give them {form}.",
        f"What {', '.join(fields[:-1])} and {fields[-1]} are mentioned here? Answer {form}, with nothing else.",
        f"Extract {', '.join(fields[:-1])} and {fields[-1]} from the passage below {form}.",
    )
    then = pick(
        rng,
        f"Leave out the {fields[0]} and sort the rest by the alphabet.",
        "Add the words that stand directly before each find.",
        "Write the same as CSV.",
        "Which of these would change if the text had been written a year later?",
        "How many finds are there of each kind?",
    )
    return (f"{ask}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{ask}"), then


def summary(rng: Random) -> Turns:
    """A longer text to sum up, and a second wish."""
    parts = [passage(rng, rng.randint(4, 7)) for _ in range(rng.randint(1, 3))]
    ask = pick(
        rng,
        f"Summarise the text in {rng.choice(['one sentence', 'two sentences', 'three sentences'])}.",
        f"Sum up what follows in at most {rng.randint(20, 60)} words.",
        f"What are the {rng.choice(['two', 'three', 'four'])} main points of this text?",
        f"Write a summary of this text for {pick(rng, 'a busy mayor', 'somebody who was away', 'a radio bulletin')}.",
        "Condense the following into a short paragraph without any figures.",
    )
    then = pick(
        rng,
        "Shorten this to a single line.",
        "What did you leave out, and why?",
        "Put the summary into French.",
        "Now name the one sentence of the original that matters most.",
        "Rewrite the summary as a question.",
    )
    body = "\n\n".join(parts)
    return (f"{ask}\n\n{body}" if rng.random() < 0.7 else f"{body}\n\n{ask}"), then


def chat(rng: Random) -> Turns:
    """An open question, and a second one that leans on its answer."""
    return rng.choice((_explain, _explain, _write, _play, _order, _advise))(rng)


def _explain(rng: Random) -> Turns:
    one, other = rng.sample(SUBJECTS, 2)
    ask = pick(
        rng,
        f"Explain to {pick(rng, 'a beginner', 'a sceptic', 'a class of teenagers', 'an engineer')} what is "
        f"interesting about {one}.",
        f"What do {one} and {other} have in common, and where does the comparison fail?",
        f"How has our understanding of {one} changed over the last {rng.randint(2, 20) * 10} years?",
        f"Name {rng.randint(3, 6)} common mistakes about {one} and put them right.",
        f"Which questions about {one} are still open? Rank them by how hard they are.",
    )
    then = pick(
        rng,
        "Give an example from everyday life for your second point.",
        "What would somebody who disagrees say?",
        f"And how does that relate to {rng.choice(SUBJECTS)}?",
        "Say it again in three short sentences.",
        "Which of your statements are you least sure of?",
    )
    return ask, then


def _write(rng: Random) -> Turns:
    form = pick(
        rng,
        "a limerick",
        "an opening paragraph",
        "a toast",
        "a product description",
        "a speech",
        "an invitation",
    )
    ask = (
        f"Write {form} about {rng.choice(SUBJECTS)} for {pick(rng, 'the retirement', 'the birthday', 'the friends')} "
        f"of {person(rng)}, a {rng.choice(TRADES)} from {rng.choice(TOWNS)}."
        + pick(
            rng,
            f" Use the words '{pick(rng, 'rust', 'velvet', 'ladder')}' and '{pick(rng, 'salt', 'thunder', 'moss')}'.",
            f" It must not be longer than {rng.randint(40, 150)} words.",
            " Avoid every adjective.",
            "",
        )
    )
    then = pick(
        rng,
        "Make it sadder.",
        "Let every sentence begin with the same letter.",
        f"Move the scene to {rng.choice(TOWNS)} in winter.",
        "Turn it into a letter.",
        "Which line would you strike out, and why?",
    )
    return ask, then


def _play(rng: Random) -> Turns:
    role = f"{person(rng)}, a {rng.choice(TRADES)} in {rng.choice(TOWNS)}"
    ask = (
        f"You are {role}, and somebody from {rng.choice(FIRMS)} asks you about {rng.choice(SUBJECTS)}. Stay in your "
        f"part and answer as you would {pick(rng, 'on a bad day', 'after a long shift', 'to a child', 'on stage')}."
    )
    then = pick(
        rng,
        "Do you ever regret your trade?",
        "What would you ask me in return?",
        "And now lose your temper, politely.",
        f"A customer named {rng.choice(NAMES)} interrupts you. Go on.",
    )
    return ask, then


def _order(rng: Random) -> Turns:
    people = rng.sample(NAMES, rng.randint(4, 6))
    thing = pick(
        rng,
        "stand in a queue",
        "live on floors, one above the other,",
        "finish a race",
        "sit in a row, left to right,",
    )
    clues = []
    for place, name in enumerate(people[1:], 1):
        before = people[place - 1]
        clues.append(
            pick(rng, f"{name} comes directly after {before}.", f"{before} is the one just before {name}.")
        )
    clues.append(f"{people[0]} is not last.")
    rng.shuffle(clues)
    ask = (
        f"{', '.join(sorted(people)[:-1])} and {sorted(people)[-1]} {thing} in some order. {' '.join(clues)} "
        f"Who comes {pick(rng, 'first', 'last', 'third')}? Show how you got there."
    )
    return ask, pick(
        rng,
        "Which of the statements was not needed?",
        f"Suppose {people[-1]} and {people[0]} change places. What is the order then?",
        "Draw the order as a row of initials.",
    )


def _advise(rng: Random) -> Turns:
    ask = (
        f"A {rng.choice(TRADES)} has {rng.randint(3, 30)} {pick(rng, 'days', 'weeks', 'hours')} and "
        f"{rng.randint(2, 90) * 50} dollars to {pick(rng, 'move a workshop', 'learn to swim', 'plan a wedding')} "
        f"in {rng.choice(TOWNS)}. Make a plan in {rng.randint(4, 9)} steps, and say what could go wrong in each."
    )
    return ask, pick(
        rng,
        "The money is halved. What goes?",
        "Put the plan into a table.",
        f"Step {rng.randint(2, 4)} fails. What now?",
    )
