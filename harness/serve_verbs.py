"""What the verb ``serve`` does once its arguments are known."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from threading import Thread
from typing import Any

from harness.errors import UsageError
from harness.models.tiny import default_cache, ensure


def serve(args: argparse.Namespace) -> dict[str, Any]:
    """Serve until a signal; green when everything that ran could end."""
    try:
        from harness.layouts import require_in
        from harness.serve.limits import Limits
        from harness.serve.server import Setting, build
        from harness.serve.server import serve as run
    except ImportError as error:
        raise UsageError(f"the server needs {error.name}", hint="pip install 'specharness[live]'") from None
    require_in(args.layout, [args.variant])
    folder = args.model or ensure(args.preset, args.seed, default_cache(os.environ))
    name = args.served_model_name or (folder.resolve().name if args.model else args.preset)
    service = build(
        Setting(
            folder=folder,
            model_name=name,
            policy=args.variant,
            spec=args.spec,
            k=args.k,
            regime=args.regime,
            prefix_caching=args.prefix_caching,
            kernels=args.kernels,
            layout=args.layout,
            graphs=args.graphs == "on",
            device=args.device,
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            limits=Limits(
                max_open=args.max_num_seqs + args.max_queue,
                max_body=args.max_body,
                compile_seconds=args.compile_seconds,
            ),
        ),
        forks=True,
    )

    def announce(url: str) -> None:
        print(f"serving {name} ({args.variant}) on {url}", file=sys.stderr, flush=True)

    if args.until_eof:
        Thread(target=_end_with_input, name="until-eof", daemon=True).start()
    run(
        service,
        host=args.host,
        port=args.port,
        api_key=args.api_key or os.environ.get("SPECHARNESS_API_KEY"),
        drain_seconds=args.drain_seconds,
        announce=announce,
    )
    died = service.loop.failure
    return {"verb": "serve", "model": name, "variant": args.variant, "died": died, "exit": 1 if died else 0}


def _end_with_input() -> None:
    """Drain and end, as on SIGTERM, once standard input is closed."""
    while os.read(0, 4096):  # not sys.stdin: whoever ends while a thread has its lock ends by SIGABRT
        pass
    os.kill(os.getpid(), signal.SIGTERM)
