"""A program that evaluates one arithmetic expression: standard input -> standard output.

It runs inside a sandbox (`python3 -IS -c <this file>`), so it imports nothing but the standard library. The
expression is parsed and walked, never executed. Exit status 2 means that the expression is at fault and that
standard error says why, in words for the model.
"""

import ast
import operator
import sys

MAX_CHARACTERS = 1000
MAX_BITS = 10_000
"""Largest integer; about 3000 digits, which Python still prints."""
BAD_EXPRESSION = 2

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class BadExpression(Exception):
    """The expression cannot be evaluated; the message is for the model."""


def evaluate(expression: str) -> int | float:
    """The value of an expression of numbers, parentheses and + - * / // % **.

    Integers stay exact; a quotient of integers is an integer when it divides evenly.

    Raises:
        BadExpression: anything else, or too large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise BadExpression(f"the expression has {len(expression)} characters, at most {MAX_CHARACTERS}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError as error:
        raise BadExpression(f"not an arithmetic expression: {error.msg}") from error
    except ZeroDivisionError as error:
        raise BadExpression("division by zero") from error
    except OverflowError as error:
        raise BadExpression("the result is too large") from error
    except (RecursionError, MemoryError) as error:
        raise BadExpression("the expression is nested too deeply") from error
    except ValueError as error:  # a NUL, or a literal of more digits than Python reads
        raise BadExpression(f"not an arithmetic expression: {error}") from error


def _value(node: ast.expr) -> int | float:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    ):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if isinstance(node.op, ast.Div):
            return _quotient(left, right)
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise BadExpression("only numbers, parentheses and the operators + - * / // % ** are allowed")


def _power(base: int | float, exponent: int | float) -> int | float:
    # Before computing it: how large base ** exponent at least is can be seen from outside.
    exact = isinstance(base, int) and isinstance(exponent, int)
    if exact and (abs(int(base)).bit_length() - 1) * exponent > MAX_BITS:
        raise OverflowError
    return _bounded(base**exponent)


def _quotient(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int) and right != 0 and left % right == 0:
        return left // right
    return _bounded(left / right)


def _bounded(value: int | float | complex) -> int | float:
    if isinstance(value, complex):
        raise BadExpression("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError
    if value != value or value in (float("inf"), float("-inf")):
        raise OverflowError
    return value


def main() -> None:
    """Read, evaluate, print."""
    try:
        expression = sys.stdin.buffer.read().decode("utf-8", "replace")
        sys.stdout.write(repr(evaluate(expression)))
    except BadExpression as error:
        sys.stderr.write(str(error))
        sys.exit(BAD_EXPRESSION)


if __name__ == "__main__":
    main()
