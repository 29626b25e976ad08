"""The calculator in gem."""

import random
import re

from gem.core import Env
from gem.tools.base_tool import BaseTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper


class Multiply(BaseTool):
    tool_type = "multiply"

    def instruction_string(self):
        return "Write <multiply>a,b</multiply> to multiply two numbers."

    def execute_action(self, action):
        found = re.search(r"<multiply>(\d+),(\d+)</multiply>", action)
        if found is None:
            return False, True, "", action
        return True, False, f"<result>{int(found[1]) * int(found[2])}</result>", found[0]


class Calculator(Env):
    def reset(self, seed=None):
        super().reset(seed)
        self.a, self.b = random.randrange(100, 1000), random.randrange(100, 1000)
        return f"What is {self.a} * {self.b}? End with the number.", {}

    def step(self, action):
        reward = float(action.split()[-1:] == [str(self.a * self.b)])
        return "", reward, True, False, {}


def make():
    return ToolEnvWrapper(Calculator(), [Multiply()])
