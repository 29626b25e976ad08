"""Small models for demos and tests, made on the spot: nothing is fetched from a model hub.

`smollm2`: SmolLM2-135M-Instruct out of a wheel. `tiny`: a random Qwen3 that is made in seconds.
"""
