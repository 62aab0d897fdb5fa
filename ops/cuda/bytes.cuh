// Conversion of bytes to floats and back without conversion instructions, which multiprocessors execute slowly.
#pragma once

constexpr float MAGIC = 8388608.0f;  // 2^23: the lowest bits of a float of this magnitude count ones

// Return byte `k` of `word` as MAGIC plus its value.
__device__ __forceinline__ float lifted(unsigned int word, int k) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 + k));
}

// Round a value of 0 to 255, halves up, into the lowest byte of the result. The other bytes are those of MAGIC.
__device__ __forceinline__ unsigned int rounded(float v) { return __float_as_uint(__fadd_rz(__fadd_rn(v, 0.5f), MAGIC)); }

// Combine the lowest bytes of three numbers to a pixel.
__device__ __forceinline__ unsigned int pixel_of(unsigned int a, unsigned int b, unsigned int c) {
    return __byte_perm(__byte_perm(a, b, 0x0040), c, 0x7410) & 0xFFFFFFu;
}

// Store adjacent pixels of `GROUP` lanes from `row` on, which is aligned to 4 bytes; only pixels [begin, end) exist.
// All lanes of a warp must take part. Lane 0 of a group has its first pixel.
template <int GROUP>
__device__ __forceinline__ void put_aligned(unsigned int pixel, unsigned char* row, int begin, int end) {
    const int lane = threadIdx.x & 31, within = lane & (GROUP - 1), leader = lane - within;
    // bytes of the first pixel that precede the word
    const int first = within * 4 / 3, skipped = within * 4 - 3 * first;
    const unsigned int low = __shfl_sync(~0u, pixel, leader + first), high = __shfl_sync(~0u, pixel, leader + first + 1);
    const unsigned int word = __byte_perm(low, high, skipped == 0 ? 0x4210 : skipped == 1 ? 0x5421 : 0x6542);
    if (4 * within >= 3 * GROUP) return;
    if (first >= begin && first + 1 < end) {
        reinterpret_cast<unsigned int*>(row)[within] = word;
        return;
    }
    for (int k = 0; k < 4; ++k) {
        const int at = 4 * within + k;
        if (at >= 3 * begin && at < 3 * end) row[at] = static_cast<unsigned char>(word >> 8 * k);
    }
}
