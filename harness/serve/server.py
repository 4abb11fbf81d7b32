"""A service from its setting, and the process that serves it until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from harness.engine.config import EngineConfig, Layout
from harness.engine.engine import Engine
from harness.engine.guided import Grammars
from harness.engine.kernels.select import Kind, select
from harness.engine.loader import Loader
from harness.engine.variants import variant
from harness.errors import UsageError
from harness.serve.app import create_app
from harness.serve.chat import ChatTemplate
from harness.serve.limits import Limits
from harness.serve.loop import EngineLoop
from harness.serve.metrics import Metrics
from harness.serve.rehearsal import Rehearsal
from harness.serve.service import COMPILERS, Service
from harness.serve.text import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is served and how. ``policy`` names a variant or a fault; ``spec`` is ``mtp``, ``ngram`` or ``off``."""

    folder: Path
    model_name: str
    policy: str = "fixed"
    spec: str = "mtp"
    k: int = 3
    regime: str = "trim"
    prefix_caching: bool = False
    kernels: Kind = "auto"
    layout: Layout = "slots"
    graphs: bool = True
    device: str = "cpu"
    max_model_len: int = 1024
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    limits: Limits = field(default_factory=Limits)

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Tokens of the steps that are CUDA graphs, up to a verify step of all requests; none on a CPU."""
        if not self.graphs or self.device != "cuda" or not select(self.kernels, self.device).capturable:
            return ()
        full_rows = self.max_num_seqs * (1 if self.spec == "off" else self.k + 1)
        most = min(full_rows, self.max_num_batched_tokens)
        return tuple(sorted({1, 2, 4, *range(8, most, 8), most}))

    @property
    def config(self) -> EngineConfig:
        """The engine's part of it."""
        return EngineConfig(
            k=0 if self.spec == "off" else self.k,
            drafter="ngram" if self.spec == "ngram" else "mtp",
            regime=self.regime,
            layout=self.layout,
            capture_sizes=self.capture_sizes,
            graphs=bool(self.capture_sizes),
            prefix_caching=self.prefix_caching,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.max_num_batched_tokens,
            device=self.device,
        )


def build(setting: Setting, *, forks: bool = False) -> Service:
    """Load the model and set the engine up, without starting it.

    ``forks``: this process is a server's alone, so those that try grammars may be forks of it.

    Raises:
        UsageError: no such variant, a model that is none, or longer requests than it can take.
    """
    loader = Loader(setting.folder, device=setting.device)
    if setting.max_model_len > loader.config.max_position:
        raise UsageError(
            f"--max-model-len {setting.max_model_len}, but the model has {loader.config.max_position} positions"
        )
    policy, config = variant(setting.policy), setting.config
    grammars = Grammars(loader.vocabulary, policy.guide)
    rehearsal = Rehearsal(setting.folder, setting.limits.compile_seconds, COMPILERS)
    if forks:
        rehearsal.fork()  # before the engine has threads
    parts = (config, policy, select(setting.kernels, setting.device).kernels)
    engine = Engine(loader.model(*parts), loader.head(*parts), grammars, config, policy)
    if setting.device == "cuda":
        next(iter(engine.model.linear_layers.values())).warm_up()  # layers are alike
    metrics = Metrics(engine, setting.model_name)
    return Service(
        model_name=setting.model_name,
        engine=engine,
        grammars=grammars,
        texts=Texts(setting.folder, loader.vocabulary),
        template=ChatTemplate(setting.folder),
        metrics=metrics,
        loop=EngineLoop(engine, metrics, setting.limits.guide_seconds),
        limits=setting.limits,
        eos_ids=frozenset(loader.config.eos_ids),
        rehearsal=rehearsal,
    )


def configured(app: FastAPI, **more: Any) -> uvicorn.Config:
    """How uvicorn serves it: with h11, whatever else is installed, because httptools has no limit for headers."""
    return uvicorn.Config(app, http="h11", loop="asyncio", log_level="warning", **more)


def serve(
    service: Service,
    *,
    host: str,
    port: int,
    api_key: str | None,
    drain_seconds: int,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; then let what runs come to its end, for ``drain_seconds`` at most.

    Raises:
        UsageError: the address is taken or not ours.
    """
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error}", hint="--port 0 takes a free one"
        ) from None
    with listener:
        announce(f"http://{host}:{listener.getsockname()[1]}")
        config = configured(
            create_app(service, api_key), access_log=False, timeout_graceful_shutdown=drain_seconds
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn hands the signal on when all is done
            return
