"""Completion."""

import click


@click.command()
def completion() -> None:
    """Print the completion script of a shell."""
