"""Lists of values in a state column: many values per key, taken apart and put together in columns.

A list of numbers is a list column. Text is one value per key: each element ends with a separator,
so that Arrow splits and joins all keys at once. What is done with elements is done on 64-bit words
of their order, of text on ranks among all elements in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, U64, Bools
from headgate.operator.arithmetic import from_sortable, sortable, to_words
from headgate.routing.hashing import group_rows, mix

_END, _ZERO, _ESCAPED = b"\0\1", b"\0", b"\0\2"


def is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def list_of(kind: pa.DataType) -> pa.DataType:
    """How a list of such values is kept."""
    return kind if is_text(kind) else pa.list_(kind)


def lengths_of(lists: pa.Array) -> I64:
    """How many elements each list has; none where it is null."""
    if is_text(lists.type):
        counts = pc.count_substring(lists.cast(pa.large_binary()), _END)
    else:
        counts = pc.list_value_length(lists)
    return np.asarray(counts.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def elements_of(lists: pa.Array) -> pa.Array:
    """All elements of all lists, one after the other; of text as binary."""
    if not is_text(lists.type):
        return lists.flatten()
    split = pc.split_pattern(lists.cast(pa.large_binary()).drop_null(), _END)
    ends = np.zeros(len(split.values), np.bool_)
    ends[split.offsets.to_numpy()[1:] - 1] = True  # what stands behind the last separator
    elements = split.values.filter(pa.array(~ends)).cast(pa.large_binary())
    if pc.any(pc.match_substring(elements, _ZERO)).as_py():
        elements = pc.replace_substring(elements, _ESCAPED, _ZERO)
    return elements


def lists_of(elements: pa.Array, lengths: I64, kind: pa.DataType) -> pa.Array:
    """The column of lists, each of so many of the elements in turn."""
    bounds = np.append(0, np.cumsum(lengths))
    if not is_text(kind):
        return pa.ListArray.from_arrays(
            pa.array(bounds, pa.int32()), elements.cast(kind.value_type)
        )
    elements = elements.cast(pa.large_binary())
    if pc.any(pc.match_substring(elements, _ZERO)).as_py():
        elements = pc.replace_substring(elements, _ZERO, _ESCAPED)
    end = pa.scalar(_END, pa.large_binary())
    ended = pc.binary_join_element_wise(elements, end, pa.scalar(b"", pa.large_binary()))
    _, ends, data = pa.concat_arrays([ended, pa.array([b""], ended.type)]).buffers()
    starts = np.frombuffer(ends, np.int64)[bounds].copy()
    buffers = [None, pa.py_buffer(starts), data]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers).cast(kind)


@dataclass(frozen=True)
class Elements:
    """Elements of some groups: what lists hold, then fresh ones, as words of the same order.

    `column(codes, words)` makes the lists of all groups, of elements in order of their group.
    """

    codes: I64
    words: I64
    held: int
    column: Callable[[I64, I64], pa.Array]

    @classmethod
    def of(cls, lists: pa.Array, codes: I64, fresh: pa.Array) -> Elements:
        """The lists of groups, and `fresh` elements (values) of the groups `codes`."""
        lengths, before = lengths_of(lists), elements_of(lists)
        codes = np.concatenate([np.repeat(np.arange(len(lists)), lengths), codes])
        kind, count = lists.type, len(lists)
        if is_text(kind):
            both = pa.concat_arrays([before, fresh.cast(pa.large_binary())]).dictionary_encode()
            order = pc.sort_indices(both.dictionary).to_numpy()
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            words = ranks[both.indices.to_numpy()]
            ordered = both.dictionary.take(pa.array(order))
        else:
            both = pa.concat_arrays([before, fresh.cast(kind.value_type)])
            words = sortable(to_words(both)[0])

        def column(codes: I64, words: I64) -> pa.Array:
            if is_text(kind):
                elements = ordered.take(pa.array(words))
            else:
                elements = from_sortable(kind.value_type, words, None)
            return lists_of(elements, np.bincount(codes, minlength=count), kind)

        return cls(codes, words, len(before), column)

    def distinct(self) -> Elements:
        """Each element of a group once, where it was first."""
        return self.take(self.first())

    def first(self) -> I64:
        """The elements that no earlier one of their group equals."""
        words = self.words.view(np.uint64)
        codes: U64 = self.codes.view(np.uint64)
        return group_rows(mix(mix(words) + codes), [words, codes])[1]

    def ordered(self) -> Elements:
        """In order of group and value."""
        return self.take(np.lexsort((self.words, self.codes)))

    def take(self, index: I64 | Bools) -> Elements:
        return Elements(self.codes[index], self.words[index], 0, self.column)

    def at_most(self, limit: int) -> Elements:
        """The first elements of every group; they are in order of groups."""
        sizes = np.bincount(self.codes)
        rank = np.arange(len(self.codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.take(rank < limit)

    @property
    def lists(self) -> Any:
        return self.column(self.codes, self.words)
