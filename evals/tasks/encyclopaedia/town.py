"""What an article about a town may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} was founded in {start} by {founder}, who settled there {cause}.",
            "It was {founder} who founded {s}, in {start}, when there were no more than a few huts around a well.",
            start="Which year saw the foundation of {s}?",
            founder="Who founded {s}?",
        ),
        fact(
            "The right to hold a market was given to {s} in {soon}, and farmers have come on Thursdays ever since.",
            "Since {soon} {s} has had the right to hold a market, and traders in {goods} come from far away.",
            soon="In which year was the right to hold a market given to {s}?",
        ),
        fact(
            "The first mayor of {s} was {mayor}, who took the office {cause}.",
            "{mayor} was elected as the first mayor of {s}, by nine votes to eight.",
            mayor="Who was the first mayor of {s}?",
        ),
        fact(
            "After the great fire of {late}, {s} was rebuilt in stone after plans by {architect}.",
            "The great fire of {late} left little of {s}, and {architect} drew the plans by which it was rebuilt.",
            late="Which year saw the great fire of {s}?",
            architect="Who drew the plans for rebuilding {s}?",
        ),
        fact(
            "During the long siege of {end}, the people of {s} are said to have passed the time with {pastime}.",
            "In {end} the people of {s} survived a siege of eleven weeks, which children still act out every spring.",
            end="In which year was the siege of {s}?",
        ),
    ),
    (
        fact(
            "{s} lies on the River {river}, which is {number} metres wide there.",
            "The houses of {s} stand on both banks of the River {river}, here {number} metres wide.",
            river="On which river does {s} lie?",
            number="How many metres wide is the river at {s}?",
        ),
        fact(
            "The hill above {s} is called the {title}, and people go there for {pastime}.",
            "From the {title}, as the hill above {s} is called, one sees the whole valley on clear days.",
            title="What is the name of the hill above {s}?",
        ),
        fact(
            "In the south, {s} borders on a forest of {number} hectares, most of it {tree} and {other_tree}.",
            "A forest of {number} hectares begins directly south of {s}, known for its old {tree} trees.",
            number="What is the size in hectares of the forest south of {s}?",
        ),
        fact(
            "The old road from {s} to {town} follows the edge of a marsh, between rows of {tree} trees.",
            "An old road along the edge of a marsh leads from {s} to {town}, but few people take it after dark.",
            town="Where does the old road along the edge of a marsh lead from {s}?",
        ),
        fact(
            "Winters in {s} are mild, and snow rarely stays for longer than {few} days.",
            "Fog is common in {s} from October on, and the church bell is rung for those who are out in it.",
        ),
    ),
    (
        fact(
            "For a long time most families in {s} lived by making {goods}.",
            "The {goods} that were made in {s} used to be sold in all the neighbouring counties.",
        ),
        fact(
            "The largest employer in {s} is {company}, which took over the old mill in {modern}.",
            "In {modern} the old mill was taken over by {company}, today the largest employer in {s}.",
            company="Which company is the largest employer in {s}?",
            modern="In which year did a company take over the old mill of {s}?",
        ),
        fact(
            "The railway reached {s} in {modern_late}, after {few} years of planning, and the station stands {place}.",
            "Trains have stopped in {s} since {modern_late}, when the railway was finished at last.",
            modern_late="In which year did the railway reach {s}?",
        ),
        fact(
            "In the harbour of {s} {number} boats are registered, hardly any of them older than {few} years.",
            "There are {number} boats in the harbour of {s}, and {few} families live on theirs.",
            number="How many boats are there in the harbour of {s}?",
        ),
        fact(
            "The inn by the market of {s}, the {title}, has been run by one family for {few} generations.",
            "Merchants who came to {s} with {goods} used to stay at the {title}, an inn by the market.",
            title="What is the name of the inn by the market of {s}?",
        ),
    ),
    (
        fact(
            "Every autumn {s} holds the Feast of the {title}, with music, dancing and a contest in {pastime}.",
            "For the Feast of the {title}, which is held in {s} every autumn, all shops close at noon.",
            title="Which feast is held every autumn in {s}?",
        ),
        fact(
            "The altar of the church in {s} was painted by {painter}, who worked on it for {few} years {cause}.",
            "The church in {s} is known for its altar, the work of the painter {painter}.",
            painter="Who painted the altar of the church in {s}?",
        ),
        fact(
            "On the coat of arms of {s} one sees a single {thing}, which was chosen {cause}.",
            "The coat of arms of {s} shows no lion and no crown, but a single {thing}.",
            thing="What is shown on the coat of arms of {s}?",
        ),
        fact(
            "The school of {s}, which stands {place} and which {number} children attend, is named after {namesake}.",
            "About {number} children attend the school of {s}, which bears the name of {namesake}.",
            number="How many children attend the school of {s}?",
            namesake="Whose name is borne by the school of {s}?",
        ),
        fact(
            "The only newspaper of {s}, the {title} Post, comes out twice a week and is known for its column on {topic}.",
            "Twice a week one can buy the {title} Post, the only newspaper of {s}.",
            title="What is the name of the only newspaper of {s}?",
        ),
    ),
)
