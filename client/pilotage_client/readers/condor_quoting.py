"""HTCondor's two syntaxes of arguments and environments, old and new, read into plain words.

Source: condor_submit manual, commands `arguments` and `environment`. A value in double quotes is in the new
syntax: words are separated by blanks, single quotes hold a word together, a doubled quote is one.
"""

from __future__ import annotations

from collections.abc import Iterator


def argument_words(text: str) -> list[str]:
    r"""Return the arguments one by one; raises ValueError with what is wrong in the text.

    In the old syntax there are no quotes but `\"`, which is a double quote.
    """
    inside = _new_syntax(text)
    if inside is not None:
        return list(_words(inside))
    if '"' in text.replace('\\"', ""):
        raise ValueError('a double quote that is not written \\" in the old syntax')
    return text.replace('\\"', '"').split()


def environment_settings(text: str) -> dict[str, str]:
    """Return the environment by name; raises ValueError with what is wrong in the text.

    In the old syntax settings are separated by semicolons.
    """
    inside = _new_syntax(text)
    settings = list(_words(inside)) if inside is not None else [each.strip() for each in text.split(";")]
    environment = {}
    for setting in settings:
        if setting:
            name, equals, value = setting.partition("=")
            if not equals or not name:
                raise ValueError(f"{setting!r} is not NAME=VALUE")
            environment[name] = value
    return environment


def _new_syntax(text: str) -> str | None:
    """Return what stands between the double quotes, doubled ones as one; None = the old syntax."""
    text = text.strip()
    if not text.startswith('"'):
        return None
    inside = text[1:-1]
    if len(text) < 2 or not text.endswith('"') or '"' in inside.replace('""', ""):
        raise ValueError("double quotes that do not pair; inside them write two for one")
    return inside.replace('""', '"')


def _words(text: str) -> Iterator[str]:
    """Yield the words of the new syntax."""
    word: list[str] = []
    is_word = is_quoted = False
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "'":
            if is_quoted and text[position : position + 1] == "'":
                word.append("'")
                position += 1
            else:
                is_quoted = not is_quoted
            is_word = True
        elif character.isspace() and not is_quoted:
            if is_word:
                yield "".join(word)
            word.clear()
            is_word = False
        else:
            word.append(character)
            is_word = True
    if is_quoted:
        raise ValueError("a single quote that is not closed")
    if is_word:
        yield "".join(word)
