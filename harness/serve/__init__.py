"""The embedded engine behind an OpenAI-compatible server; its names and options are vLLM's where OpenAI has none."""
