// A unit: 32 rows x 64 columns of W, as two pieces of 16 rows, each one stretch of bytes that one warp takes.
//
// Lane 4g + t holds rows g and g + 8 of a piece and, of each, columns 16t .. 16t + 15. Within the 64 columns the
// sixteen of a matrix instruction are chosen so that a lane's share is contiguous: instruction s takes columns
// 16t + 4s .. 16t + 4s + 3 from every t; x is read in the same order, so the product is the same.
//
// Packed, 1536 bytes: three planes of 512, 16 bytes a lane: low bytes of row g, of row g + 8, code words (two of each
// row). The palette numbers of a unit, 32 bytes, are kept apart: word g holds those of rows g, g + 8, g + 16, g + 24.
// Raw, 2048 bytes: four planes: row g, columns 16t .. 16t + 7, then 16t + 8 ..; row g + 8 likewise.
// In eight bits (EIGHT, with RAW), 1024 bytes: two planes, the sixteen of row g, of row g + 8.
constexpr int COLUMNS = 64;
constexpr int PLANES = EIGHT ? 2 : RAW ? 4 : 3;
constexpr u32 PIECE = 512 * PLANES;
constexpr u32 UNIT = 2 * PIECE;
constexpr u32 NUMBERS = 32;     // bytes of palette numbers of a unit
[[maybe_unused]] constexpr u32 RAW_GROUP = 255;  // in their place: 64 columns of a row that no palette covers

// Eight weights of one row: `low` bytes of the first and last four, `word` of classes and signs, the palette.
__device__ __forceinline__ void decode(u32 low_a, u32 low_b, u32 word, uint2 palette, u32& r0, u32& r1, u32& r2, u32& r3) {
    const u32 chosen = word & 0x77777777u;
    const u32 a = permuted(palette.x, palette.y, chosen) | (word & 0x80808080u);
    const u32 b = permuted(palette.x, palette.y, chosen >> 16) | ((word << 4) & 0x80808080u);
    r0 = permuted(low_a, a, 0x5140);
    r1 = permuted(low_a, a, 0x7362);
    r2 = permuted(low_b, b, 0x5140);
    r3 = permuted(low_b, b, 0x7362);
}

// Four weights of eight bits: 1, a sign and seven bits; 2, e4m3. A scale for each row comes at the end.
[[maybe_unused]] __device__ __forceinline__ void widen(u32 word, u32& r0, u32& r1) {
    const u32 pair[2] = {permuted(word, 0, 0x4140), permuted(word, 0, 0x4342)};
    u32 wide[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 sign = (pair[i] & 0x00800080u) << 8;
        if (EIGHT == 1)  // 128 + the seven bits, less 128
            wide[i] = sum_of_pairs((pair[i] & 0x007F007Fu) | 0x43004300u, 0xC300C300u) | sign;
        else  // the exponent counts from 2^-120 of where it should
            wide[i] = product_of_pairs((pair[i] & 0x007F007Fu) << 4 | sign, 0x7B807B80u);
    }
    r0 = wide[0], r1 = wide[1];
}

// A lane's share of a piece, in registers: rows g and g + 8, of each two runs of eight weights.
struct Share {
    uint4 plane[PLANES];
#if !RAW
    uint2 palette[2];  // of rows g and g + 8
    u32 number[2];
#endif

    __device__ __forceinline__ void load(u32 at) {
#pragma unroll
        for (int i = 0; i < PLANES; ++i) plane[i] = load16(at + 512 * i);
    }

    // `numbers` of the unit's four rows; those of this piece are bytes 2 `half` and 2 `half` + 1.
    __device__ __forceinline__ void find_palettes(u32 numbers, int half, u32 table) {
#if !RAW
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            number[i] = numbers >> 8 * (2 * half + i) & 0xFF;
            palette[i] = load8(table + 8 * number[i]);
        }
#endif
    }

    __device__ __forceinline__ bool has_raw_group() const {
#if RAW
        return false;
#else
        return max(number[0], number[1]) == RAW_GROUP;
#endif
    }

    // The operands of instructions 2h and 2h + 1.
    __device__ __forceinline__ void operands(int h, u32 (&first)[4], u32 (&second)[4]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#if EIGHT
            widen(h ? plane[i].z : plane[i].x, first[i], first[i + 2]);
            widen(h ? plane[i].w : plane[i].y, second[i], second[i + 2]);
#elif RAW
            const uint4 v = plane[2 * i + h];
            first[i] = v.x, first[i + 2] = v.y, second[i] = v.z, second[i + 2] = v.w;
#else
            decode(low(i, h, 0), low(i, h, 1), word(i, h), palette[i], first[i], first[i + 2], second[i], second[i + 2]);
#endif
        }
    }

#if !RAW
    __device__ __forceinline__ u32 low(int i, int h, int last) const {
        return h ? (last ? plane[i].w : plane[i].z) : (last ? plane[i].y : plane[i].x);
    }

    __device__ __forceinline__ u32 word(int i, int h) const {
        return i ? (h ? plane[2].w : plane[2].z) : (h ? plane[2].y : plane[2].x);
    }
#endif
};

#if !RAW
// A share with a raw group in some lane. Such a group has more than eight classes, but eight weights do not: each run
// gets a palette of its own, the eight high bytes themselves. Where they are stands in place of the code words.
struct Patched {
    const Share& share;
    uint2 palette[2][2];

    __device__ __forceinline__ Patched(const Share& from, const u8* highs, int lane) : share(from) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            palette[i][0] = palette[i][1] = share.palette[i];
            if (share.number[i] == RAW_GROUP) {
                const uint4 high = __ldg(reinterpret_cast<const uint4*>(highs + 64ull * share.word(i, 0)) + (lane & 3));
                palette[i][0] = make_uint2(high.x, high.y);
                palette[i][1] = make_uint2(high.z, high.w);
            }
        }
    }

    __device__ __forceinline__ void operands(int h, u32 (&first)[4], u32 (&second)[4]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 word = share.number[i] == RAW_GROUP ? 0x76543210u : share.word(i, h);
            decode(share.low(i, h, 0), share.low(i, h, 1), word, palette[i][h], first[i], first[i + 2], second[i],
                   second[i + 2]);
        }
    }
};
#endif
