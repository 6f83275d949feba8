/* SPDX-License-Identifier: MIT */
/* attn_codes.h: where each lane finds its code in a row's block of 32 codes (4 * bits bytes).
 *
 * Vector c holds the codes from VW * c on. Either all of them lie in one word (CODE_IN_WORD), or
 * the vector looks at CODE_BYTES(bits) bytes from code_base(bits, c) on, which never reach past the
 * block, and each lane picks the one or two bytes that its code touches (0x80: a zero byte). Then
 * it shifts right by code_shift (times CODE_SHIFT_SIGN) and masks. */
#ifndef KVS_KERN_ATTN_CODES_H
#define KVS_KERN_ATTN_CODES_H

#define CODE_AT(bits, c)   ((c)*VW * (bits) / 8)
#define CODE_LAST(bits)    (4 * (bits)-CODE_BYTES(bits))
#define CODE_BASE(bits, c) (CODE_AT(bits, c) < CODE_LAST(bits) ? CODE_AT(bits, c) : CODE_LAST(bits))

INLINE size_t code_base(uint32_t bits, size_t c)
{
    return CODE_BASE(bits, c);
}

#define PICK(bits, e)                                                                              \
    (bits) * (e) / 8 - CODE_BASE(bits, (e) / VW),                                                  \
        (bits) * (e) % 8 + (bits) > 8 ? (bits) * (e) / 8 + 1 - CODE_BASE(bits, (e) / VW) : 0x80,   \
        0x80, 0x80
#define SHIFT(bits, e) CODE_SHIFT_SIGN *((int32_t)((bits) * (e) % (CODE_IN_WORD(bits) ? 32 : 8)))

#define FOUR(what, bits, e)                                                                        \
    what(bits, e), what(bits, (e) + 1), what(bits, (e) + 2), what(bits, (e) + 3)
#define EIGHT(what, bits, e) FOUR(what, bits, e), FOUR(what, bits, (e) + 4)
#define ALL32(what, bits)                                                                          \
    {                                                                                              \
        EIGHT(what, bits, 0), EIGHT(what, bits, 8), EIGHT(what, bits, 16), EIGHT(what, bits, 24)   \
    }

/* [bits][4 * code + byte] */
static const uint8_t code_pick[9][128] = {
    [2] = ALL32(PICK, 2), [3] = ALL32(PICK, 3), [4] = ALL32(PICK, 4),
    [5] = ALL32(PICK, 5), [6] = ALL32(PICK, 6), [8] = ALL32(PICK, 8),
};
/* [bits][code] */
static const int32_t code_shift[9][32] = {
    [2] = ALL32(SHIFT, 2), [3] = ALL32(SHIFT, 3), [4] = ALL32(SHIFT, 4),
    [5] = ALL32(SHIFT, 5), [6] = ALL32(SHIFT, 6), [8] = ALL32(SHIFT, 8),
};
#endif
