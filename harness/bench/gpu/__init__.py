"""The kernels on a GPU, ours beside those that engines ship, in one process and under CUDA graphs."""
