"""Sends requests as a plan says and keeps what came back: transports, arrivals, workers, the client's own health."""
