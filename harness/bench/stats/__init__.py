"""What a difference between runs is worth: comparison, noise floors, the gate, change points.

The unit is a run, never a request: requests of one run share its run-to-run effect, so tests over pooled requests
fire on unchanged nights (10 % of them with 2,000 requests and a 2 % run effect).
"""
