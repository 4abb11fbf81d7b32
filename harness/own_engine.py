"""Options of the embedded engine: nobody else's server hears of them, so beside its URL they are refused."""

from __future__ import annotations

import argparse
from typing import Any

from harness.errors import UsageError


def remember(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    """Keep the options of a group, with their defaults, in what the parser finds."""
    own = {one.dest: (one.option_strings[0], one.default) for one in group._group_actions}
    parser.set_defaults(own_options=own)


def require_none(args: argparse.Namespace) -> None:
    """UsageError, naming them, where ``--base-url`` stands beside options of the embedded engine."""
    own: dict[str, tuple[str, Any]] = getattr(args, "own_options", {})
    given = [flag for name, (flag, usual) in own.items() if getattr(args, name) != usual]
    if args.base_url and given:
        raise UsageError(
            f"{', '.join(given)}: saw --base-url {args.base_url} beside it, expected the embedded server",
            hint="leave out --base-url, or start that server with these options",
        )
