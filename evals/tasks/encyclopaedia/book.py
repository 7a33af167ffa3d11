"""What an article about a book may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} is a novel by {author}, who wrote it within {few} months.",
            "The author of {s} is {author}, who had until then written about {topic}.",
            author="Who is the author of {s}?",
        ),
        fact(
            "{s} came out in {start}, in an edition of {number} copies.",
            "The first edition of {s}, of {start}, had {number} copies, which were sold in a shop {place}.",
            start="In which year did {s} come out?",
            number="How many copies did the first edition of {s} have?",
        ),
        fact(
            "The pictures in {s} are woodcuts by {illustrator}, who loved to draw {tree} trees.",
            "{illustrator} made the woodcuts for {s}, {cause}.",
            illustrator="Who made the woodcuts for {s}?",
        ),
        fact(
            "The printing of {s} was paid for by {sponsor}, which asked for {few} pages of advertisements for {goods}.",
            "{sponsor} paid for the printing of {s}, {cause}.",
            sponsor="Which company paid for the printing of {s}?",
        ),
    ),
    (
        fact(
            "The story of {s} is set in {setting}, in the world of {pastime}.",
            "{s} tells of a winter in {setting}, which is described street by street.",
            setting="In which town is {s} set?",
        ),
        fact(
            "At the centre of {s} is a clockmaker called {hero}, who knows everything about {topic}.",
            "In {s} a clockmaker, {hero}, lives {place} and dreams of {pastime}.",
            hero="What is the name of the clockmaker in {s}?",
        ),
        fact(
            "Much in {s} turns on one {thing}, which is found in the cellar on {weather}.",
            "One {thing}, found in the cellar, changes the lives of all people in {s}.",
            thing="What is found in the cellar in {s}?",
        ),
        fact(
            "The longest chapter of {s}, which is about {topic}, is a dream of {number} pages.",
            "There is a dream of {number} pages in {s}, the longest of its chapters.",
            number="How many pages does the dream in {s} have?",
        ),
    ),
    (
        fact(
            "{s} was forbidden in {soon}, because of {few} lines about {topic}.",
            "In {soon} a court forbade {s}, which only made it better known.",
            soon="In which year was {s} forbidden?",
        ),
        fact(
            "The harshest review of {s} was written by {critic}, {cause}.",
            "{critic} wrote the harshest review of {s}, and advised its author to try {pastime}.",
            critic="Who wrote the harshest review of {s}?",
        ),
        fact(
            "The play that was made of {s} had its first night in {theatre_town} in {late}.",
            "In {late} a theatre in {theatre_town} was the first to make a play of {s}.",
            theatre_town="In which town did the play that was made of {s} have its first night?",
            late="In which year did the play that was made of {s} have its first night?",
        ),
        fact(
            "{translator} was the first to translate {s}, {cause}.",
            "The first translation of {s} is by {translator}, and it leaves out all that is said about {topic}.",
            translator="Who was the first to translate {s}?",
        ),
    ),
)
