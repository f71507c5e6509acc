"""One layer's cache and attention through the shim, with the oracle's answer beside it."""

import ctypes

import numpy as np

from muser.graph import oracle
from muser.graph.arithmetic import attention_constant
from muser.kv.geometry import Geometry

from .shim import address, device, poisoned

POINTER, INT, U64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64


def structure(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


STEP = dict.fromkeys(("count", "tokens", "positions", "slots", "outputs"), POINTER)
FAULTS = {"word": POINTER, "entry": U64}
CACHE = {"k_cache": POINTER, "v_cache": POINTER, "v_steps": POINTER}
Append = structure(
    "Append", k=POINTER, v=POINTER, **CACHE, **STEP, **FAULTS, kv_heads=INT, dim=INT, capacity=INT
)
Copy = structure(
    "Copy", k=POINTER, v=POINTER, **CACHE, **FAULTS,
    kv_heads=INT, dim=INT, capacity=INT, slot=INT, first=INT, count=INT,
)  # fmt: skip
ATTEND = dict(
    q=POINTER, gate=POINTER, out=POINTER, k=POINTER, v=POINTER, v_steps=POINTER,
    tile_out=POINTER, tile_sums=POINTER, claims=POINTER, **STEP, **FAULTS, factor=ctypes.c_float,
    heads=INT, kv_heads=INT, dim=INT, q_bits=INT, capacity=INT, window=INT, places=INT,
)  # fmt: skip
Attend = structure("Attend", **ATTEND)
Combine = structure(
    "Combine",
    a=Attend,
    codes=POINTER,
    scales=POINTER,
    made=POINTER,
    together=INT,
    handed=POINTER,
)
CHAINS = {"few": "combine_256", "more": "combine_more_256", "most": "combine_most_256"}
CHAINS["turns"] = "combine_turns_256"

TEXTS = (
    "kv.cuh",
    "attention.cuh",
    "source.cuh",
    "attention_decode.cuh",
    "attention_few.cuh",
    "attention_deep.cuh",
    "attention_prefill.cuh",
    "attention_wide.cuh",
)


def addresses(**arrays):
    return {name: address(array) for name, array in arrays.items()}


def bytes_of(shim, kernel):
    """The dynamic shared memory that the text says its kernel takes."""
    return shim.size(f"{kernel}_bytes")


class Layer:
    """Caches of `slots` sequences. `chunk` and `context` decide the capacity as the engine does."""

    def __init__(self, shim, heads, kv_heads, dim, window=None, slots=1, context=700, chunk=64):
        self.shim, self.heads, self.kv_heads, self.dim, self.window = (
            shim,
            heads,
            kv_heads,
            dim,
            window,
        )
        self.capacity = Geometry(window, context, chunk).capacity
        self.head = next(size for size in (64, 128, 256) if dim <= size)
        shape = (slots, kv_heads, self.capacity)
        self.k, self.v = (device(np.zeros((*shape, dim), np.float16)) for _ in range(2))
        self.v_steps = device(np.zeros(shape, np.int8))
        self.fault = device(np.full(1, 2**64 - 1, np.uint64))
        self.seed, self.together = 0, False  # whether quantised rows lie side by side
        self.keys, self.values = (
            np.zeros((slots, context, kv_heads, dim), np.float16) for _ in range(2)
        )

    @property
    def faulty_row(self):
        """The row that the kernels reported, or None."""
        word = int(self.fault[0])
        return None if word == 2**64 - 1 else word & 0xFFFFFFFF

    def step(self, positions, slots):
        parts = (len(positions), positions, positions, slots, positions)
        arrays = [device(np.atleast_1d(np.asarray(part, np.int32))) for part in parts]
        return arrays, dict(zip(STEP, map(address, arrays), strict=True))

    def cache(self):
        return addresses(k_cache=self.k, v_cache=self.v, v_steps=self.v_steps)

    def sizes(self):
        return {"kv_heads": self.kv_heads, "dim": self.dim, "capacity": self.capacity}

    def faults(self):
        return {"word": address(self.fault), "entry": 5}

    def append(self, k, v, positions, slots, spare=0):
        """Store rows f32 `[rows, kv heads * dim]`; `spare` more blocks than rows."""
        kept, step = self.step(positions, slots)
        k, v = device(k), device(v)
        argument = Append(
            **addresses(k=k, v=v), **self.cache(), **step, **self.faults(), **self.sizes()
        )
        grid = (len(k) + spare, self.kv_heads)
        self.shim.launch("kv_append", grid, 64, argument, seed=self.seed)
        for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
            self.keys[slot, position] = oracle.snap_kv(k[row : row + 1], self.kv_heads)[0]
            self.values[slot, position] = oracle.snap_kv(v[row : row + 1], self.kv_heads)[0]
        return kept

    def copy(self, kernel, k, v, slot, first):
        argument = Copy(
            **addresses(k=k, v=v), **self.cache(), **self.faults(), **self.sizes(),
            slot=slot, first=first, count=len(k),
        )  # fmt: skip
        self.shim.launch(kernel, (len(k), self.kv_heads), 64, argument, seed=self.seed)

    def places(self):
        whole = self.capacity // 128
        return whole if self.window is None else min(whole, (self.window + 126) // 128 + 1)

    def attend(self, route, q, positions, slots, gate=None, spare=0, blocks=6):
        """Rows f32 `[rows, heads * dim]` by `route` "decode", "prefill", "wide", "deep" or one of
        `CHAINS`. The last leave what they quantised as `self.quantised`.

        "deep", with `blocks` a unit, does one row after another, as no kernel of it does more.
        """
        if route == "deep" and len(q) + spare > 1:
            gates = [None] * len(q) if gate is None else np.split(gate, len(q))
            rows = zip(np.split(q, len(q)), positions, slots, gates, strict=True)
            made = [self.attend(route, x, [p], [s], g, blocks=blocks) for x, p, s, g in rows]
            return np.concatenate(made)
        _kept, step = self.step(positions, slots)
        rows, parts = len(q) + spare, -(-self.dim // 32)
        q, out = device(q), poisoned(q.shape, np.float32)
        gate = None if gate is None else device(gate)
        tile_out = poisoned((rows, self.heads, parts, self.places(), 32), np.float32)
        tile_sums = poisoned((rows, self.heads, self.places(), 4), np.int32)
        arrays = {"q": q, "out": out, "k": self.k, "v": self.v, "v_steps": self.v_steps}
        claims = device(np.zeros(self.heads, np.uint32))
        argument = Attend(
            **addresses(**arrays, tile_out=tile_out, tile_sums=tile_sums, claims=claims),
            gate=address(gate),
            **step, **self.faults(), factor=attention_constant(self.dim**-0.5), heads=self.heads,
            **self.sizes(), q_bits=20 - int(self.dim - 1).bit_length(),
            window=self.window or 0, places=self.places(),
        )  # fmt: skip
        units = self.kv_heads * -(-self.heads // self.kv_heads // 16)
        if route == "deep":
            size = bytes_of(self.shim, f"decode_deep_{self.dim}")
            grid = blocks * units
            self.shim.launch(f"decode_deep_{self.dim}", grid, 512, argument, size, self.seed)
            assert not claims.any()
        if route == "decode" or route in CHAINS:
            is_one = self.head <= 128 and blocks >= rows * units * self.places()
            kernel = f"decode_{'one' if is_one else 'tiles'}_{self.head}"
            size = bytes_of(self.shim, kernel)
            self.shim.launch(kernel, blocks, 256, argument, size, self.seed)
        if route in CHAINS:
            self.combine_quantised(CHAINS[route], rows, argument)
        elif route in ("decode", "deep"):
            grid = (self.heads, rows, parts)
            size = bytes_of(self.shim, "decode_combine")
            self.shim.launch("decode_combine", grid, 256, argument, size, self.seed)
        else:
            self._prefill(route, rows, argument)
        assert self.shim.inexact_sums == 0
        return np.array(out)

    def combine_quantised(self, kernel, rows, argument):
        """Launch what walks the chain and quantises the rows: they become `self.quantised`."""
        groups = -(-self.heads * self.dim // 256)
        shape = (groups, rows) if self.together else (rows, groups)
        codes, scales = poisoned((*shape, 272), np.uint8), poisoned(shape, np.float32)
        made = device(np.zeros(1, np.uint32))
        handed = device(np.zeros(rows * self.heads * self.dim, np.uint32))
        arrays = map(address, (codes, scales, made))
        argument = Combine(argument, *arrays, rows if self.together else 1, address(handed))
        in_turns = kernel == CHAINS["turns"]
        blocks = self.heads * self.dim // 32 if in_turns else groups
        self.shim.launch(kernel, (blocks, rows), 256, argument, seed=self.seed)
        assert made[0] == blocks * rows
        assert not handed.any()
        turned = (0, 1) if self.together else (0, 0)
        self.quantised = np.array(codes.swapaxes(*turned)), np.array(scales.swapaxes(*turned))

    def _prefill(self, route, rows, argument):
        ratio, wide = self.heads // self.kv_heads, route == "wide"
        queries, units = max(1, 16 // ratio), self.kv_heads * -(-ratio // 16)
        if wide:
            grid, block = (-(-rows // (8 * queries)), units), 384
        else:
            grid = (-(-rows // (4 * queries)), units, -(-self.head // 128))
            block = 128
        kernel = f"prefill_{'wide_' * wide}{self.head}"
        size = bytes_of(self.shim, kernel)
        self.shim.launch(kernel, grid, block, argument, size, self.seed)

    def expected(self, q, positions, slots, gate=None):
        out = np.empty_like(q)
        last = np.asarray(positions, np.int64) + 1
        first = np.zeros_like(last) if self.window is None else np.maximum(0, last - self.window)
        for slot in np.unique(slots):
            mine = np.asarray(slots) == slot
            stop = int(last[mine].max())
            rows = oracle.attention(
                q[mine].reshape(-1, self.heads, self.dim),
                self.keys[slot, :stop],
                self.values[slot, :stop],
                np.stack([first, last], axis=1)[mine],
                self.dim**-0.5,
            )
            out[mine] = rows
        return out if gate is None else oracle.sigmoid_gate(out, gate)
