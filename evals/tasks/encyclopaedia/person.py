"""What an article about a person may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} was born in {start} in {birthplace}, as the youngest of {few} children.",
            "Born in {birthplace} in {start}, {s} was the eldest of {few} children.",
            start="In which year was {s} born?",
            birthplace="In which town was {s} born?",
        ),
        fact(
            "The guardian of {s}, {guardian}, sold {goods} from a shop {place}.",
            "{guardian}, the guardian of {s}, knew more about {topic} than anybody in the neighbourhood.",
            guardian="Who was the guardian of {s}?",
        ),
        fact(
            "It was {teacher} who taught {s} to play the violin, in a room {place}.",
            "{s} learned to play the violin from {teacher}, and gave lessons back in {pastime}.",
            teacher="Who taught {s} to play the violin?",
        ),
        fact(
            "At the age of twelve {s} was sent to an uncle in {uncles_town}, who had a small shop for {goods}.",
            "An uncle in {uncles_town}, who had a small shop, took {s} in at the age of twelve.",
            uncles_town="To which town was {s} sent at the age of twelve?",
        ),
    ),
    (
        fact(
            "{s} worked as {trade} for most of a long life.",
            "Like both grandfathers, {s} was {trade}.",
        ),
        fact(
            "In {soon} {s} was hired by {employer}, and stayed there for {few} years.",
            "{employer} hired {s} in {soon}, to write letters to buyers of {goods}.",
            soon="In which year was {s} hired by a company?",
            employer="Which company hired {s}?",
        ),
        fact(
            "The {title} Medal was given to {s} in {late}, for a treatise on {topic}.",
            "In {late} {s} received the {title} Medal, for a lecture on {topic}.",
            late="In which year did {s} receive a medal?",
            title="Which medal did {s} receive?",
        ),
        fact(
            "Of the letters that {s} wrote, the best known are those to {friend}, which are about {topic}.",
            "For thirty years {s} wrote a letter each week to {friend}, mostly about {topic}.",
            friend="To whom are the best-known letters of {s} addressed?",
        ),
    ),
    (
        fact(
            "{s} married {spouse} in {middle}, on {weather}.",
            "In {middle} {s} and {spouse} were married, in a chapel {place}, with {few} guests.",
            spouse="Whom did {s} marry?",
            middle="In which year did {s} marry?",
        ),
        fact(
            "The library of {s} had {number} books, most of them about {topic}.",
            "There were {number} books in the library of {s}, among them {few} shelves on {topic}.",
            number="How many books were in the library of {s}?",
        ),
        fact(
            "Visitors were always shown one {thing}, which {s} had won in a bet.",
            "In a bet that is still told of, {s} had won one {thing}.",
            thing="What had {s} won in a bet?",
        ),
        fact(
            "The small sailing boat that {s} bought in old age, {cause}, was called the {title}.",
            "In old age {s} learned to sail and bought a small boat, the {title}.",
            title="What was the boat called that {s} bought in old age?",
        ),
    ),
    (
        fact(
            "{s} died in {end} in {deathplace}, on {weather}.",
            "When {s} died in {deathplace}, in {end}, all shops there were closed for a day.",
            end="In which year did {s} die?",
            deathplace="In which town did {s} die?",
        ),
        fact(
            "The statue of {s} was made by {sculptor} and stands {place}.",
            "A statue of {s}, which {sculptor} made without being paid, can be seen {place}.",
            sculptor="Who made the statue of {s}?",
        ),
        fact(
            "The papers of {s} fill {number} boxes, of which {few} are about {topic}.",
            "Scholars have put the papers of {s} in order, in {number} boxes.",
            number="How many boxes do the papers of {s} fill?",
        ),
        fact(
            "The only biography of {s} was written by {biographer}, who is otherwise known for a book on {topic}.",
            "{biographer} wrote the only biography of {s}, {cause}.",
            biographer="Who wrote the only biography of {s}?",
        ),
    ),
)
