"""WordGuess-v0: find a word of five letters in six guesses, as in Wordle, alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vime_agents.env import AgentEnv
from vime_agents.errors import IllegalMove
from vime_agents.messages import Message, user

_WORDS = """
    abbey allow alley amber angle apple arrow bacon badge baker beach belly berry birch black blade blaze
    bloom board bonus brain brass bread brick bride broom brown brush cabin candy cargo carol chair chalk
    cheek chess chief cigar civic clerk cliff clock cloud coach coral couch crane cream creek crown daisy
    dairy dance diary dough drain dress eagle earth eerie elbow ember entry fairy fancy feast fence ferry
    fever field flame flask fleet floor flour fluff focus forge frost fruit geese ghost giant glass globe
    glove grape grass green guide happy hazel heart hello hobby honey horse hotel house hurry image ivory
    jelly jewel jolly judge juice kayak knife label lemon level light linen llama lobby lucky magic mango
    maple march melon merry metal mirth model money mossy motor mouse mummy music ninth noise novel nylon
    oasis ocean olive onion opera orbit otter paint panel paper patch peach pearl penny piano pilot pizza
    plaza poppy pupil puppy queen quilt radio raven razor river robin rover ruler salad sassy scarf
    shade sheep shelf skull sleep smile snail sorry spice spoon spray steel stone storm sugar swamp sweet
    table teeth tempo tiger toast tooth torch tower trail tulip uncle unity vapor video villa viola visit
    vivid vowel wagon watch water wheel whale wheat witch woman world wreck wrist yacht zebra
""".split()  # noqa: SIM905 - a list that one can read
WORDS = tuple(sorted(_WORDS))
_EVERY = 5
"""One word in so many is a word of the test split."""
_GUESS = re.compile(r"(?<![A-Za-z])[A-Za-z]{5}(?![A-Za-z])")
_READ = 10_000
"""Characters, from the end, in which a guess is looked for."""


class WordGuess(AgentEnv):
    """Six guesses; 1 for the word. A reply without a word of five letters is a guess lost."""

    max_turns = 6

    def tasks(self) -> Iterable[Mapping[str, Any]]:
        """The words of this split, of which no other has one."""
        test = self.split == "test"
        return [{"word": word} for i, word in enumerate(WORDS) if (i % _EVERY == 0) == test]

    def prompt(self) -> str:  # noqa: D102
        return (
            f"I think of an English word of five letters. Find it in at most {self.max_turns} guesses.\n"
            "After each guess I mark its letters: G, it is there; Y, it is in the word, but elsewhere; -, it "
            "is not in the word. A letter has as many marks G and Y as the word has of it.\n"
            "End your reply with your guess."
        )

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """The marks, or the end."""
        left = f"{self.max_turns - self.turn} guesses are left."
        try:
            word = guessed(message["content"])
        except IllegalMove as error:
            self.count("illegal_moves")
            return [user(f"That is no guess: {error}. {left}")]
        if word == self.task["word"]:
            return None
        return [user(f"{' '.join(word.upper())}\n{' '.join(marks(word, self.task['word']))}\n{left}")]

    def score(self, text: str) -> Mapping[str, float | tuple[float, float]]:
        """Whether the last guess is right; the number of guesses is a metric."""
        try:
            found = guessed(text) == self.task["word"]
        except IllegalMove:
            found = False
        return {"found": float(found), "guesses": (float(self.turn), 0.0)}

    def gold(self) -> str:  # noqa: D102
        return self.task["word"]


def guessed(text: str) -> str:
    """The last word of five letters in a reply, in small letters. Raises IllegalMove."""
    found = _GUESS.findall(text, max(0, len(text) - _READ))
    if not found:
        raise IllegalMove("there is no word of five letters in it")
    return found[-1].lower()


def marks(guess: str, word: str) -> str:
    """G, Y or - for each letter. One that is not in place has a Y as long as the word has some of it left."""
    left = Counter(have for have, said in zip(word, guess, strict=True) if have != said)
    result = []
    for have, said in zip(word, guess, strict=True):
        if have == said:
            result.append("G")
        elif left[said] > 0:
            left[said] -= 1
            result.append("Y")
        else:
            result.append("-")
    return "".join(result)
