"""The text of the prompts: two beginnings that many prompts share, and sentences to compose the rest from.

Change a word here, and it is another workload: raise `rules.VERSION`, and measure every row again.
"""

ASSISTANT = (
    "You are the assistant of a small library in a harbor town. You answer in short, plain sentences. You know the "
    "opening hours (ten to six, closed on Mondays), the reading room on the second floor, and the boats that cross the "
    "bay every half hour. You never invent a book. If a question is not about the library, the town or its history, "
    "say so politely, and suggest where else to ask. Give numbers where you have them, and end every answer with one "
    "question of your own, so that the visitor can say more precisely what they are looking for today.\n\n"
)
EXAMPLES = (
    "Turn each note into one line of a table: what, how many, where, when.\n\n"
    "Note: On Tuesday three crates of apples came to the gate.\nLine: apples | 3 crates | gate | Tuesday\n\n"
    "Note: We found a dozen old maps in the cellar last week.\nLine: maps | 12 | cellar | last week\n\n"
    "Note: Forty chairs were carried to the great hall this morning.\nLine: chairs | 40 | great hall | this morning\n\n"
    "Note: By Friday the two lamps of the pier will be repaired.\nLine: lamps | 2 | pier | Friday\n\n"
)
QUESTIONS = (
    "Where can I read the newspapers of the year in which the lighthouse was built?",
    "How long does it take to walk from the station to the old harbor?",
    "Is there a room in which eight people can talk without disturbing anyone?",
    "What was sold on the market square before the fire?",
    "My daughter is seven and likes whales. What would you give her to read?",
    "Who painted the ships in the stairwell?",
)
NOTES = (
    "In March five boxes of letters were moved to the attic.",
    "Yesterday a sailor left two parrots at the front desk.",
    "Six benches will be painted in the garden on Sunday.",
    "There were nineteen umbrellas in the reading room after the storm.",
    "At noon a hundred leaflets had been given away on the ferry.",
    "Last winter seven windows broke in the east wing.",
)
OPENINGS = (
    "The history of the bridge begins with a quarrel between two brothers who",
    "To repair a clock that has stopped, one first has to",
    "In the morning the fog lay so low over the river that",
    "The three most important rules for growing tomatoes are",
)
SENTENCES = (
    "The first keeper of the light wrote a line in his book for every ship, and on quiet nights he wrote two.",
    "When the harbor froze, the fishermen cut a channel with saws, and the boys of the town were paid a penny a yard.",
    "A merchant from the south brought forty barrels of oil, of which nine had leaked before they reached the pier.",
    "The council met every month in a room above the bakery, because it was the only one that was warm in winter.",
    "Nobody remembers who planted the row of limes, but every mayor since then has promised to have them cut.",
    "The railway came late, and for ten years its last station was a shed in a field two miles from the water.",
    "In the great storm the lower street stood under water up to the windows, and a cow was found on the church steps.",
    "The school had a single globe, on which the children had marked the places where their fathers were at sea.",
    "Ice was stored under straw in the cellars of the brewery, and in a good year it lasted until September.",
    "The old ferry carried twelve passengers and one cart, and if the cart was heavy, only nine passengers.",
    "Two sisters kept the post office, and it was said that they knew what was in a letter by its weight.",
    "After the fire the square was paved with stones from the quarry, each of them numbered on its lower side.",
)
