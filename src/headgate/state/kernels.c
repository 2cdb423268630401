/* The hot loops over state rows: finding them, giving them places, and putting them in order.

   `hg_find` and `hg_order` give exactly what NumPy gives (state/table.py, state/rows.py); `hg_claim`
   may give other free places, which nothing but the table depends on. tests/unit/state/
   test_kernels.py compares them. No Python in here: state/kernels.py calls it through ctypes.
*/
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIX 0x9E3779B97F4A7C15ull
#define EMPTY 0
#define REMOVED 2
#define PLAIN 1 /* the mark of all rows of a plain table */
#define AHEAD 16
#define FEW 16
#define FOUND_AT_ONCE 128
#define SEALED_AT_ONCE 512
#define COPIED_AT_ONCE 64

typedef uint64_t u64;
typedef int64_t i64;

/* A hash table's positions. The marks of rows have one byte each, or eight. In a plain table all
   rows have the same mark, and the hash is 0 where there is no row: so most marks are not read. */
typedef struct {
    const u64 *h;
    const void *marks;
    i64 mark_bytes;
    i64 size;
    i64 plain;
} Table;

static inline u64 mark_at(const Table *t, i64 place) {
    if (t->mark_bytes == 1) return ((const uint8_t *)t->marks)[place];
    return ((const u64 *)t->marks)[place];
}

static inline i64 home_of(u64 h, u64 capacity) {
    return (i64)((((h ^ h >> 29) * MIX >> 32) * capacity) >> 32);
}

static inline void fetch(const Table *t, i64 place) {
    if (place < 0 || place >= t->size) return;
    __builtin_prefetch(&t->h[place]);
    __builtin_prefetch((const char *)t->marks + place * t->mark_bytes);
}

/* Where each row is, or where its probe ended, at an empty position. `start`: from where to go on
   (NULL: from home). Returns -1 if a probe left the table.

   Of some rows all homes are fetched before the first is looked at: in the same loop as the probes,
   whose branches nobody can foresee, fetching takes twice as long. */
i64 hg_find(const u64 *h, const void *wanted, const i64 *start, i64 rows, i64 capacity,
            const u64 *table_h, const void *marks, i64 mark_bytes, i64 size, i64 plain, i64 *pos,
            uint8_t *found) {
    const Table t = {table_h, marks, mark_bytes, size, plain};
    const Table asked = {h, wanted, mark_bytes, rows, 0};
    for (i64 begin = 0; begin < rows; begin += FOUND_AT_ONCE) {
        const i64 end = rows - begin < FOUND_AT_ONCE ? rows : begin + FOUND_AT_ONCE;
        for (i64 row = begin; row < end; row++) {
            const i64 place = start ? start[row] : home_of(h[row], (u64)capacity);
            if (place < 0 || place >= size) return -1;
            pos[row] = place;
            __builtin_prefetch(&t.h[place]);
            if (!plain) __builtin_prefetch((const char *)t.marks + place * mark_bytes);
        }
        for (i64 row = begin; row < end; row++) {
            const u64 hash = h[row], mark = mark_at(&asked, row);
            i64 place = pos[row];
            for (found[row] = 0;; place++) {
                if (place >= size) return -1;
                const u64 seen = plain && t.h[place] ? PLAIN : mark_at(&t, place);
                if (seen == mark && t.h[place] == hash) {
                    found[row] = 1;
                    break;
                }
                if (seen == EMPTY) break;
            }
            pos[row] = place;
        }
    }
    return 0;
}

/* Give each row, none of which is there, the first free position from pos[row] on. Returns how many
   rows have one: fewer than all if the last position of the table would have been taken. */
i64 hg_claim(const u64 *h, const void *wanted, i64 rows, u64 *table_h, void *marks, i64 mark_bytes,
             i64 size, i64 *pos) {
    const Table t = {table_h, marks, mark_bytes, size, 0};
    const Table asked = {h, wanted, mark_bytes, rows, 0};
    for (i64 row = 0; row < rows; row++) {
        if (row + AHEAD < rows) fetch(&t, pos[row + AHEAD]);
        i64 place = pos[row];
        if (place < 0) return row;
        while (place < size - 1 && mark_at(&t, place) != EMPTY) place++;
        if (place >= size - 1) return row;
        table_h[place] = h[row];
        if (mark_bytes == 1)
            ((uint8_t *)marks)[place] = (uint8_t)mark_at(&asked, row);
        else
            ((u64 *)marks)[place] = mark_at(&asked, row);
        pos[row] = place;
    }
    return rows;
}

/* --- order ------------------------------------------------------------------------------------ */

typedef struct {
    u64 route, h, check;
    i64 row;
} Row;

static inline int before(const Row *a, const Row *b) {
    if (a->route != b->route) return a->route < b->route;
    if (a->h != b->h) return a->h < b->h;
    if (a->check != b->check) return a->check < b->check;
    return a->row < b->row;
}

static void sort_few(Row *rows, i64 count) {
    for (i64 i = 1; i < count; i++) {
        const Row row = rows[i];
        i64 place = i;
        for (; place > 0 && before(&row, &rows[place - 1]); place--) rows[place] = rows[place - 1];
        rows[place] = row;
    }
}

static void sort_rows(Row *rows, Row *spare, i64 count) {
    if (count <= FEW) {
        sort_few(rows, count);
        return;
    }
    const i64 half = count / 2;
    sort_rows(rows, spare, half);
    sort_rows(rows + half, spare, count - half);
    if (!before(&rows[half], &rows[half - 1])) return;
    memcpy(spare, rows, (size_t)half * sizeof *rows);
    for (i64 left = 0, right = half, to = 0; left < half; to++) {
        const int take_right = right < count && before(&rows[right], &spare[left]);
        rows[to] = take_right ? rows[right++] : spare[left++];
    }
}

/* Row numbers by (route, h, check), earlier rows first among equals, and which are the first of
   equal ones. `packed` are sorted numbers: the top bits of a row's route, and in the low `bits` its
   number. Only rows that agree in the former are looked at. Returns -1 if there is no memory. */
i64 hg_order(const u64 *route, const u64 *h, const u64 *check, const u64 *packed, i64 rows,
             i64 bits, i64 *order, uint8_t *first) {
    const u64 rest = ((u64)1 << bits) - 1;
    i64 room = 0;
    Row *run = NULL;
    for (i64 start = 0, end; start < rows; start = end) {
        for (end = start + 1; end < rows && !((packed[end] ^ packed[start]) & ~rest); end++);
        const i64 count = end - start;
        if (count == 1) {
            order[start] = (i64)(packed[start] & rest), first[start] = 1;
            continue;
        }
        if (count > room) {
            room = 2 * count;
            free(run);
            run = malloc((size_t)(room + room / 2) * sizeof *run); /* and half to merge in */
            if (run == NULL) return -1;
        }
        for (i64 i = 0; i < count; i++) {
            const i64 ahead = start + i + AHEAD < rows ? (i64)(packed[start + i + AHEAD] & rest) : 0;
            __builtin_prefetch(&route[ahead]);
            __builtin_prefetch(&h[ahead]);
            __builtin_prefetch(&check[ahead]);
            const i64 row = (i64)(packed[start + i] & rest);
            const Row one = {route[row], h[row], check[row], row};
            run[i] = one;
        }
        sort_rows(run, run + room, count);
        for (i64 i = 0; i < count; i++) {
            order[start + i] = run[i].row;
            first[start + i] = i == 0 || run[i].route != run[i - 1].route ||
                               run[i].h != run[i - 1].h || run[i].check != run[i - 1].check;
        }
    }
    free(run);
    return 0;
}

/* --- seals ------------------------------------------------------------------------------------ */

/* A column of words to be sealed: `width` numbers of so many bytes in a row, and NULL or a byte per
   row that is 0 where the value is null. */
typedef struct {
    u64 words, bytes, width, valid;
} Sealed;

#define ADD_WEIGHTED(type)                                                                         \
    for (i64 row = 0; row < rows; row++) {                                                         \
        const u64 word = ((const type *)words)[row * width];                                       \
        total[row] += (word ^ word >> 32) * factor;                                                \
    }

/* Each word folded onto itself, times its factor; words are `width` apart. */
static void add_weighted(u64 *total, const char *words, u64 bytes, i64 width, i64 rows,
                         u64 factor) {
    if (bytes == 8) {
        ADD_WEIGHTED(u64)
    } else if (bytes == 4) {
        ADD_WEIGHTED(uint32_t)
    } else if (bytes == 2) {
        ADD_WEIGHTED(uint16_t)
    } else {
        ADD_WEIGHTED(uint8_t)
    }
}

/* The seals of rows, see seals.py: of identity, position and these columns. */
void hg_seal(const u64 *h, const char *check, i64 check_bytes, const u64 *pos, i64 rows,
             const Sealed *columns, i64 count, const u64 *factor, uint32_t *seals) {
    u64 total[SEALED_AT_ONCE];
    for (i64 start = 0; start < rows; start += SEALED_AT_ONCE) {
        const i64 some = rows - start < SEALED_AT_ONCE ? rows - start : SEALED_AT_ONCE;
        for (i64 row = 0; row < some; row++)
            total[row] = h[start + row] * factor[0] + pos[start + row] * factor[1];
        add_weighted(total, check + start * check_bytes, (u64)check_bytes, 1, some, factor[2]);
        const u64 *next = factor + 3;
        for (i64 number = 0; number < count; number++) {
            const Sealed column = columns[number];
            const i64 width = (i64)column.width;
            for (i64 word = 0; word < width; word++) {
                const char *words = (const char *)column.words;
                words += (u64)(start * width + word) * column.bytes;
                add_weighted(total, words, column.bytes, width, some, *next++);
            }
            const uint8_t *valid = (const uint8_t *)column.valid;
            for (i64 row = 0; valid && row < some; row++)
                total[row] += valid[start + row] ? 0 : *next;
            next++;
        }
        for (i64 row = 0; row < some; row++) seals[start + row] = (uint32_t)(total[row] >> 32);
    }
}

/* Do the positions that probes passed, each from one to before another, have right index seals? */
i64 hg_passed(const u64 *h, const void *marks, i64 mark_bytes, const i64 *first, const i64 *last,
              i64 rows, const u64 *factor, const uint32_t *seals) {
    const Table t = {h, marks, mark_bytes, 0, 0};
    for (i64 row = 0; row < rows; row++) {
        if (row + AHEAD < rows) __builtin_prefetch(&seals[first[row + AHEAD]]);
        for (i64 place = first[row]; place < last[row]; place++) {
            const u64 mark = mark_at(&t, place);
            u64 sum = h[place] * factor[0] + (u64)place * factor[1];
            sum += (mark ^ mark >> 32) * factor[2];
            if (seals[place] != (mark == REMOVED ? ~(uint32_t)0 : (uint32_t)(sum >> 32))) return 0;
        }
    }
    return 1;
}

/* What the seals of values of any length are made of, see seals.py; of the bytes of those longer
   than `longest` nothing is in it. */
void hg_sum_values(const i64 *bounds, const char *body, const u64 *ordinals, i64 rows, i64 longest,
                   const u64 *factor, u64 *sums) {
    for (i64 row = 0; row < rows; row++) {
        const i64 start = bounds[row], bytes = bounds[row + 1] - start;
        u64 total = ordinals[row] * factor[0] + (u64)bytes * factor[1];
        for (i64 at = 0; at < bytes && bytes <= longest; at += 8) {
            u64 word = 0;
            if (bytes - at >= 8)
                memcpy(&word, body + start + at, 8);
            else
                memcpy(&word, body + start + at, (size_t)(bytes - at));
            total += (word ^ word >> 32) * factor[2 + at / 8];
        }
        sums[row] = total;
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* One number of each record: where in the record, how many bytes, and a column of such numbers. */
typedef struct {
    u64 start, bytes, column;
} Number;

static inline void fetch_records(const char *records, i64 apart, const i64 *pos, i64 start,
                                 i64 rows) {
    const i64 end = rows - start < COPIED_AT_ONCE ? rows : start + COPIED_AT_ONCE;
    for (i64 row = start; row < end; row++) {
        __builtin_prefetch(records + pos[row] * apart);
        __builtin_prefetch(records + (pos[row] + 1) * apart - 1);
    }
}

#define IN_RECORD(type) *(type *)(records + pos[row] * apart + number.start)
#define IN_COLUMN(type) ((type *)number.column)[row]
#define EACH(type, to, from)                                                                       \
    for (i64 row = start; row < end; row++) to(type) = from(type);
#define EACH_OF_ITS_BYTES(to, from)                                                                \
    if (number.bytes == 8) {                                                                       \
        EACH(u64, to, from)                                                                        \
    } else if (number.bytes == 4) {                                                                \
        EACH(uint32_t, to, from)                                                                   \
    } else if (number.bytes == 2) {                                                                \
        EACH(uint16_t, to, from)                                                                   \
    } else {                                                                                       \
        EACH(uint8_t, to, from)                                                                    \
    }

/* Copy numbers of the records at these positions, which are `apart` bytes apart, to columns, or
   (`put`) from columns; some records at a time, so that they stay in the cache. */
void hg_copy(char *records, i64 apart, const i64 *pos, i64 rows, const Number *numbers, i64 count,
             i64 put) {
    fetch_records(records, apart, pos, 0, rows);
    for (i64 start = 0; start < rows; start += COPIED_AT_ONCE) {
        const i64 end = rows - start < COPIED_AT_ONCE ? rows : start + COPIED_AT_ONCE;
        fetch_records(records, apart, pos, start + COPIED_AT_ONCE, rows);
        for (i64 at = 0; at < count; at++) {
            const Number number = numbers[at];
            if (put) {
                EACH_OF_ITS_BYTES(IN_RECORD, IN_COLUMN)
            } else {
                EACH_OF_ITS_BYTES(IN_COLUMN, IN_RECORD)
            }
        }
    }
}

/* Copy pieces of memory, each from an address, one behind the other. */
void hg_gather(const u64 *from, const i64 *bytes, i64 pieces, char *to) {
    for (i64 piece = 0; piece < pieces; piece++) {
        if (piece + AHEAD < pieces) __builtin_prefetch((const char *)from[piece + AHEAD]);
        memcpy(to, (const char *)from[piece], (size_t)bytes[piece]);
        to += bytes[piece];
    }
}
