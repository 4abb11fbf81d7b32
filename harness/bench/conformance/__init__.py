"""A scripted server that knows the truth, and the scores of clients against it: ours and other people's."""
