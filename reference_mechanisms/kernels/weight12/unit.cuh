// A unit: 32 rows x 64 columns of W, as one contiguous piece that one warp takes.
//
// Lane 4g + t holds rows g, g + 8, g + 16, g + 24 and, of each, columns 16t .. 16t + 15. Within the 64 columns the
// sixteen of a matrix instruction are chosen so that a lane's share is contiguous: instruction s takes columns
// 16t + 4s .. 16t + 4s + 3 from every t; x is read in the same order, so the product is the same.
//
// Packed, 3104 bytes: four planes of 512 (low bytes, one per row j, 16 a lane), two planes of 512 (code words: rows
// 2p and 2p + 1, two words each), 8 words (a palette number for each of the rows of g).
// Raw, 4096 bytes: eight planes of 512: rows j, halves h: columns 16t + 8h .. 16t + 8h + 7.
constexpr int ROWS = 32;
constexpr int COLUMNS = 64;
constexpr int UNIT = RAW ? 4096 : 3104;
constexpr int CODES = 2048;
constexpr int NUMBERS = 3072;

// Eight weights of one row: `low` bytes of the first and last four, `word` of classes and signs, the palette.
__device__ __forceinline__ void decode(u32 low_a, u32 low_b, u32 word, uint2 palette, u32& r0, u32& r1, u32& r2, u32& r3) {
    const u32 chosen = word & 0x77777777u;
    const u32 a = __byte_perm(palette.x, palette.y, chosen) | (word & 0x80808080u);
    const u32 b = __byte_perm(palette.x, palette.y, chosen >> 16) | ((word << 4) & 0x80808080u);
    r0 = __byte_perm(low_a, a, 0x5140);
    r1 = __byte_perm(low_a, a, 0x7362);
    r2 = __byte_perm(low_b, b, 0x5140);
    r3 = __byte_perm(low_b, b, 0x7362);
}

__device__ __forceinline__ u32 half_of(const uint4& v, int h, int i) {
    return h ? (i ? v.w : v.z) : (i ? v.y : v.x);
}

// A lane's share of a unit, in registers.
struct Share {
#if RAW
    uint4 plane[8];
#else
    uint4 low[4];
    uint4 code[2];
    uint2 palette[4];
#endif

    __device__ __forceinline__ void load(u32 unit, u32 table, int lane) {
#if RAW
#pragma unroll
        for (int i = 0; i < 8; ++i) plane[i] = load16(unit + 512 * i + 16 * lane);
#else
        const u32 numbers = load4(unit + NUMBERS + 4 * (lane >> 2));
#pragma unroll
        for (int j = 0; j < 4; ++j) low[j] = load16(unit + 512 * j + 16 * lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) code[p] = load16(unit + CODES + 512 * p + 16 * lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) palette[j] = load8(table + 8 * (numbers >> 8 * j & 0xFF));
#endif
    }

    // The operands of rows 16 `tile` .. 16 `tile` + 15 in instructions 2h and 2h + 1.
    __device__ __forceinline__ void operands(int tile, int h, u32 (&first)[4], u32 (&second)[4]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int j = 2 * tile + i;
#if RAW
            const uint4 v = plane[2 * j + h];
            first[i] = v.x, first[i + 2] = v.y, second[i] = v.z, second[i + 2] = v.w;
#else
            const u32 word = i ? (h ? code[tile].w : code[tile].z) : (h ? code[tile].y : code[tile].x);
            decode(half_of(low[j], h, 0), half_of(low[j], h, 1), word, palette[j], first[i], first[i + 2], second[i],
                   second[i + 2]);
#endif
        }
    }
};
