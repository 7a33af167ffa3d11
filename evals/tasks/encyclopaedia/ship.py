"""What an article about a ship may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} was built in {start} after drawings by {designer}.",
            "{designer} drew the plans for {s}, which was built in {start} from {tree} and {other_tree}.",
            start="In which year was {s} built?",
            designer="Who designed {s}?",
        ),
        fact(
            "The home port of {s} was {home_port}, where {goods} were taken on board.",
            "For all the years at sea {s} had its home port in {home_port}.",
            home_port="What was the home port of {s}?",
        ),
        fact(
            "{s} belonged to {owner}, which dealt in {goods}.",
            "The owner of {s} was {owner}, a company without any other vessel.",
            owner="To which company did {s} belong?",
        ),
        fact(
            "The figurehead of {s} was one {thing}, painted anew every {few} years.",
            "Instead of a figure {s} had one {thing} at the bow, which was chosen {cause}.",
            thing="What was the figurehead of {s}?",
        ),
    ),
    (
        fact(
            "The first captain of {s} was {captain}, who knew a great deal about {topic}.",
            "{captain} was the first captain of {s}, and was liked for a love of {pastime}.",
            captain="Who was the first captain of {s}?",
        ),
        fact(
            "The longest voyage of {s} took {number} days, with {few} passengers on board.",
            "It took {s} {number} days to come home from the longest of all voyages.",
            number="How many days did the longest voyage of {s} take?",
        ),
        fact(
            "The cook {cook} was on board {s} for {few} years and was known for dishes with mustard.",
            "No one sailed on {s} for longer than {cook}, the cook.",
            cook="Who was the cook on board {s}?",
        ),
        fact(
            "On most voyages {s} carried {goods}, and on the way back {tree} wood.",
            "The hold of {s} was made for {goods}, but grain was carried in it, too.",
        ),
    ),
    (
        fact(
            "In {soon} {s} ran aground on a sandbank called the {title}, on {weather}.",
            "A sandbank, the {title}, held {s} for a week in {soon}.",
            soon="In which year did {s} run aground?",
            title="What is the sandbank called on which {s} ran aground?",
        ),
        fact(
            "The painting of {s} in a storm is by {painter_of_ships}, and hangs in a house {place}.",
            "{painter_of_ships} painted {s} in a storm, {cause}.",
            painter_of_ships="Who painted {s} in a storm?",
        ),
        fact(
            "{s} was broken up in {late}, and the timber was used for a barn in {barn_town}.",
            "In {late} {s} was broken up; a barn in {barn_town} has beams that come from it.",
            late="In which year was {s} broken up?",
            barn_town="In which town was a barn built with the timber of {s}?",
        ),
        fact(
            "The bell of {s} was bought by {bell_owner}, who hung it up in a garden {place}.",
            "{bell_owner} bought the bell of {s} at an auction, {cause}.",
            bell_owner="Who bought the bell of {s}?",
        ),
    ),
)
