"""A real server in a thread of the tests' own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn

from harness.serve.app import create_app
from harness.serve.server import Setting, build, configured
from harness.serve.service import Service

MODEL = "tiny"
LONG = {"ignore_eos": True}
"""For answers that last as long as they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server and what is inside it."""

    service: Service
    url: str
    http: httpx.Client
    client: openai.OpenAI

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, prompt: Any, **more: Any) -> dict[str, Any]:
        """One greedy completion, with token ids; what the client's types do not know goes into the body."""
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "return_token_ids": True, **more}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    def wait_until_free(self) -> None:
        """All memory is back within 5 s."""
        scheduler, config = self.service.engine.scheduler, self.service.engine.config
        for _ in range(500):
            free = scheduler.slots.num_free == config.num_slots - 1 and scheduler.is_idle
            if free and not self.service.loop.open:  # the stream is closed after its request
                break
            time.sleep(0.01)
        assert scheduler.slots.num_free == config.num_slots - 1
        assert scheduler.blocks.num_free == config.num_blocks - 1
        assert not self.service.loop.open


def children_of(pid: int) -> list[int]:
    """Of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


@contextmanager
def serving(folder: Path, *, api_key: str | None = None, **setting: Any) -> Iterator[Server]:
    """A server in a thread of this process, on a free port."""
    service = build(Setting(folder=folder, model_name=MODEL, **setting))
    server = uvicorn.Server(configured(create_app(service, api_key), host="127.0.0.1", port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    http = httpx.Client(base_url=url, timeout=30)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    try:
        with http, client:
            yield Server(service=service, url=url, http=http, client=client)
    finally:
        server.should_exit = True
        thread.join()
