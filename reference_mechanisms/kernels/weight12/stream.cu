// y = x W^T for 1 .. 8 NT rows of x. W streams once, by the lanes that need it; see README.md for the schedule.
//
// Compiled with NT (blocks of 8 rows of x), RAW (1: bf16 weights, the twin), CLUSTER and WK (CTAs and warps of a CTA
// that share the columns), WARPS (8: a team of WK warps takes 32 rows; 16: it takes 16), PIECES (of a warp's ring) and
// BATCH (passes whose sums are exchanged at once), DESKS (1 or 2, where the warps of a team lay their sums in turn; 2 only
// where a warp takes 16 rows). None of these changes a bit of the result:
// BULK (1: x by bulk copies, a barrier for each part of the columns, where its rows lie at multiples of 16 bytes),
// EARLY (1, with BULK: the first quarter of a part's columns has a barrier of its own, so that work begins with it) and
// FOURS (1: four multiplications in a row that do not wait for each other, where a warp has so many).
// WGMMA (1: four warps multiply 64 rows together, WARPS = 16): other cuts, and perhaps other bits, at every NT alike.
// EIGHT (1: int8, 2: e4m3, with RAW = 1: weights in eight bits, their rows' float scales in place of the palettes).
// GATED (1: rows of W come in eights, gate and up in turn; y is the SiLU of the one times the other).
constexpr int THREADS = 32 * WARPS;
constexpr int HALVES = 16 / WARPS;             // pieces of a unit that a warp takes
constexpr int TEAM = 32 * WK;                  // threads that share rows
constexpr int PANELS = WARPS / WK * HALVES;    // of 16 rows in a pass
constexpr int MATES = WGMMA ? 4 : 1;           // warps that multiply together, each 16 rows
constexpr int QUADS = PANELS * NT * 32;        // sums of a pass, in fours
constexpr int OWN = QUADS / CLUSTER;           // of which a CTA writes so many
[[maybe_unused]] constexpr int TOGETHER = FOURS ? (NT < 4 / HALVES ? NT : 4 / HALVES) : 1;  // blocks of tokens multiplied in turn

// Shared memory, in this order. A thread reads of the ring only what it copied there itself.
constexpr u32 SLOT = PIECE + (RAW ? 0 : 128);  // a piece, and palette numbers of its unit
constexpr u32 RING = WARPS * PIECES * SLOT;
constexpr u32 PARTIAL = WK * PANELS * 512;
constexpr u32 INBOX = BATCH * QUADS * 16;  // twice
constexpr u32 TABLE = RAW ? 0 : 2048;

// Where a lane's next piece comes from: pass after pass, its columns from first to last.
struct Source {
    const u8 *weights, *numbers;
    int left, passes;  // units of this pass, passes with this one
    int steps;         // units of a pass
    int strip, last;   // of 32 rows: this one, the last there is, which stands for those behind it
    int jump, tiles;   // strips from one pass to the next, units of a strip

    // Copy piece `half` of the unit, and with the first one its palette numbers; go on.
    __device__ __forceinline__ void fetch(int half, u32 slot, u32 word) {
        if (left > 0) {
#pragma unroll
            for (int i = 0; i < PLANES; ++i) copy16(slot + 512 * i, weights + 512 * i);
            if (!RAW && half == 0) copy4(word + PIECE, numbers);
            weights += HALVES == 2 ? PIECE : UNIT;
            if (half == HALVES - 1) {
                numbers += NUMBERS;
                if (--left == 0 && --passes > 0) {
                    left = steps;
                    const int next = min(strip + jump, last);
                    const long long units = static_cast<long long>(next - strip) * tiles - steps;
                    strip = next;
                    weights += units * UNIT;
                    numbers += units * NUMBERS;
                }
            }
        }
        commit_copies();
    }
};

// The warps of team `team` wait for each other. Its name must be a constant: a variable would take all sixteen.
__device__ __forceinline__ void team_barrier(int team) {
#pragma unroll
    for (int i = 0; i < WARPS / WK; ++i)
        if (team == i) barrier(i + 1, TEAM);
}

// So do the warps that share columns.
[[maybe_unused]] __device__ __forceinline__ void part_barrier(int wk) {
#pragma unroll
    for (int i = 0; i < WK; ++i)
        if (wk == i) barrier(1 + WARPS / WK + i, THREADS / WK);
}

struct Output {
    u16* y;
    int m, n;
    long long stride;
    const float* scales;  // of rows, in eight bits

    // A sum of a row of W, in its own measure.
    __device__ __forceinline__ float scaled(int row, float value) const {
        if constexpr (EIGHT) return row < n ? value * __ldg(scales + row) : 0.0f;
        return value;
    }

    __device__ __forceinline__ void put(int row, int token, float value) const {
        if (row < n && token < m) y[token * stride + row] = to_bf16(value);
    }

    // Rounded where the separate kernel of a gate rounds.
    __device__ __forceinline__ void put_gated(int row, int token, float gate, float up) const {
        const float open = of_bf16(to_bf16(gate));
        const float opened = of_bf16(to_bf16(quotient(open, 1.0f + exponential(-open))));
        put(row, token, opened * of_bf16(to_bf16(up)));
    }
};

// Bytes that a CTA is sent in a batch.
__device__ __forceinline__ u32 mail_bytes(int batch, int passes) {
    return min(BATCH, passes - batch * BATCH) * QUADS * 16;
}

// What this CTA owns of a batch: the sum over the CTAs of the cluster, in order, to y.
__device__ __forceinline__ void write_batch(const float4* inbox, const Output& out, int rank, int first_group, int clusters,
                                            int passes) {
    for (int e = threadIdx.x; e < passes * OWN; e += THREADS) {
        const int pass = e / OWN, mine = e % OWN;
        const float4* const box = inbox + pass * QUADS + mine;
        float4 sum = box[0];
#pragma unroll
        for (int from = 1; from < CLUSTER; ++from) sum = plus(sum, box[from * OWN]);
        const int quad = rank * OWN + mine, lane = quad & 31, tile = quad >> 5;
        const int panel = (first_group + pass * clusters) * PANELS + tile / NT;
        const int row = panel * (GATED ? 8 : 16) + (lane >> 2);
        const int token = tile % NT * 8 + (lane & 3) * 2;
        if constexpr (GATED) {
            out.put_gated(row, token, sum.x, sum.z);
            out.put_gated(row, token + 1, sum.y, sum.w);
        } else {
            out.put(row, token, out.scaled(row, sum.x));
            out.put(row, token + 1, out.scaled(row, sum.y));
            out.put(row + 8, token, out.scaled(row + 8, sum.z));
            out.put(row + 8, token + 1, out.scaled(row + 8, sum.w));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    weight12_stream(const u8* __restrict__ weights, const u8* __restrict__ numbers, const u8* __restrict__ palettes,
                    const u8* __restrict__ highs, const u16* x, u16* y, int m, int n, int k, int tiles, int groups,
                    long long x_stride, long long y_stride) {
    extern __shared__ __align__(128) u8 smem[];
#if WGMMA
    const int warp = uniform(threadIdx.x >> 5), lane = threadIdx.x & 31;
#else
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#endif
    const int wk = warp / MATES % WK, team = warp / MATES / WK * MATES + warp % MATES;
    const int rank = cluster_rank();
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    static_assert(!(EIGHT && GATED) && (!EIGHT || RAW), "eight bits have no palettes and no gate");
    static_assert(DESKS == 1 || HALVES == 1, "a desk has one line for each warp");
    static_assert(!EARLY || (BULK && !WGMMA), "only bulk copies, and not to slabs, are early");
    static_assert(!WGMMA || (HALVES == 1 && PANELS % MATES == 0), "teams of four warps with 16 rows each");
    const Output out{y, m, GATED ? n / 2 : n, y_stride, reinterpret_cast<const float*>(palettes)};

    float4* const partial = reinterpret_cast<float4*>(smem + RING) + team * WK * HALVES * 32;
    float4* const inbox = reinterpret_cast<float4*>(smem + RING + DESKS * PARTIAL);
    const u32 table = shared_address(smem) + RING + DESKS * PARTIAL + 2 * INBOX;
    const u32 mailbox = table + TABLE;  // two barriers
    const u32 bells = mailbox + 16;     // one for each part of the columns
    const u32 xs = bells + (BULK ? 8 * WK * (1 + EARLY) : 0);
    [[maybe_unused]] const u32 pitch = (tiles + CLUSTER - 1) / CLUSTER * 2 * COLUMNS + 16;  // spreads rows over banks
    const u32 ring = shared_address(smem) + warp * PIECES * SLOT + 16 * lane;
    const int word = -12 * lane;  // from where a lane's piece is to where its palette numbers are

    // Columns of this warp and of this CTA: a function of K and the split only.
    constexpr int parts = CLUSTER * WK;
    const int part = rank * WK + wk;
    const int lo = tiles * part / parts, hi = tiles * (part + 1) / parts;
    [[maybe_unused]] const int cta_lo = tiles * (rank * WK) / parts, cta_hi = tiles * (rank * WK + WK) / parts;
    const int passes = (groups - 1 - cluster) / clusters + 1;

    Source source;
    source.steps = source.left = hi - lo;
    source.passes = passes;
    source.tiles = tiles, source.jump = clusters * (PANELS / 2);
    const int panel = cluster * PANELS + team * HALVES;
    source.last = (n + 31) / 32 - 1, source.strip = min(panel >> 1, source.last);
    const long long first = static_cast<long long>(source.strip) * tiles + lo;
    source.weights = weights + first * UNIT + (panel & 1) * PIECE + 16 * lane;
    source.numbers = numbers + first * NUMBERS + (lane & ~3);

    // Nothing of this hangs on the grid before: it overlaps that grid's end.
    let_next_grid_start();
    uint4 entries = make_uint4(0, 0, 0, 0);
    if (!RAW && threadIdx.x < 128) entries = reinterpret_cast<const uint4*>(palettes)[threadIdx.x];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) source.fetch(i % HALVES, ring + i * SLOT, ring + i * SLOT + word);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 + (BULK ? WK * (1 + EARLY) : 0); ++i) mail_init(mailbox + 8 * i);
        mail_publish();
        for (int i = 0; i < 2 && i * BATCH < passes; ++i) mail_expect(mailbox + 8 * i, mail_bytes(i, passes));
    }
    if (!RAW && threadIdx.x < 128) store16(table + 16 * threadIdx.x, entries);
    __syncwarp();
    cluster_arrive();
#if WGMMA
    cluster_wait();
    __syncthreads();  // all see the barriers and the palettes
    wait_for_previous_grid();
    const u32 xs_part = xs + (lo - cta_lo) * X_UNIT;
    bool landed = false;
    if constexpr (BULK) {
        landed = comes_whole(x, x_stride, k) && hi > lo && at_once(m, (hi - lo) * COLUMNS / 8);
        if (landed) {
            if (team == 0)
                ask_for_x(xs_part, (hi - lo) * 2 * COLUMNS, bells + 8 * wk, x, m, x_stride, lo * COLUMNS, hi * COLUMNS);
            mail_wait(bells + 8 * wk, 0);
        }
    }
    place_slabs(xs_part, x, m, k, x_stride, lo * COLUMNS, hi * COLUMNS, team, cluster, landed, [=] { part_barrier(wk); });
    publish_to_wgmma();
    part_barrier(wk);  // of those who multiply by it
    const u32 xs_warp = slabs_at(xs_part);
    u32 operand[2][2][4];
#else
    bool placed = false;
    const int early = EARLY ? lo + (hi - lo + 3) / 4 : hi;  // columns before this one come first
    if constexpr (BULK) {
        cluster_wait();
        __syncthreads();  // all see the barriers
        wait_for_previous_grid();
        placed = comes_whole(x, x_stride, k);
        if (placed && hi > lo) {
            if (team == 0) {
                const u32 to = xs + (lo - cta_lo) * 2 * COLUMNS;
                ask_for_x(to, pitch, bells + 8 * wk, x, m, x_stride, lo * COLUMNS, early * COLUMNS);
                if (EARLY && early < hi)
                    ask_for_x(to + (early - lo) * 2 * COLUMNS, pitch, bells + 8 * (WK + wk), x, m, x_stride, early * COLUMNS,
                              hi * COLUMNS);
            }
            mail_wait(bells + 8 * wk, 0);
        }
    }
    if (!placed) {
        wait_for_previous_grid();
        place_x(xs, pitch, x, m, k, x_stride, cta_lo * COLUMNS, cta_hi * COLUMNS, cluster);
        if constexpr (!BULK) cluster_wait();
        __syncthreads();
    }

    const u32 xs_warp = xs + (lane >> 2) * pitch + (lane & 3) * 32 + (lo - cta_lo) * 2 * COLUMNS;
#endif
    u32 slot = ring;
    for (int pass = 0; pass < passes; ++pass) {
        float acc[HALVES][NT][4];
#pragma unroll
        for (int i = 0; i < HALVES; ++i)
#pragma unroll
            for (int b = 0; b < NT; ++b)
#pragma unroll
                for (int c = 0; c < 4; ++c) acc[i][b][c] = 0.0f;

        u32 x_at = xs_warp;
        for (int step = lo; step < hi; ++step) {
#if EARLY
            if (step == early && pass == 0 && placed) mail_wait(bells + 8 * (WK + wk), 0);
#endif
            wait_for_copies<PIECES - HALVES>();
            const u32 chosen = RAW ? 0 : load4(slot + word + PIECE);
            Share share[HALVES];
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                share[half].load(slot);
                // The slot is free: these loads come before the copy, which takes as long as memory does.
                source.fetch((half + PIECES) % HALVES, slot, slot + word);
                slot = slot == ring + (PIECES - 1) * SLOT ? ring : slot + SLOT;
            }
            bool raw = false;
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                share[half].find_palettes(chosen, HALVES == 2 ? half : panel & 1, table);
                raw |= share[half].has_raw_group();
            }
#if WGMMA
            [[maybe_unused]] const bool patched = !RAW && __any_sync(0xFFFFFFFFu, raw);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                wgmma_wait<1>();  // the product that read these registers has ended; that of the other half may go on
#if !RAW
                if (patched)
                    Patched(share[0], highs, lane).operands(h, operand[h][0], operand[h][1]);
                else
#endif
                    share[0].operands(h, operand[h][0], operand[h][1]);
                wgmma_fence();
#pragma unroll
                for (int s = 0; s < 2; ++s) wgmma(acc[0], operand[h][s], slab_descriptor(x_at + (4 * s + h) * (SLAB / 16)));
                wgmma_commit();
            }
            x_at += X_UNIT / 16;
        }
        wgmma_wait<0>();
#else
            const auto multiply = [&](const auto&... parts) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    u32 a[HALVES][2][4];
                    int half = 0;
                    ((parts.operands(h, a[half][0], a[half][1]), ++half), ...);
#pragma unroll
                    for (int b = 0; b < NT; b += TOGETHER) {
                        uint4 v[TOGETHER];
#pragma unroll
                        for (int j = 0; j < TOGETHER; ++j) v[j] = load16(x_at + (b + j) * 8 * pitch + h * 16);
#pragma unroll
                        for (int j = 0; j < TOGETHER; ++j)
#pragma unroll
                            for (half = 0; half < HALVES; ++half) mma(acc[half][b + j], a[half][0], v[j].x, v[j].y);
#pragma unroll
                        for (int j = 0; j < TOGETHER; ++j)
#pragma unroll
                            for (half = 0; half < HALVES; ++half) mma(acc[half][b + j], a[half][1], v[j].z, v[j].w);
                    }
                }
            };
#if !RAW
            if (__any_sync(0xFFFFFFFFu, raw)) {
                if constexpr (HALVES == 2)
                    multiply(Patched(share[0], highs, lane), Patched(share[HALVES - 1], highs, lane));
                else
                    multiply(Patched(share[0], highs, lane));
            } else
#endif
            {
                if constexpr (HALVES == 2)
                    multiply(share[0], share[HALVES - 1]);
                else
                    multiply(share[0]);
            }
            x_at += 2 * COLUMNS;
        }
#endif

        const int batch = pass / BATCH, in_batch = pass % BATCH;
        if (in_batch == 0 && batch > 0) {
            const u32 last = (batch - 1) & 1;
            mail_wait(mailbox + 8 * last, (batch - 1) >> 1 & 1);
            if (threadIdx.x == 0 && (batch + 1) * BATCH < passes)
                mail_expect(mailbox + 8 * last, mail_bytes(batch + 1, passes));
            write_batch(inbox + last * BATCH * QUADS, out, rank, cluster + (batch - 1) * BATCH * clusters, clusters, BATCH);
            // Mail of this batch tells all others that this CTA has read the batch before.
            __syncthreads();
        }
        const u32 bell = mailbox + 8 * (batch & 1);
        const u32 to = shared_address(inbox) + (((batch & 1) * BATCH + in_batch) * QUADS + rank * OWN) * 16;
#pragma unroll
        for (int b = 0; b < NT; ++b) {
            // The sum over the warps of a team, in order, each value by one thread, to the CTA that owns it.
            const bool other = DESKS == 2 && (pass * NT + b) % 2 != 0;
            float4* const desk = partial + (other ? PARTIAL / 16 : 0);
#pragma unroll
            for (int i = 0; i < HALVES; ++i)
                desk[(wk * HALVES + i) * 32 + lane] = make_float4(acc[i][b][0], acc[i][b][1], acc[i][b][2], acc[i][b][3]);
            team_barrier(team);
            // With two desks, the one who adds here is through when all meet at the other; the next adds there.
            const int turn = DESKS == 2 ? (wk + b) % WK : wk;
            for (int e = turn * 32 + lane; e < HALVES * 32; e += TEAM) {
                float4 sum = desk[e];
#pragma unroll
                for (int from = 1; from < WK; ++from) sum = plus(sum, desk[from * HALVES * 32 + e]);
                const int quad = ((team * HALVES + (e >> 5)) * NT + b) * 32 + (e & 31);
                mail(to + quad % OWN * 16, bell, quad / OWN, sum);
            }
            if (DESKS == 1) team_barrier(team);
        }
    }
    const int batch = (passes - 1) / BATCH;
    mail_wait(mailbox + 8 * (batch & 1), batch >> 1 & 1);
    write_batch(inbox + (batch & 1) * BATCH * QUADS, out, rank, cluster + batch * BATCH * clusters, clusters,
                passes - batch * BATCH);
}
