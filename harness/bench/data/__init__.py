"""What a benchmark sends: prompts, lengths, guides. Nothing here knows how a request travels."""
