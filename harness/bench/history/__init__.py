"""Every run ever measured: a Parquet dataset at any fsspec URL, and a small index that can be rebuilt from it."""
