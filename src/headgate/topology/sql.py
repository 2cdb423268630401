"""SQL text of one expression as a tree; what it means for a stream is not known here.

The grammar is the part of Spark's that speaks of one row: literals, columns, arithmetic,
comparisons, AND/OR/NOT, IN, BETWEEN, LIKE, IS NULL, CASE, CAST, intervals of a fixed length and
calls. Operators bind as in Spark. What is not of that part is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from headgate.errors import DeclarationError
from headgate.topology.arguments import duration_us


@dataclass(frozen=True)
class Name:
    """A column, or a field in a struct of one."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    value: pa.Scalar


@dataclass(frozen=True)
class Call:
    """An operator or a function, by its name in small letters."""

    name: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True)
class Case:
    branches: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree


@dataclass(frozen=True)
class Cast:
    value: Tree
    kind: str


Tree: TypeAlias = Name | Constant | Call | Case | Cast
NULL = Constant(pa.scalar(None, pa.null()))


class Token(NamedTuple):
    kind: str
    text: str


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?)(?![\w.])
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark><=>|<>|!=|==|<=|>=|\|\||[-+*/%=<>!(),.\[\]])""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "%": "\\%", "_": "\\_"}
_COMPARISONS = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<=>": "<=>"} | {
    mark: mark for mark in ("<", "<=", ">", ">=")
}
_RESERVED = frozenset(
    "and as between case cast div else end in is like ilike not or rlike then when".split()
)
_INTEGERS = {"": pa.int32(), "l": pa.int64(), "s": pa.int16(), "y": pa.int8()}


def parse(text: str) -> tuple[Tree, str | None]:
    """The tree of an expression, and the name it gives itself with AS.

    Examples:
        >>> parse("likes > 3")
        (Call(name='>', arguments=(Name(parts=('likes',)), Constant(value=<pyarrow.Int32Scalar: \
3>))), None)
    """
    reader = _Parser(_tokens(text))
    tree = reader.expression()
    alias = None
    if reader.took("as") or reader.kind in ("word", "quoted"):
        alias = reader.identifier()
    if reader.kind != "end":
        raise DeclarationError(f"cannot be read from {reader.token.text!r} on")
    return tree, alias


def _tokens(text: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise DeclarationError(f"cannot be read from {text[at : at + 20]!r} on")
        at = found.end()
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found[0]))
    return [*tokens, Token("end", "its end")]


class _Parser:
    """Reads tokens from left to right; a method per level of precedence."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    @property
    def kind(self) -> str:
        return self.token.kind

    @property
    def word(self) -> str:
        """What is next, in small letters; nothing if it is a literal or a quoted name."""
        return self.token.text.lower() if self.kind in ("word", "mark") else ""

    def next(self) -> Token:
        token = self.token
        self._at += self.kind != "end"
        return token

    def took(self, *words: str) -> bool:
        """Were these next? Then they are read."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if [t.text.lower() for t in ahead if t.kind in ("word", "mark")] != list(words):
            return False
        self._at += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.took(word):
            raise DeclarationError(f"needs {word.upper()!r} before {self.token.text!r}")

    def identifier(self) -> str:
        token = self.next()
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word" or token.text.lower() in _RESERVED:
            raise DeclarationError(f"needs a name in place of {token.text!r}")
        return token.text

    # --- from what binds least to what binds most ----------------------------------------------
    def expression(self) -> Tree:
        return self._chain(self._and, {"or": "or"})

    def _and(self) -> Tree:
        return self._chain(self._not, {"and": "and"})

    def _not(self) -> Tree:
        if self.took("not") or self.took("!"):
            return Call("not", (self._not(),))
        return self._predicate()

    def _predicate(self) -> Tree:
        value = self._chain(self._sum, _COMPARISONS)
        if self.took("is"):
            negated = self.took("not")
            return _unless(negated, self._is(value))
        negated = self.took("not")
        if self.took("in"):
            return _unless(negated, Call("in", (value, *self._list())))
        if self.took("between"):
            low = self._sum()
            self.expect("and")
            bounds = Call(">=", (value, low)), Call("<=", (value, self._sum()))
            return _unless(negated, Call("and", bounds))
        for name in ("like", "ilike", "rlike"):
            if self.took(name):
                return _unless(negated, Call(name, (value, self._sum())))
        if negated:
            raise DeclarationError("has NOT before something that is no IN, BETWEEN or LIKE")
        return value

    def _is(self, value: Tree) -> Tree:
        if self.took("null"):
            return Call("isnull", (value,))
        if self.took("distinct", "from"):
            return Call("not", (Call("<=>", (value, self._sum())),))
        wanted = self.word
        if self.took("true") or self.took("false"):
            return Call("<=>", (value, Constant(pa.scalar(wanted == "true"))))
        raise DeclarationError(f"has {self.token.text!r} after IS, and not NULL, TRUE or FALSE")

    def _sum(self) -> Tree:
        return self._chain(self._product, {"+": "+", "-": "-", "||": "concat"})

    def _product(self) -> Tree:
        return self._chain(self._unary, {"*": "*", "/": "/", "%": "%", "div": "div"})

    def _unary(self) -> Tree:
        if self.took("-"):
            if self.kind == "number":
                return Constant(_number(f"-{self.next().text}"))
            return Call("negative", (self._unary(),))
        if self.took("+"):
            return self._unary()
        return self._primary()

    def _primary(self) -> Tree:
        kind, text = self.token
        if kind == "number":
            self.next()
            return Constant(_number(text))
        if kind == "string":
            self.next()
            return Constant(pa.scalar(_unescaped(text)))
        if self.took("("):
            inside = self.expression()
            self.expect(")")
            return inside
        if self.took("case"):
            return self._case()
        if self.took("cast", "("):
            value = self.expression()
            self.expect("as")
            return Cast(value, self._type())
        for word, constant in (("null", None), ("true", True), ("false", False)):
            if kind == "word" and self.took(word):
                return NULL if constant is None else Constant(pa.scalar(constant))
        if kind == "word" and self._tokens[self._at + 1].kind in ("string", "number"):
            return self._typed_literal()
        name = self.identifier()
        if kind == "word" and self.word == "(":
            return Call(name.lower(), tuple(self._list()))
        return self._column(name)

    def _column(self, name: str) -> Tree:
        parts = [name]
        while self.word in (".", "["):
            if self.took("."):
                parts.append(self.identifier())
                continue
            self.expect("[")
            key = self.next()
            if key.kind != "string":
                raise DeclarationError(f"has [{key.text}]; only fields of structs are known")
            parts.append(_unescaped(key.text))
            self.expect("]")
        return Name(tuple(parts))

    def _case(self) -> Tree:
        subject = None if self.word == "when" else self.expression()
        branches: list[tuple[Tree, Tree]] = []
        while self.took("when"):
            when = self.expression()
            self.expect("then")
            condition = when if subject is None else Call("=", (subject, when))
            branches.append((condition, self.expression()))
        otherwise = self.expression() if self.took("else") else NULL
        self.expect("end")
        if not branches:
            raise DeclarationError("has a CASE without WHEN")
        return Case(tuple(branches), otherwise)

    def _type(self) -> str:
        """The text up to the bracket that closes CAST."""
        text, depth = "", 0
        while depth or self.word != ")":
            token = self.next()
            if token.kind == "end":
                raise DeclarationError("needs ')' after CAST(... AS type")
            depth += (token.text == "(") - (token.text == ")")
            text += token.text
        self.expect(")")
        return text

    def _typed_literal(self) -> Tree:
        word, value = self.next().text.lower(), self.next()
        if word == "interval":
            text = _unescaped(value.text) if value.kind == "string" else value.text
            if self.kind == "word" and re.fullmatch(r"[a-z]+", self.word):
                text = f"{text} {self.next().text}"
                if self.kind == "number":
                    raise DeclarationError("write a longer interval as INTERVAL '1 hour 5 minutes'")
            return Constant(pa.scalar(duration_us(text), pa.duration("us")))
        if word not in ("timestamp", "date") or value.kind != "string":
            raise DeclarationError(f"cannot be read from {value.text!r} on")
        return Cast(Constant(pa.scalar(_unescaped(value.text))), word)

    def _list(self) -> list[Tree]:
        """The expressions between brackets."""
        self.expect("(")
        found: list[Tree] = []
        while not self.took(")"):
            if found:
                self.expect(",")
            found.append(self.expression())
        return found

    def _chain(self, part: Callable[[], Tree], names: dict[str, str]) -> Tree:
        """Operands and operators of one level, from the left."""
        left = part()
        while self.word in names:
            name = names[self.next().text.lower()]
            left = Call(name, (left, part()))
        return left


def _unless(negated: bool, tree: Tree) -> Tree:
    return Call("not", (tree,)) if negated else tree


def _unescaped(text: str) -> str:
    quote = text[0]
    inside = re.sub(
        rf"\\(.)|{quote}{quote}",
        lambda m: quote if m[1] is None else _ESCAPED.get(m[1], m[1]),
        text[1:-1],
        flags=re.DOTALL,
    )
    return inside


def _number(text: str) -> Any:
    """A literal of the type that Spark gives it."""
    plain = text.rstrip("bBdDfFlLsSyY")
    end = text[len(plain) :].lower()
    if end in ("d", "f") or (not end and "e" in plain.lower()):
        return pa.scalar(float(plain), pa.float32() if end == "f" else pa.float64())
    if end == "bd" or "." in plain:
        return pa.scalar(Decimal(plain))
    value = int(plain)
    kind = _INTEGERS[end] if end or -1 << 31 <= value < 1 << 31 else pa.int64()
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        raise DeclarationError(f"has the number {text}, which is too large for {kind}") from None
