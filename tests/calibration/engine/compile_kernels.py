"""Compiles the kernels for real GPUs, with the sizes of real models; no device is needed. Run in a process of its own:
a process that interprets kernels cannot compile them. Prints one line a kernel: name, target, shared bytes."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from calibration.engine.kernels import chunks, decode, experts, rows, store

BF16, F32, I32, I64, FP8 = "*bf16", "*fp32", "*i32", "*i64", "*fp8e4nv"
LLAMA_8B = {"GROUP": 4, "HEAD_BLOCKS": 1, "HEADS": 32, "TOKEN": 2 * 8 * 128, "PAGE": 16, "WIDTH": 128,
            "BLOCK_WIDTH": 128, "ROPE": 0, "BLOCK_ROPE": 16, "WINDOW": 0, "CAP": 0.0}  # fmt: skip
GEMMA2_9B = LLAMA_8B | {"GROUP": 2, "HEADS": 16, "TOKEN": 2 * 8 * 256, "WIDTH": 256, "BLOCK_WIDTH": 256,
                        "WINDOW": 4096, "CAP": 50.0}  # fmt: skip
DEEPSEEK = LLAMA_8B | {"GROUP": 128, "HEAD_BLOCKS": 2, "HEADS": 128, "TOKEN": 576, "WIDTH": 512, "BLOCK_WIDTH": 512,
                       "ROPE": 64, "BLOCK_ROPE": 64}  # fmt: skip


DECODE = [BF16, BF16, I32, I32, F32, F32, "fp32", "i32", "i32", "i32"]
CHUNKS = [BF16, BF16, I32, I32, I32, I32, I32, BF16, "fp32", "i32", "i32", "i32"]
EXPERTS = [I64, I32, I32, F32, F32, "i32", "i32"]
KERNELS = {
    "decode llama-8b": (decode._decode, DECODE, LLAMA_8B | {"SPLITS": 16, "BLOCK_HEADS": 16, "TILE": 64}, 4, 2),
    "decode gemma2-9b": (decode._decode, DECODE, GEMMA2_9B | {"SPLITS": 1, "BLOCK_HEADS": 16, "TILE": 64}, 4, 2),
    "decode deepseek-v3": (decode._decode, DECODE, DEEPSEEK | {"SPLITS": 8, "BLOCK_HEADS": 64, "TILE": 32}, 4, 2),
    "combine": (decode._combine, [F32, F32, BF16], {"SPLITS": 16, "WIDTH": 128, "BLOCK_WIDTH": 128}, 4, 2),
    "chunks llama-8b": (chunks._chunks, CHUNKS, LLAMA_8B | {"BLOCK_HEADS": 4, "ROWS": 64, "TILE": 64}, 4, 2),
    "chunks gemma2-9b": (chunks._chunks, CHUNKS, GEMMA2_9B | {"BLOCK_HEADS": 2, "ROWS": 64, "TILE": 32}, 8, 2),
    "chunks deepseek-v3": (chunks._chunks, CHUNKS, DEEPSEEK | {"BLOCK_HEADS": 64, "ROWS": 64, "TILE": 32}, 8, 2),
    "store qwen3": (store._store, [BF16] * 5 + [I64, I64, BF16, BF16, "fp32"],
                    {"HEADS": 16, "KV_HEADS": 8, "HALF": 64, "BLOCK": 64, "NORM": True}, 1, 2),
    "store latent": (store._store_latent, [BF16] * 5 + [I64, I64, BF16, "i32", "fp32"],
                     {"HEADS": 128, "NOPE": 128, "RANK": 512, "HALF": 32, "BLOCK": 32, "BLOCK_RANK": 512}, 2, 2),
    "norm": (rows._norm, [BF16] * 5 + ["i32", "i32", "fp32"], {"ADD": True, "BLOCK": 4096}, 4, 2),
    "gate": (rows._gate, [BF16, BF16, "i32"], {"GELU": True, "BLOCK": 1024}, 4, 2),
    "experts few": (experts._grouped, [BF16] * 3 + EXPERTS,
                    {"EXPERTS": 128, "BLOCK_EXPERTS": 128, "DIVISOR": 8, "ROWS": 16, "COLUMNS": 64, "DEPTH": 64,
                     "SCALED": False}, 4, 3),
    "experts many": (experts._grouped, [BF16] * 3 + EXPERTS,
                     {"EXPERTS": 8, "BLOCK_EXPERTS": 8, "DIVISOR": 0, "ROWS": 64, "COLUMNS": 128, "DEPTH": 64,
                      "SCALED": False}, 4, 3),
}  # fmt: skip
#: What products.LEAST_CAPABILITY keeps from older devices.
IN_EIGHT_BITS = {
    f"{name} in 8 bits": (kernel, [FP8, FP8, *pointers[2:]], constants | {"SCALED": True}, warps, stages)
    for name, (kernel, pointers, constants, warps, stages) in KERNELS.items() if name.startswith("experts")
}  # fmt: skip


def main(capability: int, wanted: list[str]) -> None:
    every = KERNELS | (IN_EIGHT_BITS if capability >= 89 else {})
    for name, (kernel, pointers, constants, warps, stages) in every.items():
        if wanted and name not in wanted:
            continue
        signature = dict(zip(kernel.arg_names, pointers, strict=False)) | dict.fromkeys(
            constants, "constexpr"
        )
        places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        built = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=places),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps, "num_stages": stages},
        )
        print(name, f"sm_{capability}", built.metadata.shared, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
