// Structs that the JPEG kernels and the host share. ops/codecs/jpeg/cuda.py mirrors them field by field; jpeg_layout
// lets it compare the sizes. Compiled by NVRTC, and by g++ with tests/kit/cuda_emulator.h.
#pragma once

#ifndef EMULATED
#define PAUSE() __nanosleep(40)
#define LONG_PAUSE() __nanosleep(1000)
#define BARRIER_TO_COMPILER() asm volatile("" ::: "memory")
#else
#define PAUSE()
#define LONG_PAUSE()
#define BARRIER_TO_COMPILER()
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef int i32;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void

// Status bits of an image. An image whose status is not 0 is decoded by another decoder; the meanings follow libjpeg's
// warnings and errors.
enum Status {
    UNSUPPORTED = 1,      // set by the host; or a subsequence has more coefficients than its room
    BAD_TABLE = 2,        // a Huffman table is not a prefix code
    BAD_CODE = 4,         // a bit pattern is not a code, or a run goes past the end of a block
    MISSING = 8,          // the scan ends before the last block
    EXTRANEOUS = 16,      // at least one byte follows the last block, or a marker other than EOI, or FF FF 00
    BAD_RESTART = 32,     // a restart marker out of order or out of place
    OUT_OF_RANGE = 64,    // coefficients with which libjpeg's 16-bit SIMD inverse DCT would overflow
    STALE = 128,          // the decoder states that the host supplied are not those of this scan
};

enum Colour { COLOUR_GRAY = 0, COLOUR_YCBCR = 1, COLOUR_RGB = 2, COLOUR_CMYK = 3, COLOUR_YCCK = 4 };

struct Component {
    i64 plane;                    // first byte in Batch::planes
    i32 h, v;                     // sampling factors; 1 x 1 if the component is alone in its scan
    i32 first;                    // index of its first block within an MCU
    i32 width, height;            // in samples
    i32 pitch;                    // bytes per row of its plane, a multiple of 32
    i32 quant, quant_wide;        // byte of its quantisation table in the file; whether that has 16-bit entries
    i32 expand_x, expand_y;       // upsampling factors
    i32 roi_group, roi_row;       // region of interest: first group of four blocks, first row of blocks,
    i32 roi_groups, roi_rows;     // and the numbers of both
};

// An image, or a part of one. Records of whole images come first. An image with a separate scan for each component has
// one more record per scan, after all images: it decodes as a gray image into the plane of its component, and the
// record of the image itself only describes planes. So does that of an image of four components, which jpeg_four
// converts to RGB: of its scan, one record has three components and a second one the last, with the same blocks. The
// last records are the streams of single scans (`Scan`) of images in many scans; only their bytes are used.
struct Image {
    i64 raw;                      // first byte in Batch::raw
    i64 words;                    // first word in Batch::words
    i64 entries;                  // first coefficient in Batch::entries
    i64 blocks;                   // first block in Batch::blocks
    i64 coefficients;             // first one in Batch::coefficients, for an image in many scans; else -1
    i64 known, known_count;       // first state in Batch::known; number of subsequences with known states: all, or 0
    i32 raw_size, scan;           // bytes of the file; byte where its entropy-coded data begin
    i32 width, height;
    i32 components, colour;
    i32 mcus_x, mcus;             // MCUs per row, in all
    i32 blocks_in_mcu, block_count;
    i32 restart;                  // restart interval in MCUs, or 0 for none
    i32 segments, segment_count;  // first slot in Batch::segments; number of restart markers expected
    i32 dc_slots, ac_slots;       // bit b: table slot of block b of an MCU
    i32 dc[2], ac[2];             // bytes of the Huffman tables of the two slots in the file
    i32 owner;  // index of the image: itself, or, for one scan of several, the image to which the component belongs
    Component component[3];
};

// One scan of an image that has many. Its coefficients are stored component by component, as samples are in planes: one
// row of blocks after the other, each block as 64 coefficients in the order of kept_at().
struct ScanPart {                 // one component of the scan
    i64 coefficients;             // first one in Batch::coefficients
    i32 h, v;                     // blocks in an MCU
    i32 table;                    // byte of its Huffman table in the file
    i32 stride;                   // blocks from one row of blocks to the next in memory
};
struct Scan {
    i32 image;                    // index of its stream among the image records
    i32 first, last;              // zig-zag indexes: Ss, Se
    i32 high, low;                // Ah, Al
    i32 mcus_x, mcus;             // MCUs per row, in all
    i32 restart;                  // restart interval in MCUs, or 0 for none
    i32 count, level;             // number of parts; length of the chain of earlier scans that it refines
    u32 after[4];  // bit j of all 128: it refines coefficients of the scan that is 1 + j before it in the file
    ScanPart part[4];
};

struct Axis {                    // one direction of a resize; names as in ops/images/resampling/resample_cpu.py
    i64 weights;                  // first float in Batch::weights, [tap][output]; the first taps (int) follow them
    i64 stride;                   // elements from one output to the next; negative if flipped
    // In coordinates of the image as displayed, from the first sample that may be read: the positions of taps must not
    // depend on the stored orientation.
    float lo, scale, support;  // source coordinate of the first output, source samples per output, width of the filter
    i32 table, table_last;  // the filter's table in Batch::filters, and its last entry; table -1: nearest neighbour
    // outputs of the resized image that are kept, in the order of stored samples; number of taps of each
    i32 first, step, count, taps;
    // for nearest neighbour: whole part of the region's start; whether positions are summed up step by step
    i32 corner, stepwise;
    i32 base, flip;               // stored index of sample 0; whether the stored samples are in reverse order
    i32 begin, end;               // range of stored samples; outside, the border sample is repeated
    i32 tile;                     // outputs that a block of threads computes; of axis x: if jpeg_strips does, else 0
    i64 reached;  // for jpeg_strips: index in Batch::weights of the weights of each sample, four floats each
};

struct Resize {                   // how the resize kernel produces one image from its decoded planes
    i64 out;                      // first element of its output
    Axis axis[2];                 // x, y
    i32 stride_c;                 // elements between channels of the output
    i32 image;
};

struct Pixels {                   // how the pixel kernel produces one image: a window of the oriented image
    i64 out;                      // first byte of its output
    i32 x, y;                     // decoded position of the output's first pixel
    i32 step_x_x, step_x_y;       // steps of the decoded position per output column
    i32 step_y_x, step_y_y;       // and per output row
    i32 width, height;            // of the output
};

struct Batch {
    const u8 *raw;
    u32 *words;                   // entropy-coded bits without stuffing, big endian
    u32 *segments;                // end of every restart interval, in bytes of the stream without stuffing
    u32 *stream;                  // per image: bytes of the stream without stuffing, restart markers found
    u32 *tables;                  // four HuffmanTable structs per image
    u64 *starts;  // per subsequence of a scan: the decoder's state at its start, and the number of blocks before it
    u64 *known;                   // the same for scans that were decoded before, from the host
    u64 *blocks;                  // per block: index and number of its AC coefficients, and its DC
    u32 *entries;                 // AC coefficients: value (0..15), zig-zag index + 1 (16..22)
    i16 *coefficients;            // of images in many scans
    // per scan of such an image, by its stream's index among the records: MCUs whose coefficients are stored
    i32 *progress;
    u8 *planes;
    float *weights;
    const float *filters;         // tabulated filters
    u8 *out;
    i32 *status;
    u32 *tickets;                 // one counter per chained kernel
    u64 *unstuff_chain;           // link from each chunk to the next of its image
    u64 *entropy_chain;
    const Image *images;
    const i32 *unstuff_first;     // index of the first chunk of each image: exclusive sums over the images
    const i32 *entropy_first;
    const i32 *idct_first;        // the same over images x 3 components
    const i32 *dense_first;       // of images in many scans
    const i32 *pixel_first;
    const i32 *resize_first;
    const i32 *strips_first;      // for images that jpeg_strips computes; they are not among those of the kernels above
    const Resize *resize;
    const Pixels *pixels;
    const Scan *scans;
    const i32 *fours;             // index of the first record of each image of four components
    i32 count;                    // number of images, without the streams of single scans
    i32 records;                  // number of records, with the streams
    i32 output_type;              // 0 RGB, 1 BGR, 2 GRAY, 3 YCbCr
    i32 out_dtype;                // 0 uint8, 1 float16, 2 float32
    // whether values are rounded to uint8 between resize and normalisation, as in the unfused graph
    i32 round_to_uint8;
    float mul[4], add[4];         // value * mul + add per channel
};

// Set status bits of image `at`, and of the image to which it belongs as a scan; with four components, also of the
// record of the last one.
DEVICE void mark(const Batch *batch, const Image &image, int at, int bits) {
    atomicOr(&batch->status[at], bits);
    if (image.components == 4) atomicOr(&batch->status[at + 1], bits);
    if (image.owner != at) atomicOr(&batch->status[image.owner], bits);
}

// Return the largest i with first[i] <= x, where first[0] = 0 and x < first[count].
DEVICE int locate(const i32 *first, int count, int x) {
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) >> 1;
        if (first[middle] <= x) low = middle; else high = middle;
    }
    return low;
}

// The same, computed by all lanes of a warp together: 32 entries at a time.
DEVICE int locate_by_warp(const i32 *first, int count, int x) {
    int lane = threadIdx.x & 31, low = 0;
    for (int high = count; high - low > 1;) {
        int step = (high - low + 31) >> 5, place = low + (lane + 1) * step;
        low += step * __popc(__ballot_sync(~0u, place < high && first[place] <= x));
        high = min(high, low + step);
    }
    return low;
}

// Return the next number of a counter. Blocks of chained kernels process chunks in the order in which they start, so
// that a chunk only ever waits for chunks that are already running.
DEVICE int take_ticket(u32 *counter) {
    __shared__ u32 ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u);
    __syncthreads();
    return (int)ticket;
}

#define READY (1ull << 63)
DEVICE u64 wait_for(const u64 *link) {
    u64 value;
    while (!((value = *(const volatile u64 *)link) & READY)) PAUSE();
    return value;
}
DEVICE void hand_on(u64 *link, u64 value) { *(volatile u64 *)link = value | READY; }

// Saturate a and b to 0 ... 255 and pack them as bytes 1 and 0, below the lower half of c.
DEVICE u32 pack_saturated(int a, int b, u32 c) {
#ifndef EMULATED
    u32 packed;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(packed) : "r"(a), "r"(b), "r"(c));
    return packed;
#else
    return c << 16 | (u32)min(max(a, 0), 255) << 8 | (u32)min(max(b, 0), 255);
#endif
}

// Return ``pointer``, kept in a register: if registers run short, the compiler would otherwise compute the pointer
// again at every use.
template <class T> DEVICE T *kept(T *pointer) {
#ifndef EMULATED
    asm volatile("" : "+l"(pointer));
#endif
    return pointer;
}

// Return a loaded value after waiting for it here. Otherwise its first use in a loop would wait in every turn, also for
// loads of the previous turn that share its scoreboard. The number added is zero, which the compiler does not know.
DEVICE u32 arrived(u32 loaded) { return loaded + (blockDim.y - 1); }

// Words in shared memory whose address stays in a register.
struct SharedWords {
#ifndef EMULATED
    u32 address;
    DEVICE explicit SharedWords(const u32 *words) : address((u32)__cvta_generic_to_shared(words)) {
        asm volatile("" : "+r"(address));
    }
    DEVICE u32 operator[](u32 i) const {
        u32 word;
        asm("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address + 4 * i));
        return word;
    }
#else
    const u32 *words;
    explicit SharedWords(const u32 *words) : words(words) {}
    u32 operator[](u32 i) const { return words[i]; }
#endif
};

// A thread's own RING words in shared memory; those of the lanes of a warp are interleaved.
#ifndef RING
#define RING 16
#endif
struct SharedRing {
#ifndef EMULATED
    u32 address;
    DEVICE explicit SharedRing(u32 *first) : address((u32)__cvta_generic_to_shared(first)) {
        asm volatile("" : "+r"(address));
    }
    // Store ``word`` at the index that bits 7 and above of `nth` give.
    DEVICE void put_nth(u32 nth, u32 word) const {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(address + (nth & 128 * (RING - 1))), "r"(word));
    }
    DEVICE u32 get(u32 i) const {
        u32 word;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address + 128 * (i % RING)));
        return word;
    }
    DEVICE void get_eight(u32 i, u32 (&eight)[8]) const {  // i: a multiple of eight
        u32 from = address + 128 * (i % RING);
#pragma unroll
        for (int k = 0; k < 8; k++) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(eight[k]) : "r"(from + 128 * k));
    }
#else
    u32 *first;
    explicit SharedRing(u32 *first) : first(first) {}
    void put_nth(u32 nth, u32 word) const { first[32 * ((nth >> 7) % RING)] = word; }
    u32 get(u32 i) const { return first[32 * (i % RING)]; }
    void get_eight(u32 i, u32 (&eight)[8]) const { for (int k = 0; k < 8; k++) eight[k] = get(i + k); }
#endif
};

// Four pairs of words of a stream that a thread copies asynchronously to shared memory; those of the lanes of a warp
// are interleaved.
struct SharedPairs {
#ifndef EMULATED
    u32 address;
    DEVICE explicit SharedPairs(uint2 *first) : address((u32)__cvta_generic_to_shared(first)) {
        asm volatile("" : "+r"(address));
    }
    DEVICE void ask(int nth, const u32 *from) const {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address + 256 * (nth & 3)), "l"(from) : "memory");
    }
    DEVICE void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
    // Wait until all copies requested before the last COUNT commits have arrived.
    template <int COUNT> DEVICE void wait() const { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory"); }
    DEVICE uint2 get(int nth) const {
        uint2 pair;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(address + 256 * (nth & 3)) : "memory");
        return pair;
    }
#else
    uint2 *first;
    explicit SharedPairs(uint2 *first) : first(first) {}
    void ask(int nth, const u32 *from) const { first[32 * (nth & 3)] = make_uint2(from[0], from[1]); }
    void commit() const {}
    template <int COUNT> void wait() const {}
    uint2 get(int nth) const { return first[32 * (nth & 3)]; }
#endif
};

// Store without occupying the first-level cache, which holds more useful data.
DEVICE void store_past_cache(u32 *to, u32 a, u32 b, u32 c, u32 d) {  // ``to`` is a multiple of 16 bytes
#ifndef EMULATED
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#else
    *(uint4 *)to = make_uint4(a, b, c, d);
#endif
}
DEVICE void store_past_cache(u64 *to, u32 low, u32 high) {
#ifndef EMULATED
    asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
#else
    *to = low | (u64)high << 32;
#endif
}

// Load from the second-level cache, which all multiprocessors share.
DEVICE u32 load_past_cache(const u32 *from) {
#ifndef EMULATED
    u32 word;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
#else
    return *from;
#endif
}
DEVICE u32 load_past_cache(const u16 *from) {
#ifndef EMULATED
    u16 half;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(half) : "l"(from) : "memory");
    return half;
#else
    return *from;
#endif
}

// Store ``value`` so that any thread that reads it also sees everything stored before, by the whole warp if it has
// synchronised.
DEVICE void store_released(i32 *to, i32 value) {
#ifndef EMULATED
    asm volatile("st.release.gpu.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
    *to = value;
#endif
}

// Load the cache line of an address into the first-level cache.
DEVICE void prefetch(const u32 *at) {
#ifndef EMULATED
    asm volatile("prefetch.L1 [%0];" ::"l"(at));
#endif
}

// Return whether x has any bit of BITS, in one instruction.
template <u32 BITS> DEVICE bool any_bit(u32 x) {
#ifndef EMULATED
    u32 some;
    asm("and.b32 %0, %1, %2;" : "=r"(some) : "r"(x), "n"(BITS));
    return some != 0;
#else
    return x & BITS;
#endif
}

// Return x >> n for n up to 32.
DEVICE u32 shift_right(u32 x, u32 n) {
#ifndef EMULATED
    u32 shifted;
    asm("shr.u32 %0, %1, %2;" : "=r"(shifted) : "r"(x), "r"(n));
    return shifted;
#else
    return n < 32 ? x >> n : 0;
#endif
}

DEVICE u16 to_half(float x) {
#ifndef EMULATED
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    _Float16 half = (_Float16)x;
    return *(u16 *)&half;
#endif
}

DEVICE u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }

// Return the inclusive sum over the lanes of a warp.
DEVICE u32 warp_sum(u32 x) {
    int lane = threadIdx.x & 31;
    for (int step = 1; step < 32; step <<= 1) {
        u32 below = __shfl_up_sync(~0u, x, step);
        if (lane >= step) x += below;
    }
    return x;
}

// Return the inclusive sum over a block of at most 1024 threads; ``total``: the sum over all.
DEVICE u32 block_sum(u32 x, u32 *total) {
    __shared__ u32 warps[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    if (warp == 0) {
        u32 y = lane < (int)(blockDim.x >> 5) ? warps[lane] : 0;
        warps[lane] = warp_sum(y);
    }
    __syncthreads();
    *total = warps[31];
    return x + (warp ? warps[warp - 1] : 0);
}
