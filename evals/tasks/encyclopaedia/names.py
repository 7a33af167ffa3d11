"""Names that are nobody's: of people, places, companies, books and ships."""

from __future__ import annotations

import random

from tasks.prose import NAMES
from tasks.words import ADJECTIVES, NOUNS

BEGINNINGS = """
Bal Bar Bel Ber Bor Bran Brin Cal Car Cor Dal Dar Del Dor Dun Fal Far Fen Fol Gal Gar Gol Gren Hal Har Hel Hol Hun Jar Jor
Kal Kar Kel Kor Lan Lar Len Lor Lun Mal Mar Mel Mer Mor Nal Nar Nel Nor Pal Par Pel Per Quin Ral Ren Ril Ros Rul Sal Sar
Sel Sor Sten Tal Tar Tel Tor Tul Val Var Vel Vin Vor Wal Wen Wil Yar Yel Zel Zor
""".split()
MIDDLES = """
a an ar as be bi da de do e el en er ga go i il in ka ki la le lo ma me mi mo na ne ni no o ol or ra re ri ro sa se si so
ta te ti to u va ve vi
""".split()
TOWNS = "bury by combe dale dorf fell field ford gate ham haven holm mark mere mouth stead ton vik ville wick worth".split()
SURNAMES = "berg dell din grave ling man mer nov quist rand rell ric sen sky stam strom ter vard win".split()
RIVERS = "der dra lan lisk mir na ne ra ska sel va vern".split()
MOUNTAINS = "dorn gal horn nock rock spire tor".split()
LOOKS = """
amber black blue bronze carved copper coral crimson dented dotted dusty enamelled engraved feathered folding gilded glazed
golden green grey hollow iron ivory knitted lacquered leaden leather marble mended oaken painted paper pewter plain
polished purple red round rusty scarlet silver slender square stained striped tiny violet waxed white wicker wooden woven
yellow
""".split()
THINGS = """
anchor apron arrow badge barrel basket bell bonnet boot bottle bowl bracelet bridle brooch broom brush bucket buckle
button candle cap casket chain chair chessboard chest cloak clock coin comb compass cradle crown cup cushion dagger doll
drum easel egg fan fiddle flag flask flute fork frame funnel glove goblet hammer harp hat helmet hook horn inkwell jar jug
kettle key kite knife ladder ladle lamp lantern lens lock locket lute mask medallion mirror mitten mortar mug needle oar
paddle pan parasol pebble pipe pitcher plate pulley puppet quilt rake rattle ribbon ring saddle saucer scarf shell shield
shoe sickle sledge slipper snuffbox spade spindle spoon spur stool sundial sword tankard teapot thimble tile tray trumpet
umbrella urn vase violin wheel whistle
""".split()
COMPANIES = ("{} Brothers", "{} & Sons", "{} & Daughters", "{} Works", "{} Company", "{} Union", "{} Associates")


def _made_up(rng: random.Random, endings: list[str]) -> str:
    return rng.choice(BEGINNINGS) + rng.choice(MIDDLES) + rng.choice(endings)


def person(rng: random.Random) -> str:
    return f"{rng.choice(NAMES)} {_made_up(rng, SURNAMES)}"


def town(rng: random.Random) -> str:
    return _made_up(rng, TOWNS)


def river(rng: random.Random) -> str:
    return _made_up(rng, RIVERS)


def mountain(rng: random.Random) -> str:
    return f"Mount {_made_up(rng, MOUNTAINS)}"


def company(rng: random.Random) -> str:
    return rng.choice(COMPANIES).format(_made_up(rng, SURNAMES))


def thing(rng: random.Random) -> str:
    """Such as `copper lantern`."""
    return f"{rng.choice(LOOKS)} {rng.choice(THINGS)}"


def title(rng: random.Random) -> str:
    """Such as `Silent Orchard`."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}".title()


BY_KIND = {"person": person, "town": town, "river": river, "company": company, "book": title, "ship": title}
