"""The words that tasks are made of: the keys of needles, the lists of `cwe`, the sentences of prose."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable

ADJECTIVES = """
amber ancient autumn bare bashful bitter blank blunt bold brave breezy brief bright brisk broad bronze calm careful
cheap chilly civil clever close cloudy coarse cold common copper coral cosy crimson crisp curious damp dark dear deep
distant dizzy dotted double dry dusty eager early eastern easy elder empty even faint fair fancy fast feeble fierce
final fine firm flat fond foreign frail free fresh frosty full gentle giant glad gloomy golden grand grave green grey
hasty heavy hidden high hollow honest humble icy idle jolly keen kind lame large late lazy lean level light lively
lone long loose loud low loyal lucky mellow merry mild misty modest mossy muddy narrow neat new nimble noble northern
odd old olive open pale patient plain playful polite proud prudent purple quick quiet rapid rare raw ready rich ripe
rough round royal rusty safe salty sandy scarlet secret shallow sharp short shy silent silver simple sleepy slender
slim slow small smart smooth snowy soft solemn solid sour southern spare steady steep stern stiff still stormy stout
strange strict strong sturdy sudden sunny sweet swift tall tame tender thick thin thirsty tidy timid tiny tired tough
upper urban useful vague vast violet vivid warm wary weary western wet white wide wild windy wise wooden woolen young
""".split()

NOUNS = """
acorn alley anchor apple apron arch arrow attic axle badge bakery ballad bandage barge barley barn barrel basin basket
bay beach beacon bead beam bean bell bench berry bicycle blanket blossom board boat bonnet boot bottle boulder bowl
branch brass bread breeze brick bridge broom brush bucket buckle bundle burrow butter button cabin cable cactus camel
camera canal candle canoe canvas cape cargo carpet carriage cart castle cellar chain chair chalk chapel cherry chest
chimney chisel church cider circus clay cliff cloak clock cloth cloud coal coast coat cobbler coffee coin collar
column comb compass cottage cotton couch counter cradle crane crate creek crow crown cup cupboard curtain cushion
dairy daisy dam deck desk diary dock dome donkey door drawer drum duck dune eagle easel elbow ember engine envelope
fabric farm feather fence fern ferry fiddle field finch flag flask fleet flour flute forest forge fork fountain fox
frame garden gate glacier glove goat grain grape gravel grove gully hall hammer hammock harbor harness harp harvest
hat hay hazel hedge helmet heron hill hinge honey hook horn horse hut inn iron island ivory ivy jacket jar jetty jewel
jug jungle kettle key kitchen kite knot ladder lagoon lake lamp lane lantern larch lawn leaf ledge lemon lens letter
lever library lily linen lizard locket log loom lute mantle map maple marble market marsh mast meadow medal melon mill
mine mirror mitten moat moose mortar moss moth mountain mug museum needle nest net oak oar oasis oat ocean olivewood
orchard organ otter oven owl oyster paddle palace pan paper parcel parrot path pear pebble pencil pepper piano pier
pigeon pillar pillow pine pipe pitcher plank plate plough plum pocket pond poppy porch potter prairie pulley pumpkin
puppet quarry quilt rabbit raft railway rake ravine reed ribbon ridge ring river road robin rock roof rope rose rudder
rug saddle sail salmon satchel saucer scarf school seed shed sheep shelf shell shield ship shoe shop shore shovel
sickle signal silk sister sledge sleeve smith snail sock sofa spade sparrow spindle spoon spring square squirrel
stable stair statue steam stone stool stork stove straw stream street string sugar summit swallow swan table tailor
tavern teapot temple tent thimble thistle thorn thread throne ticket tiger tile timber torch tower trail train tray
trout trumpet trunk tulip tunnel turnip turtle valley vase veil village vine violin wagon wall walnut wardrobe
warehouse water weaver well wharf wheat wheel whistle willow window wing winter wolf wool workshop yard yarn
""".split()

VERBS = """
admire answer arrange borrow bring build buy carry carve choose clean close collect cover describe draw dust examine
fetch fill find fold follow forget gather guard hang hide inspect join keep lend lift lock lose measure mend move
notice offer open order pack paint photograph place polish pull push reach recall remember remove repair replace
return search sell share sharpen sketch store study sweep trade trim visit wash watch weigh wrap
""".split()


def key_words(rng: random.Random) -> str:
    """A key of an adjective and a noun, such as `mossy-lantern`."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def number(rng: random.Random, digits: int) -> str:
    """A number of exactly this many digits."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def identifier(rng: random.Random) -> str:
    """A UUID of version 4."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def distinct(make: Callable[[], str], count: int) -> list[str]:
    """`count` different results of `make()`, in the order in which they came."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)


def list_words(rng: random.Random, count: int, common: int, avoid: Iterable[str] = ()) -> list[str]:
    """`count` different words, of which the first `common` are part of no other, and none of which has a word of `avoid` in
    it. Plain words as long as there are enough of them, then compounds of two nouns."""
    plain = [word for word in sorted({*ADJECTIVES, *NOUNS, *VERBS}) if not _has_any(word, avoid)]
    rng.shuffle(plain)
    whole = (word for word in plain if not any(word in other for other in plain if other != word))
    first = list(itertools.islice(whole, common))
    words = first + [word for word in plain if word not in first]
    if count > len(words):
        words += _compounds(rng, count - len(words), [*first, *avoid])
    return words[:count]


def _has_any(word: str, parts: Iterable[str]) -> bool:
    return any(part in word for part in parts)


def _compounds(rng: random.Random, count: int, avoid: list[str]) -> list[str]:
    nouns = [noun for noun in NOUNS if noun not in avoid]
    plain = {*ADJECTIVES, *NOUNS, *VERBS}
    most = len(nouns) ** 2 // 2  # beyond which drawing until all differ would take long
    if count > most:
        raise ValueError(f"expected at most {most} compounds, got {count}")
    found: dict[str, None] = {}
    while len(found) < count:
        word = rng.choice(nouns) + rng.choice(nouns)
        if word not in plain and not _has_any(word, avoid):
            found[word] = None
    return list(found)
