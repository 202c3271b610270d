"""Accepted tokens are taken one by one, as if each had come in a step of its own."""

from phases.museum.m04_stop import engine
from phases.museum.m04_stop.engine import Answer


class Engine(engine.Engine):
    """Stops between two tokens of a step."""

    def add(self, answer: Answer, accepted: list[str]) -> None:
        """Append the tokens of one step. Neither the stop string nor what follows it is part of the text."""
        for token in accepted:
            answer.tokens.append(token)
            answer.text += token
            if answer.stop in answer.text:
                answer.text = answer.text[: answer.text.index(answer.stop)]
                answer.ended = True
                return
