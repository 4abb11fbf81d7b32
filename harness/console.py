"""The console of a verb."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console


def console_of(args: argparse.Namespace) -> Console:
    """Silent with ``--json``; wide where nobody looks, for a log must not crop its tables; text is never markup."""
    return Console(quiet=args.json, width=None if sys.stdout.isatty() else 160, markup=False)
