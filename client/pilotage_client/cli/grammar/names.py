"""Groups whose commands stand in a table: a command's module is imported when the command is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from pilotage.command_line.groups import CommandGroup, ProgramGroup, examples
from pilotage.errors import InvalidInputError, PilotageError

_PACKAGE = "pilotage_client.cli"
_EXAMPLES = 4
"""The examples in the help of a noun: one of each of its first verbs."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: where it is (MODULE:ATTRIBUTE below the package), what it does, examples, and its short names.

    `also` are other names of the verb after its noun.
    """

    target: str
    help: str
    examples: tuple[str, ...]
    short: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A thing with the verbs that act on it.

    `default` is the verb that is meant if none is given, "" = there is none, and `of_words` that of a first word that
    is no verb, as in `downtime SITE`. `also` are other names of the noun. `examples` = () are those of its first verbs.
    """

    help: str
    verbs: Mapping[str, Verb]
    default: str = ""
    of_words: str = ""
    also: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


Table = Mapping[str, Verb | Noun]


@cache
def command_of(entry: Verb) -> click.Command:
    """Import the command of an entry; each is one object under all its names."""
    module, _, attribute = entry.target.partition(":")
    command: click.Command = getattr(import_module(f"{_PACKAGE}.{module}"), attribute)
    command.epilog = examples(*entry.examples)
    return command


class TableGroup(CommandGroup):
    """A group with the commands of a table; `names` are all by which they are called, those of `table` are shown."""

    def __init__(self, *args: Any, table: Table, names: Table | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        self.names = names or table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that help and completion show."""
        return list(self.table)

    def list_names(self, ctx: click.Context) -> list[str]:
        """Return all names of commands."""
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, None = there is none."""
        entry = self.names.get(cmd_name)
        if isinstance(entry, Verb):
            command = command_of(entry)
            if ctx.resilient_parsing:  # a shell asks for completions
                import_module("pilotage_client.cli.grammar.completion").complete_values(command)
            return command
        return None if entry is None else _group(entry)

    def shown(self) -> Sequence[str]:
        """Return the names that completion offers."""
        return list(self.table)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin like this, without importing any command."""
        names = [name for name in self.shown() if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.names[name].help) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with what they do, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])


class NounGroup(TableGroup):
    """The verbs of a noun."""

    def __init__(self, noun: Noun) -> None:
        unnamed = f"\n\nWithout a command it means `{noun.default}`." if noun.default else ""
        if noun.of_words:
            unnamed += f" A first word that is no command belongs to `{noun.of_words}`."
        super().__init__(
            help=f"{noun.help}.{unnamed}",
            table=noun.verbs,
            names={**noun.verbs, **{name: verb for verb in noun.verbs.values() for name in verb.also}},
            no_args_is_help=not noun.default,
            epilog=examples(*(noun.examples or (verb.examples[0] for verb in islice(noun.verbs.values(), _EXAMPLES)))),
        )
        self.noun = noun

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the verb that is meant before the arguments."""
        if not ctx.resilient_parsing and (verb := self.meant(args, ctx)):
            args = [verb, *args]
        return super().parse_args(ctx, args)

    def meant(self, args: Sequence[str], ctx: click.Context) -> str:
        """Return the verb that is meant and not named, "" = none."""
        if not args:
            return self.noun.default
        if args[0] in self.names or args[0] in ctx.help_option_names:
            return ""
        return self.noun.of_words or (self.noun.default if args[0].startswith("-") else "")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs, and the options of the default verb."""
        found = super().shell_complete(ctx, incomplete)
        if self.noun.default and incomplete.startswith("-"):
            found += command_of(self.noun.verbs[self.noun.default]).shell_complete(ctx, incomplete)
        return found


def error_text(error: PilotageError) -> str:
    """Return the message for an error: for invalid input one line for each fault, with its place first."""
    if isinstance(error, InvalidInputError):
        return "\n".join(str(violation) for violation in error.violations)
    return f"pilotage: {error}"


class ClientProgram(TableGroup, ProgramGroup):
    """`pilotage`; its help shows sections of the table."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def shown(self) -> Sequence[str]:
        """Return the names that help shows."""
        return [name for names in self.sections.values() for name in names]

    def text_of(self, error: PilotageError) -> str:
        """Return the message for an error."""
        return error_text(error)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.names[name].help) for name in names])


def all_names(table: Table) -> dict[str, Verb | Noun]:
    """Return the entries of a table by all their names: nouns, other nouns, and short names of verbs."""
    found = dict(table)
    for entry in table.values():
        if isinstance(entry, Noun):
            found |= dict.fromkeys(entry.also, entry)
    for _, verb in verbs_of(table):
        found |= dict.fromkeys(verb.short, verb)
    return found


def verbs_of(table: Table) -> Iterator[tuple[str, Verb]]:
    """Yield the full name of each command, such as "job submit", with its entry."""
    for name, entry in table.items():
        if isinstance(entry, Verb):
            yield name, entry
        else:
            yield from ((f"{name} {verb}", each) for verb, each in entry.verbs.items())


@cache
def _group(noun: Noun) -> NounGroup:
    return NounGroup(noun)
