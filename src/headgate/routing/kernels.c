/* The hot loops over keys: hashes, marks, groups and schedules, one pass over all rows.

   Every function gives exactly what its counterpart gives (routing/hashing.py, routing/identity.py
   and slot/cost_shuffle.py); tests/unit/routing/test_kernels.py compares them. No Python in here:
   routing/kernels.py calls it through ctypes.
*/
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define M1 0x9E3779B97F4A7C15ull
#define M2 0xC2B2AE3D27D4EB4Full
#define M3 0xBF58476D1CE4E5B9ull
#define M4 0x94D049BB133111EBull
#define LONG_BYTES 256
#define AHEAD 16

typedef uint64_t u64;
typedef int64_t i64;

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys are read as little-endian words"
#endif

static inline u64 mix(u64 x) {
    x ^= x >> 30;
    x *= M3;
    x ^= x >> 27;
    x *= M4;
    return x ^ x >> 31;
}

/* Values that are bytes. Offsets have 4 or 8 bytes each; width stands for them if they have none. */
typedef struct {
    const uint8_t *data;
    i64 data_bytes;
    const void *offsets;
    i64 offset_bytes;
    i64 width;
} Bytes;

static inline int value_at(const Bytes *v, i64 row, i64 *start, i64 *length) {
    i64 end;
    if (v->offset_bytes == 4) {
        const int32_t *o = v->offsets;
        *start = o[row], end = o[row + 1];
    } else if (v->offset_bytes == 8) {
        const i64 *o = v->offsets;
        *start = o[row], end = o[row + 1];
    } else {
        *start = row * v->width, end = *start + v->width;
    }
    *length = end - *start;
    return *start >= 0 && *length >= 0 && end <= v->data_bytes;
}

/* The last bytes of a value, fewer than eight, as a word with zeros above them. */
static inline u64 rest_of(const Bytes *v, i64 at, i64 length) {
    u64 word = 0;
    if (length == 0) return 0;
    if (at + 8 <= v->data_bytes) {
        memcpy(&word, v->data + at, 8);
        return word & (~0ull >> (64 - 8 * length));
    }
    memcpy(&word, v->data + at, (size_t)length);
    return word;
}

/* A number per value. Long values are left as they are. Returns how many those were, or -1 if the
   column is not whole. */
i64 hg_hash_bytes(const uint8_t *data, i64 data_bytes, const void *offsets, i64 offset_bytes,
                  i64 width, i64 rows, u64 *out) {
    const Bytes v = {data, data_bytes, offsets, offset_bytes, width};
    i64 too_long = 0, start, length;
    for (i64 row = 0; row < rows; row++) {
        if (!value_at(&v, row, &start, &length)) return -1;
        if (length > LONG_BYTES) {
            too_long++;
            continue;
        }
        u64 lane = (u64)length * M1 + M4, word;
        for (; length >= 8; start += 8, length -= 8) {
            memcpy(&word, v.data + start, 8);
            lane = (lane ^ word) * M2;
            lane ^= lane >> 29;
        }
        if (length) {
            lane = (lane ^ rest_of(&v, start, length)) * M2;
            lane ^= lane >> 29;
        }
        out[row] = mix(lane);
    }
    return too_long;
}

/* Stir a column's numbers into the hashes of the columns before it. */
void hg_fold(u64 *h, const u64 *numbers, i64 rows) {
    for (i64 row = 0; row < rows; row++) h[row] = mix(h[row] * M2 ^ numbers[row]);
}

void hg_mix_words(const u64 *words, i64 rows, u64 *out) {
    for (i64 row = 0; row < rows; row++) out[row] = mix(words[row] + M1);
}

/* --- SipHash-1-3 ------------------------------------------------------------------------------ */

#define ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))
#define SIP_ROUND                                                                                  \
    v0 += v1, v1 = ROTATE(v1, 13) ^ v0, v0 = ROTATE(v0, 32);                                       \
    v2 += v3, v3 = ROTATE(v3, 16) ^ v2;                                                            \
    v0 += v3, v3 = ROTATE(v3, 21) ^ v0;                                                            \
    v2 += v1, v1 = ROTATE(v1, 17) ^ v2, v2 = ROTATE(v2, 32)
#define SIP_BEGIN                                                                                  \
    u64 v0 = key[0] ^ 0x736F6D6570736575ull, v1 = key[1] ^ 0x646F72616E646F6Dull;                  \
    u64 v2 = key[0] ^ 0x6C7967656E657261ull, v3 = key[1] ^ 0x7465646279746573ull
#define SIP_WORD(w) v3 ^= (w); SIP_ROUND; v0 ^= (w)
#define SIP_END v2 ^= 0xFF; SIP_ROUND; SIP_ROUND; SIP_ROUND

i64 hg_sip_bytes(const u64 *key, const uint8_t *data, i64 data_bytes, const void *offsets,
                 i64 offset_bytes, i64 width, i64 rows, u64 *out) {
    const Bytes v = {data, data_bytes, offsets, offset_bytes, width};
    i64 too_long = 0, start, length;
    for (i64 row = 0; row < rows; row++) {
        if (!value_at(&v, row, &start, &length)) return -1;
        if (length > LONG_BYTES) {
            too_long++;
            continue;
        }
        SIP_BEGIN;
        u64 word, last = (u64)length << 56;
        for (; length >= 8; start += 8, length -= 8) {
            memcpy(&word, v.data + start, 8);
            SIP_WORD(word);
        }
        last |= rest_of(&v, start, length);
        SIP_WORD(last);
        SIP_END;
        out[row] = v0 ^ v1 ^ v2 ^ v3;
    }
    return too_long;
}

void hg_sip_words(const u64 *key, const u64 **words, i64 columns, i64 rows, u64 *out) {
    const u64 last = (u64)(8 * columns) << 56;
    for (i64 row = 0; row < rows; row++) {
        SIP_BEGIN;
        for (i64 c = 0; c < columns; c++) {
            SIP_WORD(words[c][row]);
        }
        SIP_WORD(last);
        SIP_END;
        out[row] = v0 ^ v1 ^ v2 ^ v3;
    }
}

/* --- groups ----------------------------------------------------------------------------------- */

/* Number the distinct keys in order of appearance. A place of the table holds 32 bits of the hash
   and the number of a group, plus one. Returns the groups, or -1 if there is no memory. */
i64 hg_group_rows(const u64 *h, const u64 **marks, i64 mark_count, i64 rows, i64 *codes,
                  i64 *first) {
    u64 size = 16;
    while (size < 2 * (u64)rows) size <<= 1;
    const u64 mask = size - 1, tag = ~0ull << 32;
    u64 *table = calloc(size, sizeof *table);
    if (table == NULL) return -1;
    i64 groups = 0;
    for (i64 row = 0; row < rows; row++) {
        if (row + AHEAD < rows) __builtin_prefetch(&table[h[row + AHEAD] & mask]);
        const u64 hash = h[row];
        for (u64 place = hash & mask;; place = (place + 1) & mask) {
            const u64 found = table[place];
            if (found == 0) {
                first[groups] = row;
                codes[row] = groups++;
                table[place] = (hash & tag) | (u64)groups;
                break;
            }
            if ((found & tag) != (hash & tag)) continue;
            const i64 group = (i64)(found & ~tag) - 1, other = first[group];
            if (h[other] != hash) continue;
            i64 m = 0;
            while (m < mark_count && marks[m][other] == marks[m][row]) m++;
            if (m == mark_count) {
                codes[row] = group;
                break;
            }
        }
    }
    free(table);
    return groups;
}

/* Row numbers sorted by group, those of a group in order. `starts` has a place per group, which
   must hold where the group begins. */
void hg_order_of(const i64 *codes, i64 rows, i64 *starts, i64 *order) {
    for (i64 row = 0; row < rows; row++) order[starts[codes[row]]++] = row;
}

/* --- schedules -------------------------------------------------------------------------------- */

/* Each row, in order, to the instance that would be done with it first, or, not looking ahead, to
   the one with the least work so far. Of equals the first one wins, counted from `first`. `busy`
   grows by what the rows take: `times` has a line per group, a column per instance. */
void hg_assign(const double *times, const i64 *group, i64 rows, i64 instances, i64 first, i64 ahead,
               double *busy, int32_t *targets) {
    for (i64 row = 0; row < rows; row++) {
        const double *cost = times + group[row] * instances;
        i64 best = first;
        double least = ahead ? busy[first] + cost[first] : busy[first];
        for (i64 step = 1; step < instances; step++) {
            const i64 j = first + step < instances ? first + step : first + step - instances;
            const double end = ahead ? busy[j] + cost[j] : busy[j];
            if (end < least) least = end, best = j;
        }
        busy[best] += cost[best];
        targets[row] = (int32_t)best;
    }
}
