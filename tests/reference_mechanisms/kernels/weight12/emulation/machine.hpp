// A cluster of CTAs on a CPU: what `ptx.cuh` says, so that the kernels' own text runs without a GPU.
//
// Each thread is a fibre; one runs at a time, in an order that a seed draws anew on every sweep. Copies and mail take
// effect as late as they may: copies when their thread waits for them, mail and bulk copies when somebody looks at the
// barrier that counts them. So a missing wait reads what was there before: 0xFF bytes, which are no numbers.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __restrict__

namespace machine {
constexpr size_t STACK = 256 << 10;

struct Meeting { int arrived = 0, turn = 0; };  // of some threads, again and again

struct Mailbox {
    int wanted = 0, phase = 0, arrived = 0;
    long long bytes = 0;
    std::deque<std::pair<std::function<void()>, u32>> under_way;

    void advance() {
        if (wanted && arrived == wanted && bytes == 0) phase ^= 1, arrived = 0;
    }
    void deliver() {
        while (!under_way.empty()) {
            under_way.front().first();
            bytes -= under_way.front().second;
            under_way.pop_front();
            advance();
        }
    }
};

struct Warp {
    Meeting meeting;
    u32 a[2][32][4], b[2][32][2];
    bool votes[2][32];
};

struct Cta {
    std::vector<u8> shared;
    std::vector<Warp> warps;
    std::map<int, Meeting> barriers;
    std::map<u32, Mailbox> mailboxes;
    std::map<u32, int> unpublished;  // words that were stored and that wgmma need not see yet
};

// A product of four warps that is under way: registers are read and written when it is waited for.
struct Product {
    float* sums;
    const u32* operands;
    int tokens;
    u64 descriptor;
};

struct Index { unsigned x; };

struct Thread {
    ucontext_t context;
    std::unique_ptr<u8[]> stack;
    Index thread, block;
    int rank;
    bool ended = false, waited_for_grid = false;
    std::deque<std::vector<std::function<void()>>> groups;
    std::vector<std::function<void()>> open;
    std::deque<std::vector<Product>> products;
    std::vector<Product> open_products;
    bool fenced = false;
    std::vector<u32> stored;  // words since the last publication
};

struct Cluster {
    std::vector<Cta> ctas;
    std::vector<std::unique_ptr<Thread>> threads;
    Meeting meeting;
    int arrived = 0, faults = 0;
};

inline ucontext_t scheduler;
inline Cluster* cluster;
inline Thread* now;
inline Index grid;

inline void yield() { swapcontext(&now->context, &scheduler); }
inline Cta& cta(int rank = -1) { return cluster->ctas[rank < 0 ? now->rank : rank]; }
inline u8* shared() { return cta().shared.data(); }
inline Warp& warp() { return cta().warps[now->thread.x / 32]; }
inline int lane() { return now->thread.x % 32; }

inline u8* at(u32 address, u32 size, int rank = -1) {
    Cta& there = cta(rank);
    if (address + size > there.shared.size() || address % (size < 16 ? size : 16)) {
        std::fprintf(stderr, "shared memory: %u bytes at %u of %zu\n", size, address, there.shared.size());
        std::abort();
    }
    return there.shared.data() + address;
}

inline void meet(Meeting& meeting, int threads) {
    const int turn = meeting.turn;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0, ++meeting.turn;
        return;
    }
    while (meeting.turn == turn) yield();
}

inline Mailbox& mailbox(u32 bar, int rank = -1) { return cta(rank).mailboxes[bar]; }
}  // namespace machine

#define threadIdx (machine::now->thread)
#define blockIdx (machine::now->block)
#define gridDim (machine::grid)

inline u32 shared_address(const void* pointer) { return static_cast<const u8*>(pointer) - machine::shared(); }

// ---- copies ------------------------------------------------------------------------------------------------------
inline void copy_later(u32 to, const void* from, u32 size) {
    u8* const there = machine::at(to, size);
    machine::now->open.push_back([=] { std::memcpy(there, from, size); });
}
inline void copy16(u32 to, const void* from) { copy_later(to, from, 16); }
inline void copy4(u32 to, const void* from) { copy_later(to, from, 4); }
inline void commit_copies() {
    machine::now->groups.push_back(std::move(machine::now->open));
    machine::now->open.clear();
}
template <int PENDING>
void wait_for_copies() {
    auto& groups = machine::now->groups;
    for (; groups.size() > PENDING; groups.pop_front())
        for (auto& copy : groups.front()) copy();
    machine::yield();
}

// ---- global memory of the grid before: only behind the wait for it -------------------------------------------------
inline void hold_waited() {
    if (!machine::now->waited_for_grid) ++machine::cluster->faults;
}
inline uint4 load16_global(const void* from) {
    hold_waited();
    uint4 v;
    std::memcpy(&v, from, 16);
    return v;
}
inline u16 load2_global(const u16* from) {
    hold_waited();
    return *from;
}
template <class T>
T __ldg(const T* from) { return *from; }

// ---- shared memory -------------------------------------------------------------------------------------------------
template <class T>
T load_shared(u32 at) {
    T v;
    std::memcpy(&v, machine::at(at, sizeof(T)), sizeof(T));
    return v;
}
inline uint4 load16(u32 at) { return load_shared<uint4>(at); }
inline uint2 load8(u32 at) { return load_shared<uint2>(at); }
inline u32 load4(u32 at) { return load_shared<u32>(at); }
template <class T>
void store_shared(u32 at, T v) {
    std::memcpy(machine::at(at, sizeof(T)), &v, sizeof(T));
    for (u32 word = at; word < at + sizeof(T); word += 4)
        ++machine::cta().unpublished[word], machine::now->stored.push_back(word);
}
inline void store16(u32 at, uint4 v) { store_shared(at, v); }
inline void store4(u32 at, u32 v) { store_shared(at, v); }
inline void publish_to_wgmma() {
    for (unsigned i = 0; i < 16 * (machine::now->thread.x / 128); ++i) machine::yield();  // some come late
    for (u32 word : machine::now->stored)
        if (--machine::cta().unpublished[word] == 0) machine::cta().unpublished.erase(word);
    machine::now->stored.clear();
}

// ---- clusters, barriers --------------------------------------------------------------------------------------------
inline u32 cluster_rank() { return machine::now->rank; }
inline void __syncwarp() { machine::meet(machine::warp().meeting, 32); }
inline bool __any_sync(u32, bool vote) {
    machine::Warp& warp = machine::warp();
    bool* const votes = warp.votes[warp.meeting.turn & 1];
    votes[machine::lane()] = vote;
    machine::meet(warp.meeting, 32);
    return std::any_of(votes, votes + 32, [](bool one) { return one; });
}
inline void barrier(int name, int threads) { machine::meet(machine::cta().barriers[name], threads); }
inline void __syncthreads() { barrier(0, 32 * machine::cta().warps.size()); }
inline void cluster_arrive() { ++machine::cluster->arrived; }
inline void cluster_wait() {
    while (machine::cluster->arrived < static_cast<int>(machine::cluster->threads.size())) machine::yield();
}
inline void mail_init(u32 bar) { machine::mailbox(bar).wanted = 1; }
inline void mail_publish() {}
inline void mail_expect(u32 bar, u32 bytes) {
    machine::Mailbox& box = machine::mailbox(bar);
    box.bytes += bytes, ++box.arrived;
    box.advance();
}
inline void mail_wait(u32 bar, u32 parity) {
    machine::Mailbox& box = machine::mailbox(bar);
    for (;;) {
        if (!box.wanted) ++machine::cluster->faults;
        if (static_cast<u32>(box.phase) != parity) return;
        box.deliver();
        if (static_cast<u32>(box.phase) == parity) machine::yield();
    }
}
inline void mail(u32 at, u32 bar, u32 rank, float4 v) {
    u8* const there = machine::at(at, 16, rank);
    machine::mailbox(bar, rank).under_way.emplace_back([=] { std::memcpy(there, &v, 16); }, 16);
}
inline void bulk_copy(u32 to, const void* from, u32 bytes, u32 bar) {
    hold_waited();
    if (bytes == 0 || bytes % 16 || reinterpret_cast<u64>(from) % 16) ++machine::cluster->faults;
    u8* const there = machine::at(to, bytes);
    machine::at(to, 16);
    machine::mailbox(bar).under_way.emplace_back([=] { std::memcpy(there, from, bytes); }, bytes);
}
inline void let_next_grid_start() {}
inline void wait_for_previous_grid() { machine::now->waited_for_grid = true; }

// ---- arithmetic ----------------------------------------------------------------------------------------------------
inline float of_bf16(u32 bits) {
    const u32 wide = bits << 16;
    float v;
    std::memcpy(&v, &wide, 4);
    return v;
}
inline u16 to_bf16(float v) {
    u32 bits;
    std::memcpy(&bits, &v, 4);
    if (std::isnan(v)) return 0x7FFF;
    return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline u32 permuted(u32 a, u32 b, u32 chosen) {
    const u64 all = a | static_cast<u64>(b) << 32;
    u32 r = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 nibble = chosen >> 4 * i & 15;
        if (nibble & 8) ++machine::cluster->faults;  // would spread the sign
        r |= static_cast<u32>(all >> 8 * (nibble & 7) & 0xFF) << 8 * i;
    }
    return r;
}
inline u32 each_of_pairs(u32 a, u32 b, float (*work)(float, float)) {
    const u32 low = to_bf16(work(of_bf16(a & 0xFFFF), of_bf16(b & 0xFFFF)));
    return low | static_cast<u32>(to_bf16(work(of_bf16(a >> 16), of_bf16(b >> 16)))) << 16;
}
inline u32 sum_of_pairs(u32 a, u32 b) { return each_of_pairs(a, b, [](float x, float y) { return x + y; }); }
inline u32 product_of_pairs(u32 a, u32 b) { return each_of_pairs(a, b, [](float x, float y) { return x * y; }); }
inline float exponential(float v) { return std::exp2(v * 1.44269504f); }
inline float quotient(float a, float b) { return a / b; }
inline float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// One rounding for the sixteen products and the sum before: an order that no arrangement of warps changes.
inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    machine::Warp& warp = machine::warp();
    const int lane = machine::lane(), turn = warp.meeting.turn & 1;
    std::copy(a, a + 4, warp.a[turn][lane]);
    warp.b[turn][lane][0] = b0, warp.b[turn][lane][1] = b1;
    machine::meet(warp.meeting, 32);
    for (int i = 0; i < 4; ++i) {
        const int row = (lane >> 2) + 8 * (i >> 1), column = (lane & 3) * 2 + (i & 1);
        double sum = d[i];
        for (int k = 0; k < 16; ++k) {
            const u32 left = warp.a[turn][(row & 7) * 4 + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)];
            const u32 right = warp.b[turn][column * 4 + (k & 7) / 2][k >> 3];
            sum += static_cast<double>(of_bf16(left >> 16 * (k & 1) & 0xFFFF)) * of_bf16(right >> 16 * (k & 1) & 0xFFFF);
        }
        d[i] = static_cast<float>(sum);
    }
}

// ---- products of four warps, as late as they may be --------------------------------------------------------------------
namespace machine {
inline u16 of_descriptor(u64 descriptor, int k, int token) {
    // Start, from eight values of k to the next, from eight tokens to the next: fourteen bits each, in sixteen bytes.
    const auto field = [=](int bit) { return static_cast<u32>(descriptor >> bit & 0x3FFF) * 16; };
    const u32 address = field(0) + k / 8 * field(16) + token / 8 * field(32) + token % 8 * 16 + k % 8 * 2;
    if (cta().unpublished.count(address & ~3u)) ++cluster->faults;
    u16 v;
    std::memcpy(&v, at(address & ~15u, 16) + address % 16, 2);
    return v;
}

// The four warps carry out the products of their oldest group.
inline void multiply_together() {
    Meeting& meeting = cta().barriers[1000 + now->thread.x / 128];
    meet(meeting, 128);
    const int first = now->rank * 32 * cta().warps.size() + now->thread.x / 32 * 32, g = lane() / 4, t = lane() % 4;
    auto& group = now->products.front();
    std::vector<std::vector<float>> found;
    for (size_t number = 0; number < group.size(); ++number) {
        const Product& mine = group[number];
        // a later product of a group goes on from what an earlier one gives
        std::vector<float> sums(mine.sums, mine.sums + mine.tokens / 2);
        if (number > 0 && group[number - 1].sums == mine.sums) sums = found.back();
        const Product& other = cluster->threads[first / 128 * 128]->products.front()[number];
        if (mine.descriptor != other.descriptor || mine.descriptor >> 46) ++cluster->faults;
        for (int i = 0; i < mine.tokens / 2; ++i) {
            const int row = g + (i & 2) * 4, token = i / 4 * 8 + 2 * t + (i & 1);
            double sum = sums[i];
            for (int k = 0; k < 16; ++k) {
                const auto& holder = cluster->threads[first + (row & 7) * 4 + (k & 7) / 2]->products.front()[number];
                const u32 left = holder.operands[(row >> 3) + 2 * (k >> 3)] >> 16 * (k & 1) & 0xFFFF;
                sum += static_cast<double>(of_bf16(left)) * of_bf16(static_cast<u32>(of_descriptor(mine.descriptor, k, token)));
            }
            sums[i] = static_cast<float>(sum);
        }
        found.push_back(sums);
    }
    meet(meeting, 128);  // all have read what they need
    for (size_t number = 0; number < group.size(); ++number)
        std::copy(found[number].begin(), found[number].end(), group[number].sums);
    now->products.pop_front();
}
}  // namespace machine

inline u32 uniform(u32 v) { return v; }
inline void wgmma_fence() { machine::now->fenced = true; }
inline void wgmma_commit() {
    machine::now->products.push_back(std::move(machine::now->open_products));
    machine::now->open_products.clear();
    machine::now->fenced = false;
}
template <int PENDING>
void wgmma_wait() {
    while (machine::now->products.size() > PENDING) machine::multiply_together();
}
template <int BLOCKS>
void wgmma(float (&d)[BLOCKS][4], const u32 (&a)[4], u64 x) {
    if (!machine::now->fenced) ++machine::cluster->faults;
    machine::now->open_products.push_back({&d[0][0], a, 8 * BLOCKS, x});
}
