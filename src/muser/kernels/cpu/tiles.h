/* AMX tile registers: their shapes, given to the processor once per kernel. */
#ifndef TILES_H
#define TILES_H

#include "muser.h"

/* The palette and shapes of _tile_loadconfig: 64 bytes as the processor reads them. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

INLINE void shape(struct tile_shapes *t, int tile, int rows, int row_bytes) {
    t->rows[tile] = (uint8_t)rows;
    t->row_bytes[tile] = (uint16_t)row_bytes;
}

/* The barrier keeps the stores that fill the shapes: gcc 12 does not know that the instruction reads
 * them. */
INLINE void take_shapes(const struct tile_shapes *t) {
    __asm__ volatile("" : : "r"(t) : "memory");
    _tile_loadconfig(t);
}

#endif
