"""Words that the generated prompts are filled with. All of our own making; nobody real is meant."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

NAMES = (
    *("Adaeze", "Anouk", "Bartek", "Bilal", "Caoimhe", "Dagny", "Davor", "Eero", "Esma", "Fenna"),
    *("Gaspard", "Hana", "Iker", "Ilse", "Jorun", "Kalina", "Kwame", "Leocadia", "Lubomir", "Maelle"),
    *("Nadir", "Ngozi", "Oskar", "Paloma", "Quirin", "Ragna", "Salome", "Tibor", "Ulla", "Vesna"),
    *("Wanjiru", "Xenia", "Yusra", "Zdenek", "Amaru", "Brisa", "Ciro", "Delphine", "Emeka", "Fatou"),
)
TOWNS = (
    *("Brennholm", "Caldervik", "Dunmarrow", "Eskerby", "Farrowgate", "Grimsund", "Halvorsend"),
    *("Ilmenau Cross", "Jorvale", "Kestrel Bay", "Lindmoor", "Marrowick", "Nethercombe", "Ostrava Mills"),
    *("Pellworth", "Quarrydale", "Rosmere", "Skelwith", "Tarnbrook", "Umberleigh", "Varnhem", "Wexcombe"),
)
TRADES = (
    *("beekeeper", "bookbinder", "carpenter", "ferryman", "florist", "glazier", "locksmith", "miller"),
    *("nurse", "optician", "potter", "saddler", "surveyor", "tailor", "upholsterer", "vet"),
)
SURNAMES = (
    *("Abernathy", "Bellweather", "Corrigan", "Dahlgren", "Ekwueme", "Fontanel", "Garrick", "Hollander"),
    *("Ivanova", "Jellinek", "Kowalczyk", "Lindqvist", "Mbeki", "Nordahl", "Okonjo", "Petrov", "Quintero"),
    *("Rasmussen", "Sorley", "Thackeray", "Uribe", "Vandermeer", "Whitlock", "Yamada", "Zeller"),
)
FIRMS = (
    *("Aldermoor Dairy", "Bluefin Logistics", "Copperline Rail", "Drumlin Optics", "Everglen Seeds"),
    *("Fennimore Press", "Greywater Energy", "Harrowgate Tools", "Ivybank Savings", "Junction Foods"),
    *("Kiln & Sons", "Larkspur Textiles", "Millrace Brewing", "Northlight Studios", "Oakhurst Timber"),
)
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SUBJECTS = (
    *(
        "tide pools",
        "glass blowing",
        "railway signals",
        "honey bees",
        "sourdough",
        "lighthouses",
        "peat bogs",
    ),
    *("volcanic soil", "paper making", "desert nomads", "suspension bridges", "comets", "vaccines", "opera"),
    *("coral reefs", "clockwork", "medieval guilds", "wind turbines", "sign languages", "map projections"),
    *("glaciers", "canals", "fermentation", "migratory birds", "earthquakes", "type design", "probability"),
    *("inflation", "encryption", "antibiotics", "tea trade", "steam engines", "photosynthesis", "censuses"),
)


class Goods(NamedTuple):
    """Things that are counted, made and sold."""

    one: str
    many: str
    low: int  # price in dollars
    high: int


GOODS = (
    Goods("candle", "candles", 3, 14),
    Goods("jar of plum jam", "jars of plum jam", 4, 9),
    Goods("clay mug", "clay mugs", 8, 25),
    Goods("wool scarf", "wool scarves", 15, 60),
    Goods("birdhouse", "birdhouses", 12, 45),
    Goods("postcard", "postcards", 1, 4),
    Goods("seedling", "seedlings", 2, 7),
    Goods("loaf", "loaves", 3, 8),
    Goods("lantern", "lanterns", 10, 40),
    Goods("kite", "kites", 6, 30),
    Goods("notebook", "notebooks", 2, 12),
    Goods("bar of soap", "bars of soap", 2, 9),
    Goods("wicker basket", "wicker baskets", 9, 35),
    Goods("cheese wheel", "cheese wheels", 18, 70),
    Goods("puzzle", "puzzles", 7, 22),
    Goods("violin string", "violin strings", 5, 16),
    Goods("bundle of firewood", "bundles of firewood", 4, 11),
    Goods("bicycle bell", "bicycle bells", 6, 19),
)


def pick(rng: Random, *choices: str) -> str:
    """One of the choices."""
    return rng.choice(choices)


def person(rng: Random) -> str:
    """First name and surname."""
    return f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"


def date(rng: Random) -> str:
    """A day of a month."""
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
