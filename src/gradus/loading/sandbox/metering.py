"""A template's syntax tree, changed so that it pays for what it does.

    {% for a in b %}{{ c }}{% endfor %}     a payment in front of each block's first statement: its number of nodes
    {% if a in b %}, {% if a == b %}        one pass over the sides
    {{ a + b + c }}, {{ a ~ b }}, {{ a[1:] }}, {{ a }}     a filter, which has a price as all filters do

The filters that pay have names with a space, so no template can spell or replace them.
"""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from gradus.errors import CheckpointError

PAY, READ, SEARCH = "pay work", "pay reading", "pay searching"
ADD, JOIN, SLICED, WRITE = "pay adding", "pay joining", "pay slicing", "pay writing"

MOST_NODES = 10_000  # some take time that grows with their square when they are compiled
OBJECT = 4  # nodes' work for the memory of an object of its own
SMALL = 6  # nodes of a branch that its condition pays for: a payment itself costs as much
FORBIDDEN = (
    *(nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.Block),  # there are no other templates
    *(nodes.ScopedEvalContextModifier, nodes.EvalContextModifier),  # evaluated when the template is compiled
)


def metered(tree: nodes.Template) -> nodes.Template:
    """Add the payments to a tree, in place. Raises CheckpointError for statements that are not supported."""
    if (found := next(tree.find_all(FORBIDDEN), None)) is not None:
        raise CheckpointError(f"{type(found).__name__.lower()} statements are not supported")
    meter = _Meter()
    tree.body = meter.block(tree.body, least=0)
    if meter.total > MOST_NODES:
        raise CheckpointError(f"{meter.total} nodes of syntax, at most {MOST_NODES} are allowed")
    return tree


class _Meter(NodeTransformer):
    """Counts the nodes that each block evaluates when it runs once, and puts the payment in front of it."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def block(self, statements: list[nodes.Node], least: int = SMALL) -> list[nodes.Node]:
        """Pay for a block when it begins; one of fewer nodes than `least` is paid for by the block around it."""
        outside, self.count = self.count, 0
        done = [self.visit(statement) for statement in statements]
        if self.count < least:
            self.count += outside
            return done
        lineno = done[0].lineno if done else 1
        payment = nodes.ExprStmt(_filter(nodes.Const(self.count + 2), PAY, lineno), lineno=lineno)
        self.count = outside
        return [payment, *done]

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        self.total += 1
        return super().visit(node, *args, **kwargs)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.count += OBJECT
        return self.generic_visit(node)

    visit_Dict = visit_Tuple = visit_Filter = visit_List  # a filter may make a generator

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        self.count += len(node.data) >> 5
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.target, node.iter = self.visit(node.target), self.visit(node.iter)
        if node.test is not None:
            node.test = self._tested(node.test)
        node.body, node.else_ = self.block(node.body, least=0), self.block(node.else_)
        return node

    def _tested(self, test: nodes.Node) -> nodes.Expr:
        """The condition of a loop is evaluated for every item: it pays for itself."""
        outside, self.count = self.count, 0
        found = self.visit(test)
        cost, self.count = self.count + 2, outside
        return nodes.And(nodes.Not(_filter(nodes.Const(cost), PAY, test.lineno)), found, lineno=test.lineno)

    def visit_If(self, node: nodes.If) -> nodes.Node:
        node.test = self.visit(node.test)
        node.body, node.else_ = self.block(node.body), self.block(node.else_)
        node.elif_ = [self.visit(branch) for branch in node.elif_]
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node.defaults = [self.visit(default) for default in node.defaults]
        node.body = self.block(node.body, least=0)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        node.call = self.visit(node.call)
        node.defaults = [self.visit(default) for default in node.defaults]
        node.body = self.block(node.body, least=0)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """A side that the template spells out limits the time to compare, but not the time to search the other."""
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if any(operand.op in ("in", "notin") for operand in node.ops):
            kind = READ if isinstance(node.expr, nodes.Const) else SEARCH
        elif any(isinstance(side, nodes.Const) for side in sides):
            return node
        else:
            kind = READ
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr, kind)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        """A chain of additions is one: the text between the first two is not made."""
        self.count += 1
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(left, nodes.Filter) and left.name == ADD:
            left.args.append(right)
            return left
        return _filter(left, ADD, node.lineno, [right])

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._written(child) for child in node.nodes]
        return node

    def _written(self, child: nodes.Expr) -> nodes.Expr:
        paid = isinstance(child, (nodes.TemplateData, nodes.Const))
        paid = paid or (isinstance(child, nodes.Filter) and child.name in (ADD, JOIN))
        return child if paid else _filter(child, WRITE, child.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        first, *others = node.nodes
        return _filter(first, JOIN, node.lineno, others)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filter(node, SLICED, node.lineno)
        node.arg = _read(node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _read(node.key)
        return node


def _read(side: nodes.Expr, kind: str = READ) -> nodes.Expr:
    return side if isinstance(side, nodes.Const) else _filter(side, kind, side.lineno)


def _filter(node: nodes.Expr, name: str, lineno: int, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, args or [], [], None, None, lineno=lineno)
