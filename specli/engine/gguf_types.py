"""The tables of the GGUF format: tensor types with their sizes, names of file types.

Numbers from ggml.h and llama.h, sizes from ggml-common.h of the llama.cpp in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A way to store numbers: `block` of them together take `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


def _type_table(*rows: str) -> dict[int, TensorType]:
    table = {}
    for number, name, block, block_bytes in (entry.split() for row in rows for entry in row.split(",")):
        table[int(number)] = TensorType(name, int(block), int(block_bytes))
    return table


# Those missing (4, 5, 31-33, 36-38) were withdrawn.
TENSOR_TYPES: Mapping[int, TensorType] = _type_table(
    "0 F32 1 4, 1 F16 1 2, 30 BF16 1 2, 28 F64 1 8, 24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8",
    "2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, 9 Q8_1 32 36",
    "10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210, 15 Q8_K 256 292",
    "16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 22 IQ2_S 256 82, 18 IQ3_XXS 256 98, 21 IQ3_S 256 110",
    "19 IQ1_S 256 50, 29 IQ1_M 256 56, 20 IQ4_NL 32 18, 23 IQ4_XS 256 136, 34 TQ1_0 256 54, 35 TQ2_0 256 66",
    "39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18, 42 Q2_0 64 18",
)

REPACKED = frozenset(
    ("Q1_0", "Q2_K", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4")
)
"""What ggml-cpu stores in another order when "extra buffers" are on: repack.cpp and amx/common.h."""


def _names_by_number(first: int, names: str) -> dict[int, str]:
    return dict(enumerate(names.split(), first))


# `general.file_type` (llama_ftype). Those missing (4 to 6, 33 to 35) were withdrawn.
FILE_TYPES: Mapping[int, str] = {
    **_names_by_number(0, "F32 F16 Q4_0 Q4_1"),
    **_names_by_number(7, "Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K"),
    **_names_by_number(19, "IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M"),
    **_names_by_number(30, "IQ4_XS IQ1_M BF16"),
    **_names_by_number(36, "TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0"),
}
