"""Graders in processes that can be killed: whatever they do, one episode fails and nothing else."""

from vime_agents.grading.pool import GraderLimits, GraderPool, default_pool

__all__ = ["GraderLimits", "GraderPool", "default_pool"]
