"""One server, measured by `vllm bench serve` and by us in turn: the same figures, the same block.

    python -m cases.bench.agree_vllm --rounds 6

The embedded server is asked the same prompts by both, 4 at a time, greedy. A figure agrees where the 95 % interval of
theirs over ours (Welch on logarithms of runs, with the noise of our own runs as its floor) holds 0 and is known to
10 %; a wider one proves nothing and is exit code 125. vLLM 0.32.0 comes from the environment of `make live-vllm`
(2.5 GB, made once).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from cases.bench.gate_real import apart
from harness.bench.block import block
from harness.bench.data.drawn import Lengths
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.data.workload import Workload
from harness.bench.load.call import Call, completion, warm_up_calls
from harness.bench.load.run import LoadPlan, run_load
from harness.bench.load.shape import Closed
from harness.bench.load.transport import Endpoint
from harness.bench.metrics.compat import COMPLETIONS
from harness.bench.metrics.counters import between, counters
from harness.bench.metrics.summary import summarise
from harness.bench.result import Setting, result
from harness.bench.stats.estimate import ratio
from harness.live.own_server import OwnServer, own_server
from harness.models.tiny import default_cache, ensure
from harness.vllm_cpu import environment
from harness.vllm_cpu.server import SITE

CONCURRENCY = 4
KNOWN = 0.10
"""Half of an interval that says something."""
FIGURES = (
    *("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "mean_e2el_ms"),
    *("output_throughput", "request_throughput", "spec_decode_acceptance_length"),
)
EXACT = ("completed", "failed", "total_input_tokens", "total_output_tokens")


def ours(server: OwnServer, calls: list[Call], folder: Path) -> tuple[dict[str, Any], str]:
    """Our result with vLLM's keys, and our block."""
    warm = tuple(warm_up_calls(calls, CONCURRENCY, Random(folder.name)))
    plan = LoadPlan(endpoint=Endpoint(url=server.url), calls=warm, shape=Closed(concurrency=CONCURRENCY))
    run_load(plan, folder / "warm-up")
    before = counters(httpx.get(f"{server.url}/metrics", trust_env=False).text)
    plan = LoadPlan(
        endpoint=Endpoint(url=server.url), calls=tuple(calls), shape=Closed(concurrency=CONCURRENCY)
    )
    load = run_load(plan, folder / "run")
    after = counters(httpx.get(f"{server.url}/metrics", trust_env=False).text)
    found = result(
        Setting(model_id=server.model, backend="openai", max_concurrency=CONCURRENCY, num_prompts=len(calls)),
        load.records,
        summarise(load.records, speculation=between(before, after)),
        dialect=COMPLETIONS,
    )
    return found, block(found)


def theirs(
    server: OwnServer, python: Path, model: Path, data: Path, asked: argparse.Namespace
) -> tuple[Any, str]:
    """The result and the block of their client."""
    folder = data.parent
    command = [
        *(str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions"),
        *(
            "--model",
            server.model,
            "--tokenizer",
            str(model),
            "--dataset-name",
            "custom",
            "--dataset-path",
            str(data),
        ),
        *(
            "--custom-output-len",
            str(asked.tokens),
            "--skip-chat-template",
            "--disable-shuffle",
            "--ignore-eos",
        ),
        *("--num-prompts", str(asked.requests), "--max-concurrency", str(CONCURRENCY), "--temperature", "0"),
        *("--num-warmups", str(CONCURRENCY), "--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
    ]
    path = f"{SITE}:{with_pandas(folder / 'pandas-alone')}"  # the first has metadata of a package called vllm
    site = {"PYTHONPATH": path, "SPECHARNESS_WORKAROUND": "0"}
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}
    said = subprocess.run(command, capture_output=True, text=True, env=kept | site | offline, timeout=600)
    if said.returncode:
        raise SystemExit(f"vllm bench serve ended with {said.returncode}:\n{said.stderr[-2000:]}")
    lines = said.stdout.splitlines()
    start = next(at for at, line in enumerate(lines) if "Serving Benchmark Result" in line)
    end = next(at for at in range(start + 1, len(lines)) if set(lines[at].strip()) == {"="})
    return json.loads((folder / "theirs.json").read_text()), "\n".join(lines[start : end + 1])


def with_pandas(folder: Path) -> Path:
    """A folder with our pandas, which reads their data set and is not in the environment of a server."""
    folder.mkdir(exist_ok=True)
    for name in ("pandas", "dateutil", "six", "tzdata"):
        found = find_spec(name)
        if found is not None and found.origin is not None:
            origin = Path(found.origin)
            source = origin.parent if origin.name == "__init__.py" else origin
            if not (folder / source.name).exists():
                (folder / source.name).symlink_to(source)
    return folder


def labels(shown: str) -> list[str]:
    """What stands before the numbers, line by line."""
    return [line.rpartition(":")[0].strip() if ":" in line else line.strip() for line in shown.splitlines()]


def main() -> int:
    """Print the table; exit 1 where a figure or a label differs, 125 where noise hides it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of each, in turn (6)")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    cache = default_cache(os.environ)
    python = environment.ensure(environment.default_folder(cache), lambda line: print(line, file=sys.stderr))
    model = ensure("peaked", cache=cache)
    load = Workload(
        name="agree",
        requests=asked.requests,
        concurrency=CONCURRENCY,
        lengths=Lengths(prompt=48, output=asked.tokens),
    )
    texts = [str(ask.prompt) for ask in load.asks(Vocabulary(model), 1, as_text=True)]
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    blocks: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        own_server(["--spec", "mtp"], Path(scratch) / "log") as server,
    ):
        apart(server)  # and with us the client of theirs, which is our child
        data = Path(scratch) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        calls = [
            completion(str(at), server.model, text, asked.tokens, temperature=0, ignore_eos=True)
            for at, text in enumerate(texts)
        ]
        ours(server, calls, Path(scratch) / "first")  # what is compiled or cached, before anything counts
        for number in range(asked.rounds):
            for who in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
                found, blocks[who] = (
                    ours(server, calls, Path(scratch) / f"round-{number}")
                    if who == "ours"
                    else theirs(server, python, model, data, asked)
                )
                runs[who].append(found)
                print(
                    f"round {number + 1}, {who}: {found['output_throughput']:.1f} tok/s",
                    file=sys.stderr,
                    flush=True,
                )
    return told(runs, blocks)


def told(runs: dict[str, list[dict[str, Any]]], blocks: dict[str, str]) -> int:
    """The table, and whether all of it agrees."""
    print(
        f"{len(runs['ours'])} runs of each in turn, load average {os.getloadavg()[1]:.1f} over five minutes\n"
    )
    heads = ["figure", "ours", "theirs", "theirs over ours", "95 % interval", "our own noise", ""]
    print(f"| {' | '.join(heads)} |\n|---|---:|---:|---:|---:|---:|---|")
    wrong, open_ = [], []
    for name in FIGURES:
        left, right = (np.array([run[name] for run in runs[who]], dtype=float) for who in ("ours", "theirs"))
        noise = float(np.log(left).std(ddof=1))
        found = ratio(left, right, worse=1, confidence=0.95, floor=noise)
        assert found is not None
        middle, low, high = found.change
        word = (
            "DIFFERS" if not low <= 0 <= high else "agrees" if high - low <= 2 * KNOWN else "noise hides it"
        )
        wrong += [name] if word == "DIFFERS" else []
        open_ += [name] if word == "noise hides it" else []
        cells = [
            name,
            f"{left.mean():.4g}",
            f"{right.mean():.4g}",
            f"{middle:+.1%}",
            f"{low:+.1%} to {high:+.1%}",
        ]
        print(f"| {' | '.join([*cells, f'{noise:.1%}', word])} |")
    for name in EXACT:
        seen = {run[name] for both in runs.values() for run in both}
        wrong += [] if len(seen) == 1 else [name]
        both = [str(runs[who][0][name]) for who in ("ours", "theirs")]
        print(f"| {' | '.join([name, *both, '', '', '', 'same' if len(seen) == 1 else 'DIFFERS'])} |")
    same = labels(blocks["ours"]) == labels(blocks["theirs"])
    print(
        f"\nlabels of the block: {len(labels(blocks['ours']))}, {'the same in the same order' if same else 'DIFFERENT'}"
    )
    if not same:
        print(blocks["ours"], blocks["theirs"], sep="\n")
    return 1 if wrong or not same else 125 if open_ else 0


if __name__ == "__main__":
    sys.exit(main())
