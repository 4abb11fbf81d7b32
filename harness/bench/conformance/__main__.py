"""``python -m harness.bench.conformance``: list the scripts, serve them, score a transport of ours or another tool.

Any tool can be pointed at the server: the model's name chooses the script. ``GET /truth`` says when each request was
read and each event written. ``tool --command`` does so for a tool whose result has vLLM's keys.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence

from harness.bench.conformance.outsider import score_tool
from harness.bench.conformance.process import scripted_server, serve_for_ever
from harness.bench.conformance.score import Score, score
from harness.bench.conformance.scripts import every_script
from harness.bench.load.call import CHAT, COMPLETIONS
from harness.bench.load.transport import NAMES, open_transport
from harness.errors import HarnessError, UsageError


def main(arguments: list[str] | None = None) -> int:
    """The verbs."""
    parser = argparse.ArgumentParser(prog="python -m harness.bench.conformance", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="what each script writes and which mistake it shows")
    serve = verbs.add_parser("serve", help="serve every script until interrupted")
    serve.add_argument("--port", type=int, default=0, help="0: a free one")
    serve.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    scores = verbs.add_parser("score", help="score a transport of ours")
    scores.add_argument("--transport", choices=NAMES, default="raw")
    scores.add_argument("--tolerance", type=float, default=0.02, help="seconds between a write and its stamp")
    tool = verbs.add_parser("tool", help="score another tool")
    tool.add_argument(
        "--command", required=True, help="with {url}, {script}, {result} and, if wanted, {path}"
    )
    tool.add_argument("--path", choices=(COMPLETIONS, CHAT), default=COMPLETIONS)
    tool.add_argument("--scripts", nargs="+", help="some of them; the default is all of that path")
    tool.add_argument("--tolerance", type=float, default=0.02, help="seconds")
    told = parser.parse_args(arguments)
    try:
        return {"list": _list, "serve": _serve, "score": _score, "tool": _tool}[told.verb](told)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0


def _list(_: argparse.Namespace) -> int:
    for (name, path), script in sorted(every_script().items()):
        truth = script.truth
        ttft = "" if truth.ttft is None else f", TTFT {truth.ttft * 1e3:g} ms"
        tpot = "" if truth.tpot is None else f", TPOT {truth.tpot * 1e3:.4g} ms"
        print(f"{name:30s} {path:22s} {truth.outcome.value}{ttft}{tpot}\n{'':30s} breaks: {script.breaks}")
    return 0


def _serve(told: argparse.Namespace) -> int:
    def say(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)

    if told.until_eof:
        serve_for_ever(told.port, say, sys.stdin.buffer.read)
    else:
        serve_for_ever(told.port, say, threading.Event().wait)
    return 0


def _score(told: argparse.Namespace) -> int:
    import uvloop

    with scripted_server() as url:
        scores = uvloop.run(
            score(
                lambda endpoint, clock: open_transport(endpoint, clock, told.transport),
                url,
                every_script(),
                tolerance=told.tolerance,
            )
        )
    return _report(scores, told.transport)


def _tool(told: argparse.Namespace) -> int:
    known = {name: script for (name, path), script in every_script().items() if path == told.path}
    unknown = sorted(set(told.scripts or ()) - set(known))
    if unknown:
        raise UsageError(
            f"saw script {unknown[0]!r} for {told.path}, expected one of {', '.join(sorted(known))}"
        )
    with scripted_server() as url:
        scripts = [known[name] for name in told.scripts or sorted(known)]
        scores = score_tool(told.command, url, scripts, tolerance=told.tolerance)
    return _report(scores, told.command.split()[0])


def _report(scores: Sequence[Score], client: str) -> int:
    for each in scores:
        lag = "" if each.lag is None else f"{each.lag * 1e3:6.2f} ms"
        print(f"{'right' if each.is_right else 'WRONG':6s}{each.name:30s}{each.path:22s}{lag}".rstrip())
        for fault in each.faults:
            print(f"      {fault}")
    wrong = [f"{each.path}:{each.name}" for each in scores if not each.is_right]
    told = {"verb": "conformance", "client": client, "scripts": len(scores), "wrong": wrong}
    print(json.dumps(told | {"exit": int(bool(wrong))}))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
