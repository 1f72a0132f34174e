"""Problems in the notation of competitions: LaTeX, one short answer each."""

# ruff: noqa: E501 - the sentences of a prompt are kept whole

from __future__ import annotations

from random import Random

from sealed_evals.generator.words import NAMES, pick


def mathematics(rng: Random) -> str:
    """One problem, now and then in two parts."""
    first, second = rng.sample(_TOPICS, 2)
    if rng.random() < 0.7:
        return first(rng)
    return f"(a) {first(rng)} (b) {second(rng)} " + pick(
        rng,
        "Give both answers, separated by a comma.",
        "Give the sum of the two answers.",
        "Which of the two answers is larger?",
    )


def _polynomial(rng: Random, degree: int = 2) -> str:
    terms: list[str] = []
    for power in range(degree, -1, -1):
        value = rng.choice([n for n in range(-9, 10) if n])
        letter = "" if power == 0 else "x" if power == 1 else f"x^{power}"
        size = "" if abs(value) == 1 and power else str(abs(value))
        sign = ("-" if value < 0 else "") if not terms else (" - " if value < 0 else " + ")
        terms.append(f"{sign}{size}{letter}")
    return "".join(terms)


def _algebra(rng: Random) -> str:
    a, b, n = rng.randint(2, 9), rng.randint(2, 20), rng.randint(-6, 6)
    return pick(
        rng,
        f"Let $p(x) = {_polynomial(rng, 3)}$ and $q(x) = {_polynomial(rng, 1)}$. Compute $p(q({n}))$.",
        f"The roots of ${_polynomial(rng)} = 0$ are $r$ and $s$. Find the value of $r^2 + s^2$.",
        f"For which real $t$ does the line $y = {a}x + t$ touch the parabola $y = {_polynomial(rng)}$?",
        f"What is the remainder when ${_polynomial(rng, 4)}$ is divided by $x {'-' if n >= 0 else '+'} "
        f"{abs(n) or b}$?",
        f"Real numbers $u$ and $v$ satisfy $u + {a}v = {b}$ and ${a + 1}u - v = {n + 30}$. What is $uv$?",
        f"Factor ${a * a}x^2 - {b * b}$ over the integers, and give the sum of the two factors.",
        f"Solve \\[\\frac{{{a}}}{{x - {b}}} = \\frac{{{a + rng.randint(1, 5)}}}{{x + {b + 1}}}\\] for $x$.",
        f"If $g(x) = \\frac{{{a}x + {b}}}{{x - {a}}}$, find $g^{{-1}}({n + a + 7})$.",
    )


def _numbers(rng: Random) -> str:
    a, b, m = rng.randint(20, 400), rng.randint(20, 400), rng.randint(5, 23)
    return pick(
        rng,
        f"Find the greatest common divisor of ${a * m}$ and ${b * m}$.",
        f"How many positive integers below ${a + 200}$ are divisible by ${m}$ but not by "
        f"${rng.randint(2, 4)}$?",
        f"What is the last digit of ${rng.randint(3, 19)}^{{{a}}}$?",
        f"Write ${a + b}_{{10}}$ in base ${rng.randint(3, 9)}$ and add up its digits.",
        f"Determine the smallest positive $n$ for which ${m}n$ leaves the remainder $1$ modulo "
        f"${m + rng.choice([1, 2, 4])}$.",
        f"How many ordered pairs of positive integers $(j, k)$ satisfy $jk = {a * rng.randint(2, 6)}$?",
        f"The sum of ${rng.randint(3, 9) * 2 + 1}$ consecutive integers is ${(rng.randint(3, 9) * 2 + 1) * a}$. "
        "What is the largest of them, if it exists?",
    )


def _counting(rng: Random) -> str:
    red, blue, name = rng.randint(3, 9), rng.randint(3, 9), rng.choice(NAMES)
    return pick(
        rng,
        f"An urn holds ${red}$ amber and ${blue}$ violet marbles. {name} draws ${rng.randint(2, 3)}$ without "
        "looking. With what probability are they all of one colour? Express the answer as a fraction.",
        f"In how many ways can a committee of ${rng.randint(3, 4)}$ be chosen from ${red}$ botanists and "
        f"${blue}$ geologists if both professions must be on it?",
        f"Two fair dice with ${red + 3}$ faces each are thrown. What is the probability that the sum exceeds "
        f"${blue + 2}$?",
        f"How many strings of length ${rng.randint(4, 7)}$ over the letters $a$, $b$, $c$ contain exactly "
        f"${rng.randint(1, 3)}$ letters $b$?",
        f"{name} walks on a grid from $(0,0)$ to $({red},{blue})$, one unit right or up at a time. How many "
        f"walks avoid the point $({red - 1},{blue - 2})$?",
        f"A coin shows heads with probability $\\frac{{1}}{{{red}}}$. It is tossed ${blue}$ times. Find the "
        "expected number of heads that follow directly on a tail.",
    )


def _geometry(rng: Random) -> str:
    a, b, c = rng.randint(3, 25), rng.randint(3, 25), rng.randint(2, 14)
    return pick(
        rng,
        f"Triangle $PQR$ has a right angle at $Q$ with $PQ = {a}$ and $QR = {b}$. Find the length of the altitude "
        "from $Q$ in simplest radical form.",
        f"A circle of radius ${a}$ has a chord of length ${min(b, 2 * a - 1)}$. How far is the chord from the "
        "centre?",
        f"The points $A({a},{-b})$ and $B({-c},{b})$ are ends of a diameter. Give the equation of the circle.",
        f"A cone of height ${a}$ and a cylinder of height ${b}$ have the same volume and the same base. Is that "
        "possible? If not, by what factor do the volumes differ?",
        f"Square $KLMN$ has side ${a}$. Point $E$ divides $LM$ in the ratio $1:{c}$. What is the area of triangle "
        "$KEN$?",
        f"A regular polygon has interior angles of ${180 - rng.choice([10, 12, 15, 18, 20, 24, 30])}^\\circ$. How "
        "many diagonals does it have?",
        f"Vectors $\\mathbf{{u}} = \\begin{{pmatrix}} {a} \\\\ {-c} \\end{{pmatrix}}$ and $\\mathbf{{w}} = "
        f"\\begin{{pmatrix}} k \\\\ {b} \\end{{pmatrix}}$ are orthogonal. Determine $k$.",
    )


def _series(rng: Random) -> str:
    a, d, n = rng.randint(1, 20), rng.randint(2, 12), rng.randint(6, 40)
    return pick(
        rng,
        f"An arithmetic sequence begins ${a}, {a + d}, {a + 2 * d}$. Which term is the first above ${a + d * n}$?",
        f"Evaluate \\[\\sum_{{k=1}}^{{{n}}} ({d}k - {a}).\\]",
        f"The sum of an infinite geometric series with first term ${a * d}$ is ${a * d + rng.randint(1, 9) * a}$. "
        "Find its common ratio.",
        f"A sequence satisfies $t_1 = {a}$ and $t_{{m+1}} = {d}t_m - {rng.randint(1, 9)}$. What is "
        f"$t_{rng.randint(4, 6)}$?",
    )


def _functions(rng: Random) -> str:
    a, b, angle = rng.randint(2, 9), rng.randint(2, 30), rng.choice((15, 22.5, 36, 75, 105, 165))
    return pick(
        rng,
        f"Solve $\\log_{a} (x + {b}) + \\log_{a} x = {rng.randint(2, 4)}$.",
        f"Find the modulus of $\\frac{{{a} + {b}i}}{{{b} - {a + 1}i}}$.",
        f"What is the exact value of $\\sin {angle}^\\circ \\cos {angle}^\\circ$?",
        f"How many integers $x$ satisfy $|{a}x - {b}| < {b + rng.randint(1, 30)}$?",
        f"Compute the determinant of $\\begin{{pmatrix}} {a} & {b} \\\\ {-b} & {a + 1} \\end{{pmatrix}}$.",
        f"Let $h(x) = \\lfloor {a}x \\rfloor + \\lceil x \\rceil$. What is $h\\left(\\frac{{{b}}}{{7}}\\right)$?",
        f"The domain of $\\sqrt{{{b} - {a}x}} + \\frac{{1}}{{x + {a}}}$ contains how many integers above "
        f"$-{b + a}$?",
    )


_TOPICS = (_algebra, _numbers, _counting, _geometry, _series, _functions)
