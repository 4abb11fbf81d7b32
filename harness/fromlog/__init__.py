"""The scheduler dump that a vLLM engine prints when it dies, as a scenario with the same batch."""

from harness.fromlog.dump import Dump, DumpedRow
from harness.fromlog.reading import read_dump

__all__ = ["Dump", "DumpedRow", "read_dump"]
