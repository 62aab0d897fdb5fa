// Runs CUDA C++ on the CPU, slowly but faithfully: g++ compiles the very sources that NVRTC compiles, with this file
// included first. The threads of a block are fibers (ucontext to start one, _setjmp/_longjmp to switch), blocks run one
// after the other, and a fiber gives way only where it waits for others. A fiber that is done waits for the next block:
// to start one takes two system calls.
#pragma once
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint2 { unsigned x, y; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {
struct Index { unsigned x, y, z; };
struct Fiber {
    jmp_buf here;
    ucontext_t start;
    void *stack;
    bool started, done;
    Index thread;
};
struct Barrier {
    int live, arrived, turn;
    void release() { arrived = 0, turn++; }
    void leave() { if (--live > 0 && arrived == live) release(); }
};
struct Warp { Barrier barrier; unsigned slot[32]; };

const size_t STACK = 64 << 10;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static Barrier block;
static int votes[3];
static Fiber *current;
static jmp_buf scheduler;
static Index block_index, block_size, grid_size;
static void (*kernel)(const void *);
static const void *argument;

inline void give_way() { if (!_setjmp(current->here)) _longjmp(scheduler, 1); }
inline void wait(Barrier &b) {
    int turn = b.turn;
    if (++b.arrived == b.live) b.release();
    else while (b.turn == turn) give_way();
}
inline Warp &warp() { return warps[current->thread.x / 32]; }
inline unsigned lane() { return current->thread.x % 32; }
static void enter() {
    for (;;) {
        kernel(argument);
        current->done = true;
        warp().barrier.leave();
        block.leave();
        give_way();
    }
}
static void run_block() {
    size_t count = block_size.x;
    block = {(int)count, 0, 0};
    warps.assign((count + 31) / 32, Warp{});
    for (size_t i = 0; i < count; i++) warps[i / 32].barrier.live++;
    for (size_t i = 0; i < count; i++) {
        fibers[i].done = false;
        fibers[i].thread = {(unsigned)i, 0, 0};
    }
    for (bool busy = true; busy;) {
        busy = false;
        for (size_t i = 0; i < count; i++) {
            if (fibers[i].done) continue;
            busy = true;
            current = &fibers[i];
            if (_setjmp(scheduler)) continue;
            if (current->started) _longjmp(current->here, 1);
            current->started = true;
            getcontext(&current->start);
            current->start.uc_stack.ss_sp = current->stack;
            current->start.uc_stack.ss_size = STACK;
            current->start.uc_link = nullptr;
            makecontext(&current->start, enter, 0);
            setcontext(&current->start);
        }
    }
}
static void run(void (*function)(const void *), int grid, int threads, const void *argument_) {
    kernel = function, argument = argument_;
    block_size = {(unsigned)threads, 1, 1}, grid_size = {(unsigned)grid, 1, 1};
    while (fibers.size() < (size_t)threads) {
        fibers.push_back({});
        fibers.back().stack = malloc(STACK);
    }
    for (int i = 0; i < grid; i++) {
        block_index = {(unsigned)i, 0, 0};
        run_block();
    }
}
}  // namespace emulator

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)

inline void __syncthreads() { emulator::wait(emulator::block); }
inline void __syncwarp(unsigned = ~0u) { emulator::wait(emulator::warp().barrier); }
inline int __syncthreads_or(int predicate) {
    static int any;
    __syncthreads();
    any = 0;
    __syncthreads();
    any |= predicate;
    __syncthreads();
    return any;
}
inline int __syncthreads_count(int predicate) {
    static int count;
    __syncthreads();
    count = 0;
    __syncthreads();
    count += predicate != 0;
    __syncthreads();
    return count;
}
inline unsigned exchange(unsigned x, unsigned from, bool valid) {
    emulator::warp().slot[emulator::lane()] = x;
    __syncwarp();
    unsigned result = valid ? emulator::warp().slot[from] : x;
    __syncwarp();
    return result;
}
inline unsigned __shfl_up_sync(unsigned, unsigned x, unsigned d) { return exchange(x, emulator::lane() - d, emulator::lane() >= d); }
inline unsigned __shfl_down_sync(unsigned, unsigned x, unsigned d) { return exchange(x, emulator::lane() + d, emulator::lane() + d < 32); }
inline unsigned __shfl_sync(unsigned, unsigned x, unsigned from) { return exchange(x, from & 31, true); }
inline unsigned __shfl_xor_sync(unsigned, unsigned x, unsigned m) { return exchange(x, emulator::lane() ^ m, true); }
inline unsigned __ballot_sync(unsigned, int predicate) {
    emulator::warp().slot[emulator::lane()] = predicate != 0;
    __syncwarp();
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= emulator::warp().slot[i] << i;
    __syncwarp();
    return bits;
}
inline unsigned __match_any_sync(unsigned, unsigned x) {
    emulator::warp().slot[emulator::lane()] = x;
    __syncwarp();
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (emulator::warp().slot[i] == x) << i;
    __syncwarp();
    return bits;
}
inline unsigned __reduce_or_sync(unsigned, unsigned x) {
    emulator::warp().slot[emulator::lane()] = x;
    __syncwarp();
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= emulator::warp().slot[i];
    __syncwarp();
    return bits;
}
inline int __any_sync(unsigned m, int predicate) { return __ballot_sync(m, predicate) != 0; }
inline int __all_sync(unsigned m, int predicate) { return __ballot_sync(m, predicate) == ~0u; }

template <class T> T atomicAdd(T *at, T x) { T old = *at; *at += x; return old; }
template <class T> T atomicOr(T *at, T x) { T old = *at; *at |= x; return old; }
inline int atomicOr(int *at, int x) { int old = *at; *at |= x; return old; }
template <class T> T atomicMin(T *at, T x) { T old = *at; *at = std::min(old, x); return old; }
template <class T> T atomicMax(T *at, T x) { T old = *at; *at = std::max(old, x); return old; }

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? high << shift | low >> (32 - shift) : high;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? low >> shift | high << (32 - shift) : low;
}
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
    return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return result;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
    return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xFFFF, b & 0xFFFF);
}
inline unsigned __vminu2(unsigned a, unsigned b) {
    return std::min(a >> 16, b >> 16) << 16 | std::min(a & 0xFFFF, b & 0xFFFF);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __uint_as_float(unsigned x) { float f; memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline double __hiloint2double(int high, int low) {
    const uint64_t bits = (uint64_t)(unsigned)high << 32 | (unsigned)low;
    double d;
    memcpy(&d, &bits, 8);
    return d;
}
inline int __double2loint(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return (int)bits;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline long long __double_as_longlong(double x) { long long i; memcpy(&i, &x, 8); return i; }
inline long long __double2ll_rn(double x) { return static_cast<long long>(std::nearbyint(x)); }
inline float __saturatef(float x) { return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fadd_rz(float a, float b) {
    const double sum = static_cast<double>(a) + b;
    const float near = static_cast<float>(sum);
    return std::fabs(near) > std::fabs(sum) ? std::nextafter(near, 0.0f) : near;
}
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
using std::max;
using std::min;
template <class A, class B> std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B> std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

extern "C" void emulate(void (*function)(const void *), int grid, int threads, const void *argument) {
    emulator::run(function, grid, threads, argument);
}
