"""What an article about a company may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} was founded in {start} by {founder}, in {few} rooms {place}.",
            "The founder of {s} was {founder}, who began in {start} with a single machine.",
            start="Which year saw the foundation of {s}?",
            founder="Who founded {s}?",
        ),
        fact(
            "The headquarters of {s} are in {headquarters}, {place}.",
            "{s} has its headquarters in {headquarters}, in a building {place}.",
            headquarters="In which town are the headquarters of {s}?",
        ),
        fact(
            "The money for the first machines of {s} was lent by {lender}, who did it {cause}.",
            "{lender} lent the money for the first machines of {s}, {cause}.",
            lender="Who lent the money for the first machines of {s}?",
        ),
        fact(
            "The first workshop of {s} had {number} square metres, and stood {place}.",
            "At first {s} had one workshop of {number} square metres, {place}.",
            number="What was the size in square metres of the first workshop of {s}?",
        ),
    ),
    (
        fact(
            "In its early years {s} made {goods}, and little else.",
            "The name of {s} is still connected with {goods}, although these are no longer made.",
        ),
        fact(
            "What {s} sells best has the name {title}, and comes in {few} colours.",
            "Almost everybody knows the {title}, as the product is called that {s} sells best.",
            title="What is the best-selling product of {s}?",
        ),
        fact(
            "The cutting machine that made {s} rich was invented by {inventor}.",
            "{inventor}, who had studied {topic}, invented the cutting machine that made {s} rich.",
            inventor="Who invented the cutting machine of {s}?",
        ),
        fact(
            "In {soon} {s} sent goods overseas for the first time, in {number} wooden crates.",
            "The first goods that {s} sent overseas, in {soon}, were packed in {number} wooden crates.",
            soon="In which year were goods first sent overseas by {s}?",
            number="How many wooden crates held the first goods sent overseas by {s}?",
        ),
    ),
    (
        fact(
            "Today {s} employs {number} people, who have a club for {pastime}.",
            "With {number} employees, {s} is smaller today than it was when all the world bought {goods}.",
            number="How many people work today for {s}?",
        ),
        fact(
            "The longest strike at {s} began in {late}, lasted {few} months and was led by {leader}.",
            "In {late} {leader} led the longest strike that there ever was at {s}.",
            late="Which year saw the beginning of the longest strike at {s}?",
            leader="Who led the longest strike at {s}?",
        ),
        fact(
            "The workers of {s} have a brass band, whose first conductor was {conductor}.",
            "{conductor} was the first conductor of the brass band of {s}, and had it play {place} every Sunday.",
            conductor="Who was the first conductor of the brass band of {s}?",
        ),
        fact(
            "Everybody who retires from {s} is given one {thing}, and a book about {topic}.",
            "It is a custom at {s} to give one {thing} to everybody who retires.",
            thing="What is given to everybody who retires from {s}?",
        ),
    ),
    (
        fact(
            "In {end} {s} bought its rival {rival}, after {few} years of lawsuits.",
            "{rival}, the rival that {s} had feared most, was bought up by it in {end}.",
            end="In which year was a rival bought by {s}?",
            rival="Which rival was bought by {s}?",
        ),
        fact(
            "A warehouse of {s} in {warehouse_town} burned down, on {weather}.",
            "The only warehouse that {s} ever lost to a fire stood in {warehouse_town}, {place}.",
            warehouse_town="In which town was the warehouse fire of {s}?",
        ),
        fact(
            "The history of {s} was written by {historian}, {cause}.",
            "{historian} wrote a history of {s}, in which {goods} fill a whole chapter.",
            historian="Who wrote the history of {s}?",
        ),
        fact(
            "The archive of {s} is kept in a house called the {title}, and can be visited.",
            "Anybody may visit the archive of {s}, in a house that is called the {title}.",
            title="What is the name of the house that holds the archive of {s}?",
        ),
    ),
)
