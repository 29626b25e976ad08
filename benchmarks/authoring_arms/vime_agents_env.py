"""The calculator in vime-agents."""

import vime_agents as vime


class Calculator(vime.ToolEnv):
    """Multiply two numbers with a tool."""

    def make_task(self, rng):
        a, b = (int(n) for n in rng.integers(100, 1000, 2))
        return {"a": a, "b": b}

    def prompt(self):
        return f"What is {self.task['a']} * {self.task['b']}? End with the number."

    @vime.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers.

        Args:
            a: the one.
            b: the other.
        """
        return str(a * b)

    def score(self, text):
        return float(text.split()[-1:] == [str(self.task["a"] * self.task["b"])])
