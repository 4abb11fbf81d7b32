"""What specharness adds to a vLLM process. Nothing here imports the harness: it runs in vLLM's own environment."""
