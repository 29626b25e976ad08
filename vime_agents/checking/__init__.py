"""Does an environment keep its promises? Checks without a model: gold, useless, random and hostile replies.

`vime-agents check ENV` on the command line; here `await run_checks(...)` in `supervise.py`, which plays in a
process of its own, so that an env that hangs or dies is a finding too.
"""
