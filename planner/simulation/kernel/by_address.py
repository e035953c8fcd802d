"""Many arrays handed to compiled code as one pointer: a row of words that say where each lies and how long it is.

numba passes a named tuple of arrays as its parts, seven words an array: two hundred arguments for every call of every
part, which took most of the compile time, and another machine code for each way of putting the arrays together. Here
compiled code gets the address of one row of int64, `Layout.rows_of` writes it, and `row_of` makes of it a value whose
attributes are the arrays: where `state: State` stands in compiled code, `state.requests` reads two words. A row never
changes while code runs, and the compiler is told so (`invariant.load`), so that it reads a word once and not anew
after each store. Replicas of a cluster are rows of one table.

Whoever calls keeps the arrays: a row holds addresses, not references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array
from numpy.typing import DTypeLike, NDArray

from planner.simulation.arrays import Ints

WORD = ir.IntType(64)
Arrays = Any  # a NamedTuple of arrays


class Layout(types.Type):
    """Which arrays a row describes, in what order: name, data type and number of dimensions, all C-contiguous."""

    def __init__(self, arrays: type[Any], fields: Mapping[str, DTypeLike | tuple[DTypeLike, int]]) -> None:
        if tuple(fields) != arrays._fields:
            raise TypeError(f"the layout of {arrays.__name__} names other arrays than it has")
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.arrays: dict[str, types.Array] = {}
        self.first_word: dict[str, int] = {}
        self.words = 0
        for name, field in fields.items():
            dtype, dimensions = field if isinstance(field, tuple) else (field, 1)
            self.dtypes[name] = np.dtype(dtype)
            self.arrays[name] = types.Array(from_dtype(self.dtypes[name]), dimensions, "C")
            self.first_word[name] = self.words
            self.words += 1 + dimensions
        super().__init__(name=f"by_address.{arrays.__name__}")

    def rows_of(self, each: Sequence[Arrays]) -> Ints:
        """int64[len(each), words]. TypeError for an array of another kind than the layout says."""
        rows = np.empty((len(each), self.words), dtype=np.int64)
        for row, arrays in zip(rows, each, strict=True):
            for name, first in self.first_word.items():
                array: NDArray[Any] = getattr(arrays, name)
                known = self.arrays[name]
                if (
                    array.dtype != self.dtypes[name]
                    or array.ndim != known.ndim
                    or not array.flags.c_contiguous
                ):
                    raise TypeError(
                        f"{name} is not a contiguous array of {known.ndim} dimensions of {known.dtype}"
                    )
                row[first] = array.ctypes.data
                row[first + 1 : first + 1 + known.ndim] = array.shape
        return rows


def row_of(layout: Layout) -> Callable[[Ints, int], Any]:
    """For compiled code: from what `rows_of` returned and a row's number to the value with the arrays."""

    @intrinsic(prefer_literal=False)
    def row(typing_context: Any, rows: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            table = context.make_array(signature.args[0])(context, builder, arguments[0])
            wide = context.cast(builder, arguments[1], signature.args[1], types.int64)
            first = builder.mul(wide, ir.Constant(WORD, layout.words))
            return builder.gep(table.data, [first])

        return layout(rows, number), lower

    return cast(Callable[[Ints, int], Any], row)


@register_model(Layout)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager: Any, layout: Layout) -> None:
        super().__init__(manager, layout, WORD.as_pointer())


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Layout

    def generic_resolve(self, layout: Layout, name: str) -> Any:  # type: ignore[override]
        return layout.arrays.get(name)


@lower_getattr_generic(Layout)
def _array_of(context: Any, builder: Any, layout: Layout, row: Any, name: str) -> Any:
    known, first = layout.arrays[name], layout.first_word[name]
    element = context.get_data_type(known.dtype)
    item_bytes = ir.Constant(WORD, context.get_abi_sizeof(element))
    shape = [_word(builder, row, first + 1 + axis) for axis in range(known.ndim)]
    strides = [item_bytes]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(known)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(_word(builder, row, first), element.as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=item_bytes,
        meminfo=None,
    )
    return impl_ret_borrowed(context, builder, known, array._getvalue())


def _word(builder: Any, row: Any, number: int) -> Any:
    word = builder.load(builder.gep(row, [ir.Constant(WORD, number)]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
