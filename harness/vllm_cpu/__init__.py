"""A real vLLM on the CPU: its environment, its server, and the states of its linear layers beside the oracle's."""
