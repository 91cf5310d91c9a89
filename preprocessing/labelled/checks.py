"""What is wrong with an example, whatever format it was read from."""

from collections.abc import Callable
from dataclasses import replace

from preprocessing.labelled.examples import AnswerExample, ChooseExample, ClassifyExample, Example, TagExample

_SHOWN = 60
"""Characters of a wrong answer that its line shows."""


def sound(example: Example, mistake: Callable[[str, str], None]) -> Example | None:
    """The example without its wrong answers, or None if it is of no use; `mistake` gets each place and reason."""
    reason = _problem(example)
    if reason:
        mistake(example.place, reason)
        return None
    if isinstance(example, AnswerExample) and example.answers:
        return _with_sound_answers(example, mistake)
    return example


def _problem(example: Example) -> str | None:
    texts = _texts(example)
    for name, text in texts.items():
        if not text.strip():
            return f"{name} is empty; delete the example or fill it in"
    if any(not text.isascii() and _is_broken(text) for text in texts.values()):
        return "a character is half of a surrogate pair (\\ud83d without its second half); write the character itself"
    if isinstance(example, TagExample) and not all(example.tokens):
        return "a token is empty; give it a character, such as a blank"
    if isinstance(example, TagExample) and example.tags is not None and len(example.tags) != len(example.tokens):
        return f"{len(example.tags)} tags for {len(example.tokens)} tokens; give each token one tag"
    if isinstance(example, ChooseExample):
        return _problem_with_options(example)
    return None


def _texts(example: Example) -> dict[str, str]:
    """The texts that must not be empty, by name; the question of a choice may be (CAIL2019-SCM has none)."""
    if isinstance(example, ClassifyExample):
        texts = {"text": example.text, "second": example.second}
        return {name: text for name, text in texts.items() if text is not None}
    if isinstance(example, TagExample):
        return {"text": example.text}
    if isinstance(example, AnswerExample):
        return {"text": example.text, "question": example.question}
    assert isinstance(example, ChooseExample)
    return {"text": example.text, **{f"option {number}": option for number, option in enumerate(example.options)}}


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _problem_with_options(example: ChooseExample) -> str | None:
    count = len(example.options)
    if count < 2:
        return f"{count} options; a choice needs two or more"
    if example.label is not None and not 0 <= example.label < count:
        return f"label {example.label} for {count} options; they are counted from 0 to {count - 1}"
    return None


def _with_sound_answers(example: AnswerExample, mistake: Callable[[str, str], None]) -> AnswerExample | None:
    answers = example.answers or ()
    kept = []
    for number, answer in enumerate(answers, 1):
        if answer.text and answer.start >= 0 and example.text.startswith(answer.text, answer.start):
            kept.append(answer)
            continue
        elsewhere = example.text.find(answer.text) if answer.text else -1
        hint = f"it stands at {elsewhere}" if elsewhere >= 0 else "the text does not hold it"
        quoted = answer.text if len(answer.text) <= _SHOWN else answer.text[:_SHOWN] + "..."
        shown = f"`{quoted}` does not stand at character {answer.start}; {hint}" if answer.text else "it is empty"
        mistake(example.place, f"answer {number} of {len(answers)} is dropped: {shown}")
    if not kept:
        mistake(example.place, "none of its answers is right, so the question is dropped")
        return None
    return example if len(kept) == len(answers) else replace(example, answers=tuple(kept))
