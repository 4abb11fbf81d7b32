"""Rows of the catalogue that are no faults of this engine, each with the reason."""

from __future__ import annotations

NOT_INJECTED: dict[str, str] = {
    "A2": "the decision of A1 once more: the token count alone says whether rows are mixed or the view dies",
    "A10": "needs an fp8 attention cache and the compiled attention kernel that refuses wide rows on it",
    "B8": "a flag that goes stale beside a graph chosen by shape; here the schedule says what a row is, and the "
    "mistaken row itself is B7",
    "C5": "padding is counted apart here and has no kind, so it cannot be taken for a prompt; rows by the wrong kind "
    "are B4 and C4",
    "C6": "no mistake but a risk, two kernels for one kind of row: the oracle judges both in every mixed batch",
    "C7": "a race of autotuning on one vendor's GPUs, whose cause was not public",
    "D13": "known by the subjects of commits alone, which say the same as D1, D3 and D4",
    "D14": "one compiler started within another during capture; nothing here is compiled that way",
    "E10": "acceptance falls after hours, and nobody has said why",
    "F12": "a table of tracked states that one engine keeps; a row of a finished request is E1, a write into its "
    "memory D5",
    "G6": "crashes of one cache mode and of a change of layouts, known by their subjects; there is one of each here",
    "G8": "the cache of one engine handed to another; there is one engine here",
    "H3": "needs tensors of more than 2^31 numbers, so that a 32-bit product of strides overflows",
    "H4": "the layout of an operand on one generation of GPUs",
    "H7": "quantised attention caches with graphs, whose cause was open",
    "H8": "other vendors' kernels, whose causes were open",
    "H9": "mistakes in a library's own kernels, empty rows and huge grids: they are for a target such as fla==VERSION",
    "H10": "reports of dying workers, whose cause was never established",
}
"""Row of the catalogue -> why no fault is made of it."""
