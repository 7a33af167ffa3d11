"""What stands in the slots of facts, and which slots lead on to an article of their own."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tasks import words
from tasks.encyclopaedia import names

GOODS = """
candles|barrels|knives|buttons|ropes|clocks|bells|baskets|felt hats|glass beads|roof tiles|pewter spoons|combs|saddles|
kites|lamps|brushes|blankets|locks|needles|wooden shoes|buckets|mirrors|umbrellas|ladders|carpets|biscuits
""".replace("\n", "").split("|")
TRADES = """
a surveyor|a bookbinder|a botanist|a lawyer|a weaver|a musician|a printer|a physician|a carpenter|a teacher|a glassmaker|
a gardener|a merchant|a watchmaker|a potter|a baker|a judge|a chemist
""".replace("\n", "").split("|")
TOPICS = """
the weather|bees|bridges|the stars|mushrooms|old coins|the tides|windmills|moths|glaciers|maps|cheese|fortresses|roses|
comets|shipwrecks|dialects|volcanoes|alphabets|tea|owls|mirrors|calendars|apples|dreams|fossils|shadows|spiders
""".replace("\n", "").split("|")
PASTIMES = """
chess|dancing|fishing|skating|archery|riddles|rowing|card games|singing|wrestling|gardening|birdwatching|kite flying|
storytelling|juggling|long walks
""".replace("\n", "").split("|")
WEATHER = """
a day of heavy rain|the coldest day of the year|a windless morning|a foggy evening|the night of a great storm|
a mild day in February|the first day of snow|the last day of a long drought|a bright Sunday in May|the eve of a holiday
""".replace("\n", "").split("|")
PLACES = """
behind the church|beside the old customs house|behind a row of lime trees|on a hill outside the walls|
next to the corn exchange|at the end of a narrow lane|opposite the theatre|beside a bakery|at the foot of a tower|
near the eastern gate|close to the quay|beside a disused canal|between two chestnut trees|across from the fire station
""".replace("\n", "").split("|")
CAUSES = """
against the advice of friends|for reasons that are not known|out of gratitude|because of a promise|to win a bet|
without being asked|in spite of bad omens|to everybody's surprise|with little hope of success|for want of anything better|
after a long quarrel|on the spur of the moment
""".replace("\n", "").split("|")
TREES = "oak beech pine birch maple larch willow ash elm poplar alder chestnut spruce hazel".split()
FEW = "three four five six seven eight nine ten eleven twelve".split()

# Years after the one that an article counts from, in the order in which things happen.
YEARS = {"start": (0, 9), "soon": (20, 29), "middle": (30, 39), "late": (45, 54), "end": (65, 74)}
MODERN = {"modern": (1880, 1909), "modern_late": (1910, 1939)}


@dataclass(frozen=True)
class Link:
    """What is in a slot has an article of its own: this is how a question calls it without its name."""

    kind: str  # of that article
    phrase: str
    earlier: int | None = None  # years by which that article counts from an earlier year; None: any
    trade: str = ""  # of a person


LINKS = {
    "founder": Link("person", "the founder of {s}", 35, "a merchant"),
    "mayor": Link("person", "the first mayor of {s}", 15, "a lawyer"),
    "architect": Link("person", "the person who drew the plans for rebuilding {s}", -10, "an architect"),
    "painter": Link("person", "the painter of the altar in {s}", trade="a painter"),
    "namesake": Link("person", "the person after whom the school of {s} is named"),
    "mapper": Link("person", "the person who first mapped {s}", 35, "a surveyor"),
    "bridge_builder": Link("person", "the builder of the oldest bridge over {s}", trade="a mason"),
    "biologist": Link("person", "the person who first described the snail of {s}", trade="a biologist"),
    "teacher": Link("person", "the violin teacher of {s}", 30, "a musician"),
    "sculptor": Link("person", "the sculptor of the statue of {s}", -30, "a sculptor"),
    "biographer": Link("person", "the author of the only biography of {s}", -20),
    "lender": Link("person", "the person who lent the money for the first machines of {s}", 40),
    "inventor": Link("person", "the inventor of the cutting machine of {s}", 25, "an engineer"),
    "conductor": Link("person", "the first conductor of the brass band of {s}", 15, "a musician"),
    "author": Link("person", "the author of {s}", 35, "a writer"),
    "illustrator": Link("person", "the maker of the woodcuts in {s}", 35, "an engraver"),
    "critic": Link("person", "the person who wrote the harshest review of {s}", 20, "a journalist"),
    "designer": Link("person", "the designer of {s}", 40, "a shipbuilder"),
    "captain": Link("person", "the first captain of {s}", 30, "a sailor"),
    "birthplace": Link("town", "the town where {s} was born"),
    "deathplace": Link("town", "the town where {s} died"),
    "headquarters": Link("town", "the town where {s} has its headquarters"),
    "warehouse_town": Link("town", "the town where a warehouse of {s} burned down"),
    "setting": Link("town", "the town in which {s} is set"),
    "home_port": Link("town", "the home port of {s}"),
    "river": Link("river", "the river on which {s} lies"),
    "tributary": Link("river", "the largest tributary of {s}"),
    "company": Link("company", "the largest employer in {s}"),
    "water_user": Link("company", "the company that draws water from {s}"),
    "employer": Link("company", "the company that hired {s}", 0),
    "sponsor": Link("company", "the company that paid for the printing of {s}", 15),
    "owner": Link("company", "the company that owned {s}", 15),
}

CHOICES = {
    "goods": GOODS,
    "topic": TOPICS,
    "pastime": PASTIMES,
    "weather": WEATHER,
    "place": PLACES,
    "cause": CAUSES,
    "tree": TREES[::2],
    "other_tree": TREES[1::2],
    "few": FEW,
}
OTHERS = {"thing": names.thing, "title": names.title, "mountain": names.mountain, "number": lambda rng: words.number(rng, 3)}
# Names of these kinds that have no article of their own.
UNLINKED = {
    "person": "guardian spouse friend fisher leader historian hero translator cook painter_of_ships bell_owner".split(),
    "town": "town uncles_town theatre_town barn_town mouth".split(),
    "company": ["rival"],
}
KIND_OF = {
    **{slot: link.kind for slot, link in LINKS.items()},
    **{slot: kind for kind, slots in UNLINKED.items() for slot in slots},
}


def fill(slot: str, year: int, rng: random.Random) -> str:
    """Something for the slot, in an article that counts from `year`."""
    if slot in YEARS:
        return str(year + rng.randint(*YEARS[slot]))
    if slot in MODERN:
        return str(rng.randint(*MODERN[slot]))
    if slot in CHOICES:
        return rng.choice(CHOICES[slot])
    return names.BY_KIND[KIND_OF[slot]](rng) if slot in KIND_OF else OTHERS[slot](rng)
