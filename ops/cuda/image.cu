// Decoded pixels into their places: orientation, window, colour and type for what nvJPEG decoded as it is stored, and
// plain copies for what the CPU decoded. All samples of a batch in one launch: blockIdx.y is the sample.
#include "convert.cuh"

struct Placement {
    long long source;       // first byte of the stored image
    long long destination;  // first element of the output
    int width, height;      // as stored
    int channels;           // 1 or 3
    int orientation;        // Exif, 1 ... 8
    int y, x;               // the window's corner in the oriented image
    int rows, columns;      // its size
};

template <typename Out> struct Scale {
    static constexpr float top = static_cast<float>(limits<Out>::high), one = static_cast<float>(limits<Out>::high) + 1;
};
template <> struct Scale<float> { static constexpr float top = 1, one = 1; };
template <> struct Scale<half> { static constexpr float top = 1, one = 1; };

template <typename Out> __device__ __forceinline__ Out scaled(unsigned char v) {
    return saturate<Out>(static_cast<float>(v) * (Scale<Out>::top / 255.0f));
}
template <> __device__ __forceinline__ unsigned char scaled<unsigned char>(unsigned char v) { return v; }

// BT.601, studio range (ops/codecs/pixels.py).
template <typename Out> __device__ __forceinline__ Out studio(float r, float g, float b, float offset) {
    return saturate<Out>((r + g + b) * (Scale<Out>::top / 255.0f) + offset * Scale<Out>::one);
}

template <typename Out>
__device__ void place_one(const unsigned char *sources, const Placement &p, Out *output, bool to_ycbcr) {
    const unsigned char *image = sources + p.source;
    Out *out = output + p.destination;
    bool swap = p.orientation >= 5;
    bool flip_x = p.orientation == 2 || p.orientation == 3 || p.orientation == 6 || p.orientation == 7;
    bool flip_y = p.orientation == 3 || p.orientation == 4 || p.orientation == 7 || p.orientation == 8;
    int seen_width = swap ? p.height : p.width, seen_height = swap ? p.width : p.height;
    unsigned pixels = static_cast<unsigned>(p.rows) * p.columns;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels; i += gridDim.x * blockDim.x) {
        int y = p.y + i / p.columns, x = p.x + i % p.columns;
        if (flip_x) x = seen_width - 1 - x;
        if (flip_y) y = seen_height - 1 - y;
        long long at = swap ? static_cast<long long>(x) * p.width + y : static_cast<long long>(y) * p.width + x;
        const unsigned char *v = image + at * p.channels;
        Out *to = out + static_cast<long long>(i) * p.channels;
        if (to_ycbcr) {
            float r = v[0], g = v[1], b = v[2];
            constexpr float s = 1.0f / 255.0f;
            to[0] = studio<Out>(65.481f * s * r, 128.553f * s * g, 24.966f * s * b, 16.0f / 256);
            to[1] = studio<Out>(-37.797f * s * r, -74.203f * s * g, 112.0f * s * b, 128.0f / 256);
            to[2] = studio<Out>(112.0f * s * r, -93.786f * s * g, -18.214f * s * b, 128.0f / 256);
        } else {
            for (int c = 0; c < p.channels; c++) to[c] = scaled<Out>(v[c]);
        }
    }
}

#define PLACE(name, Out)                                                                                              \
    extern "C" __global__ void name(const unsigned char *sources, const Placement *placements, Out *output,           \
                                    int to_ycbcr) {                                                                   \
        place_one<Out>(sources, placements[blockIdx.y], output, to_ycbcr != 0);                                       \
    }
PLACE(place_uint8, unsigned char)
PLACE(place_int8, signed char)
PLACE(place_uint16, unsigned short)
PLACE(place_int16, short)
PLACE(place_float16, half)
PLACE(place_float32, float)

// Copy ranges of bytes: (source, destination, size) for each.
struct Range {
    long long source, destination, size;
};

extern "C" __global__ void scatter(const unsigned char *sources, const Range *ranges, unsigned char *output) {
    Range r = ranges[blockIdx.y];
    const unsigned char *from = sources + r.source;
    unsigned char *to = output + r.destination;
    long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    bool words = ((reinterpret_cast<unsigned long long>(from) | reinterpret_cast<unsigned long long>(to)) & 3) == 0;
    long long done = 0;
    if (words) {
        done = r.size & ~3LL;
        const unsigned *from4 = reinterpret_cast<const unsigned *>(from);
        unsigned *to4 = reinterpret_cast<unsigned *>(to);
        for (long long i = first; i < r.size / 4; i += step) to4[i] = from4[i];
    }
    for (long long i = done + first; i < r.size; i += step) to[i] = from[i];
}
