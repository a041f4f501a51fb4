/* The device folder's own header: readers of weight formats, shared by weight.c and weight_gguf.c. */
#pragma once
#include "weight.h"

/* How one GGUF block becomes codes, scales and offsets. Columns are in order: group g of the block is columns [g*group,
 * (g+1)*group). read: block in file layout -> q [elems], s [elems/group], b [elems/group] (b only where has_offset). */
typedef struct block_reader {
    int16_t elems, bytes;
    code_form form;
    void (*read)(const uint8_t *block, uint8_t *q, float *s, float *b);
} block_reader;
enum { BLOCK_ELEMS_MAX = 256, BLOCK_GROUPS_MAX = 16 };

/* NULL for formats that are not GGUF blocks. */
const block_reader *weight_block_reader(weight_format f);

/* 2*E2M1 + 12 for each 4-bit float code: 0 ½ 1 1½ 2 3 4 6 and their negatives (OCP Microscaling, v1.0, 5.3.3). */
extern const uint8_t weight_e2m1_code[16];
/* ggml's 4-bit non-linear values, plus 128. */
extern const uint8_t weight_iq4_code[16];
enum { E2M1_BITS = 5, E2M1_ZERO = 12 };
/* Half of the E8M0 scale 2^(e-127): the scale of doubled E2M1 values. 255 (NaN in OCP) reads as 2^127, as GGUF's
 * readers do. */
float weight_e8m0_half(uint8_t e);

/* Eight bytes at once: a block's bytes are worked on as lanes of a 64-bit word (the host is little-endian; weight.c
 * asserts it). */
static inline uint64_t lanes_load(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static inline void lanes_store(uint8_t *p, uint64_t v) {
    memcpy(p, &v, 8);
}
static inline uint16_t load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
#define LANES(byte) (0x0101010101010101u * (byte))
