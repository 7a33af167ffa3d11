"""What an article about a river may tell, in each of its paragraphs."""

from tasks.encyclopaedia.fact import fact

PARAGRAPHS = (
    (
        fact(
            "{s} rises from a spring below {mountain} and is joined by {few} brooks within the first hour of a walk.",
            "The spring of {s} lies below {mountain}, in a hollow between {tree} trees.",
            mountain="Below which mountain is the spring of {s}?",
        ),
        fact(
            "It is {number} kilometres from the spring of {s} to the sea, which it reaches near {mouth}.",
            "After {number} kilometres {s} flows into the sea near {mouth}, beside a wood of {tree} and {other_tree}.",
            number="What is the length in kilometres of {s}?",
            mouth="Near which town is the mouth of {s}?",
        ),
        fact(
            "The largest tributary of {s} is the River {tributary}, on which {goods} used to be shipped.",
            "Halfway to the sea {s} receives the water of the River {tributary}, its largest tributary.",
            tributary="What is the largest tributary of {s}?",
        ),
        fact(
            "Below {town} {s} falls over a ledge of slate, around which boats with {goods} had to be carried.",
            "At a ledge of slate below {town}, {s} falls by as much as the height of a house.",
            town="Below which town is the ledge of slate in {s}?",
        ),
    ),
    (
        fact(
            "{s} was first mapped in {start} by {mapper}, who walked along both banks in {few} weeks.",
            "The first map of {s} was drawn in {start} by {mapper}, who had until then written about {topic}.",
            start="From which year is the first map of {s}?",
            mapper="Who first mapped {s}?",
        ),
        fact(
            "The worst flood of {s}, in {soon}, carried away {number} houses.",
            "In {soon} {s} rose higher than ever before or since, and {number} houses were carried away.",
            soon="Which year saw the worst flood of {s}?",
            number="How many houses were carried away by the worst flood of {s}?",
        ),
        fact(
            "The oldest bridge over {s} is the work of {bridge_builder}, who took on the work {cause}.",
            "{bridge_builder} built the oldest bridge over {s}, with {few} arches of which no two are alike.",
            bridge_builder="Who built the oldest bridge over {s}?",
        ),
        fact(
            "A treaty of {end} made {s} the border between two counties, which it has remained.",
            "Since a treaty was signed in {end}, {s} has been the border between two counties.",
            end="From which year is the treaty about the border along {s}?",
        ),
    ),
    (
        fact(
            "{water_user} has drawn the water for its works from {s} since {modern}.",
            "Since {modern} the water for the works of {water_user} has been drawn from {s}.",
            water_user="Which company draws the water for its works from {s}?",
            modern="Since which year has the water for the works of a company been drawn from {s}?",
        ),
        fact(
            "The dam across {s} is {number} metres long, and its lake gives water to {few} villages.",
            "A dam of {number} metres was built across {s} to keep water for dry summers.",
            number="How many metres long is the dam across {s}?",
        ),
        fact(
            "The ferry across {s} is called the {title}, and it carries {few} people at a time.",
            "One can cross {s} by a ferry, the {title}, which takes two carts at a time.",
            title="What is the name of the ferry across {s}?",
        ),
        fact(
            "The right to fish in {s} was bought by {fisher}, who shared it with everybody {cause}.",
            "Long ago {fisher} bought the right to fish in {s}, but never cared for it and preferred {pastime}.",
            fisher="Who bought the right to fish in {s}?",
        ),
        fact(
            "Timber used to be floated down {s} every spring, until the roads became better.",
            "Barges on {s} carried mostly {goods}, and were drawn home by horses.",
        ),
    ),
    (
        fact(
            "The marshes along {s} have been protected since {modern} {cause}.",
            "In {modern} the marshes along {s} were put under protection.",
            modern="Since which year has there been protection for the marshes along {s}?",
        ),
        fact(
            "In the last survey {number} pairs of herons were counted along {s}.",
            "Herons breed along {s}; the last survey found {number} pairs of them.",
            number="How many pairs of herons did the last survey find along {s}?",
        ),
        fact(
            "The only island in {s} is called the {title}, and there is nothing on it but {tree} trees.",
            "In summer people take a boat to the {title}, the only island in {s}, for {pastime}.",
            title="What is the name of the only island in {s}?",
        ),
        fact(
            "A snail that lives in {s} and nowhere else was first described by {biologist}.",
            "It was {biologist} who first described the snail that lives in {s} and nowhere else.",
            biologist="Who first described the snail that lives nowhere but in {s}?",
        ),
    ),
)
