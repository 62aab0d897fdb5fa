// Uncompressed numbers of audio files to signals (ops/audio/decoders.py; wav_cpu.py implements the same for the CPU).
// grid (tiles of frames, samples): a thread computes one frame.

enum Field { START, FRAMES, CHANNELS, RATE, KIND, FIELDS };
enum Kind { OTHER, U8, S16, S24, S32, F32, F64 };

// Return an integer in the high bits of 32. The bytes may have any alignment.
__device__ inline int bits(const unsigned char* at, long long kind) {
    unsigned value = at[0];
    if (kind == U8) return static_cast<int>((value - 128u) << 24);
    value |= static_cast<unsigned>(at[1]) << 8;
    if (kind == S16) return static_cast<int>(value << 16);
    value |= static_cast<unsigned>(at[2]) << 16;
    if (kind == S24) return static_cast<int>(value << 8);
    return static_cast<int>(value | static_cast<unsigned>(at[3]) << 24);
}

__device__ inline float number(const unsigned char* at, long long kind) {
    if (kind <= S32) return static_cast<float>(bits(at, kind) * (1.0 / 2147483648.0));
    union { unsigned char bytes[8]; float one; double two; } as;
    const int width = kind == F32 ? 4 : 8;
    for (int i = 0; i < width; ++i) as.bytes[i] = at[i];
    return kind == F32 ? as.one : static_cast<float>(as.two);
}

__device__ inline void put(float* out, float value, double) { *out = value; }
template <typename Out>
__device__ inline void put(Out* out, float value, double full) {
    double x = static_cast<double>(value * static_cast<float>(full));
    x = x >= 0 ? floor(x + 0.5) : ceil(x - 0.5);
    *out = static_cast<Out>(x != x ? 0.0 : x < -full - 1 ? -full - 1 : x > full ? full : x);
}

__device__ inline bool put_bits(float*, int) { return false; }
__device__ inline bool put_bits(short* out, int value) { *out = static_cast<short>(value >> 16); return true; }
__device__ inline bool put_bits(int* out, int value) { *out = value; return true; }

template <typename Out>
__global__ void convert(const unsigned char* data, const long long* base, const long long* found, int downmix,
                        double full, Out* out, const long long* out_base) {
    const long long* row = found + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, kind = row[KIND];
    if (kind == OTHER || k >= row[FRAMES]) return;
    const int width = kind == F64 ? 8 : kind >= S32 ? 4 : static_cast<int>(kind), channels = static_cast<int>(row[CHANNELS]);
    const unsigned char* at = data + base[blockIdx.y] + row[START] + k * channels * width;
    Out* target = out + out_base[blockIdx.y];
    if (downmix && channels > 1) {
        const float part = 1.0f / static_cast<float>(channels);
        float total = 0;
        for (int c = 0; c < channels; ++c) total = __fadd_rn(total, __fmul_rn(number(at + c * width, kind), part));
        put(target + k, total, full);
        return;
    }
    for (int c = 0; c < channels; ++c) {
        Out* to = target + k * channels + c;
        if (kind > S32 || !put_bits(to, bits(at + c * width, kind))) put(to, number(at + c * width, kind), full);
    }
}
