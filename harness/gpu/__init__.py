"""What only a GPU can show: the gate that runs there, its recompile gate, and the sanitizers."""
