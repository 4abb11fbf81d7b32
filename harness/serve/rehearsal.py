"""A grammar is tried in a process of its own before it comes near the engine.

xgrammar cannot be interrupted, neither while it compiles nor while it fills a mask, and an ambiguous grammar makes a
mask dearer with every token: under ``((((a+)+)+)+)+`` the sixtieth takes seconds, under ``s ::= s s s | s s | ""`` one
of the first never comes back. In the engine's thread that is a server that stands still. So a child compiles each new
grammar and follows it over some random tokens; what takes too long is killed, and the client's request is refused.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import threading
import time
from collections import OrderedDict
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from typing import Any

import torch

from harness.engine.guided import Grammars, Guide, Vocabulary
from harness.errors import UsageError

STEPS = 64
"""Tokens of a rehearsal."""
STEP_SECONDS = 1.0
"""Seconds of a processor that they may take together; honest grammars take hundredths."""
EXTRA_BYTES = 2 * 1024**3
"""Memory that a grammar may take."""
REMEMBERED = 4096


class Rehearsal:
    """Tries grammars for the model in ``folder``, ``children`` at a time, each for at most ``seconds``. ``close`` it in
    the end."""

    def __init__(self, folder: Path, seconds: float, children: int) -> None:
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        self._known_lock = threading.Lock()
        self._idle: LifoQueue[Child] = LifoQueue()  # the last one first: others start when they are needed
        self._children = [Child(folder, seconds) for _ in range(children)]
        for child in self._children:
            self._idle.put(child)

    def check(self, kind: str, text: str) -> None:
        """Remembers the verdict, so that a grammar is tried once.

        Raises:
            UsageError: the grammar does not compile, allows nothing, or takes too long.
        """
        key = sha256(f"{kind} {text}".encode()).digest()
        with self._known_lock:
            known = key in self._known
            complaint = self._known.get(key)
        if not known:
            child = self._idle.get()
            try:
                complaint = child.ask(kind, text)
            finally:
                self._idle.put(child)
            self._remember(key, complaint)
        if complaint is not None:
            raise UsageError(complaint)

    def fork(self) -> None:
        """Make all children out of this process, while it has one thread and little but imports in it: they need not
        be done again, which takes seconds, nor be kept twice in memory."""
        if len(list(Path("/proc/self/task").iterdir())) == 1:
            for child in self._children:
                child.start("fork")

    def warm(self) -> None:
        """Make the first child before it is needed, where there is none: it imports torch, which takes seconds."""
        child = self._idle.get()
        try:
            child.start()
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End all children, whatever they do; who waits for one hears that it is gone."""
        for child in self._children:
            child.kill()

    def _remember(self, key: bytes, complaint: str | None) -> None:
        with self._known_lock:
            self._known[key] = complaint
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


class Child:
    """One process, made when it is needed, and again when it did not survive a grammar."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._process: Any = None
        self._pipe: Connection | None = None

    def ask(self, kind: str, text: str) -> str | None:
        """What is wrong with a grammar."""
        pipe = self.start()
        try:
            pipe.send((kind, text))
            if pipe.poll(self._seconds):
                return pipe.recv()
            complaint = f"this {kind} did not compile within {self._seconds:g} s: {text:.80}"
        except (EOFError, OSError):
            complaint = f"this {kind} takes more memory or time than a grammar may: {text:.80}"
        self.kill()
        pipe.close()
        self._pipe = None
        return complaint

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def start(self, method: str = "forkserver") -> Connection:
        """The pipe to it; makes it if there is none."""
        if self._pipe is not None:
            return self._pipe
        # Not a fork of this process once it has threads, and not a fresh Python either: that imports torch for seconds.
        context: Any = multiprocessing.get_context(method)
        context.set_forkserver_preload([__name__])
        pipe, theirs = context.Pipe()
        ours = pipe if method == "fork" else None
        self._process = context.Process(
            target=answer, args=(theirs, self._folder, self._seconds, ours), name="rehearsal", daemon=True
        )
        self._process.start()
        theirs.close()
        pipe.recv()  # it is ready
        self._pipe = pipe
        return pipe


def answer(pipe: Connection, folder: Path, seconds: float, parents: Connection | None = None) -> None:
    """The child: a complaint or ``None`` for each grammar that comes. What it may use is limited for each of them, so
    that it ends by itself if nobody is left to kill it. ``parents``: its parent's end of the pipe, if it has that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if parents is not None:
        parents.close()  # or the pipe would never end; those of earlier siblings end with this process
    grammars = Grammars(Vocabulary.load(folder))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    pipe.send(None)
    while True:
        try:
            kind, text = pipe.recv()
        except EOFError:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime + seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        try:
            follow(grammars.guide(kind, text), grammars.vocabulary)
        except UsageError as error:
            pipe.send(str(error.args[0]))
        except MemoryError:
            pipe.send(f"this {kind} takes more memory than a grammar may: {text:.80}")
        else:
            pipe.send(None)


def follow(guide: Guide, vocabulary: Vocabulary) -> None:
    """Random tokens that the grammar allows, and no end while there is another way.

    Raises:
        UsageError: their masks take too long.
    """
    rng, start = random.Random(0), time.process_time()
    mask = torch.empty(1, vocabulary.words, dtype=torch.int32)
    bits = torch.arange(32, dtype=torch.int32)
    for _ in range(STEPS):
        guide.fill_masks((), mask)
        allowed = ((mask[0, :, None] >> bits) & 1).flatten()[: vocabulary.size].nonzero()[:, 0].tolist()
        going_on = [token for token in allowed if token not in vocabulary.stop_ids]
        if not going_on:
            return
        guide.accept((rng.choice(going_on),))
        if time.process_time() - start > STEP_SECONDS:
            raise UsageError(
                f"this grammar is too ambiguous: {STEPS} tokens take more than {STEP_SECONDS:g} s of a processor"
            )
