"""Graders in processes that can be killed: whatever they do, one episode fails and nothing else."""

from vime_agents.grading.pool import GraderLimits, GraderPool, default_pool
from vime_agents.grading.warm_up import before_grading

__all__ = ["GraderLimits", "GraderPool", "before_grading", "default_pool"]
