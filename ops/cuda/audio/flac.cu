// FLAC (RFC 9639), ops/audio/flac_gpu.py: `find` searches the beginnings of frames, `decode` assigns a thread to each
// frame, `join` interleaves channels. Frames contain their number, so that they can be found without decoding the
// earlier ones. Whether a beginning is right is verified at the end: each frame must begin where the previous one ends,
// and both checksums must match. A file with anything unusual is marked in `bad`, and the CPU decodes it.

enum Field { BASE, SIZE, FIRST, TOTAL, CHANNELS, BITS, BLOCK, SLOT, WORK, OUT, WIDE, FIELDS };
enum { THREADS = 32, NOWHERE = 0x7FFFFFFF, TILE = 16 };

struct Head {
    int number, block, layout, bytes;
};

__device__ inline long long frames_of(const long long* file) { return (file[TOTAL] + file[BLOCK] - 1) / file[BLOCK]; }

// Return the number of samples of frame `number`.
__device__ inline int block_of(const long long* file, long long number) {
    const long long left = file[TOTAL] - number * file[BLOCK];
    return static_cast<int>(left < file[BLOCK] ? left : file[BLOCK]);
}

// Parse the frame header at `at`, `left` bytes before the end of the file; false if it is not a header of this file.
__device__ inline bool parse(const unsigned char* at, long long left, const long long* file, Head& head) {
    if (left < 8 || at[0] != 0xFF || at[1] != 0xF8) return false;
    const int sizes = at[2] >> 4, rates = at[2] & 15, layout = at[3] >> 4, depth = at[3] >> 1 & 7;
    const int channels = static_cast<int>(file[CHANNELS]);
    if (sizes == 0 || rates == 15 || (at[3] & 1) || layout > 10) return false;
    if (layout < 8 ? layout + 1 != channels : channels != 2) return false;
    const int depths = depth == 1 ? 8 : depth == 2 ? 12 : depth == 4 ? 16 : depth == 5 ? 20 : depth == 6 ? 24 : 0;
    if (depth && depths != file[BITS]) return false;
    unsigned number = at[4];
    int place = 5, more = 0;
    if (number >= 0x80) {
        if (number < 0xC0 || number >= 0xFE) return false;
        more = number < 0xE0 ? 1 : number < 0xF0 ? 2 : number < 0xF8 ? 3 : number < 0xFC ? 4 : 5;
        number &= 0x3F >> more;
    }
    const int bytes = 5 + more + (sizes == 6 ? 1 : sizes == 7 ? 2 : 0) + (rates == 12 ? 1 : rates > 12 ? 2 : 0);
    if (left < bytes + 1) return false;
    for (int k = 0; k < more; ++k, ++place) {
        if ((at[place] & 0xC0) != 0x80) return false;
        number = number << 6 | (at[place] & 0x3F);
    }
    int block = sizes == 1 ? 192 : sizes < 6 ? 576 << (sizes - 2) : sizes >= 8 ? 256 << (sizes - 8) : at[place] + 1;
    if (sizes == 7) block = (at[place] << 8 | at[place + 1]) + 1;
    if (number >= frames_of(file) || block != block_of(file, number)) return false;
    unsigned crc = 0;
    for (int k = 0; k < bytes; ++k) {
        crc ^= at[k];
        for (int bit = 0; bit < 8; ++bit) crc = (crc << 1 ^ (crc & 0x80 ? 0x07 : 0)) & 0xFF;
    }
    head = {static_cast<int>(number), block, layout, bytes + 1};
    return crc == at[bytes];
}

// grid (tiles, files): write the first position at which each frame may begin to `starts`, which initially hold
// NOWHERE.
extern "C" __global__ void find(const unsigned char* data, const long long* files, int* starts) {
    const long long* file = files + static_cast<long long>(blockIdx.y) * FIELDS;
    const unsigned char* bytes = data + file[BASE];
    const long long from = static_cast<long long>(blockIdx.x) * blockDim.x * TILE + threadIdx.x;
    for (int k = 0; k < TILE; ++k) {
        const long long at = from + static_cast<long long>(k) * blockDim.x;
        Head head;
        if (at < file[FIRST] || at + 8 > file[SIZE] || bytes[at] != 0xFF) continue;
        if (parse(bytes + at, file[SIZE] - at, file, head))
            atomicMin(starts + file[SLOT] + head.number, static_cast<int>(at));
    }
}

// Bit reader of a file, from some byte on; zeros after its end. At least 33 bits are in `buffer` between calls. Every
// lane of a warp reads elsewhere, so that at any time one of them would wait for memory: words are therefore loaded 16
// bytes in advance.
struct Bits {
    const unsigned* words;  // address, a multiple of 16 bytes
    int taken, stop, left;
    unsigned long long buffer;
    uint4 now, ahead;

    __device__ Bits(const unsigned char* at, long long size) {
        const int odd = static_cast<int>(reinterpret_cast<unsigned long long>(at) & 15);
        words = reinterpret_cast<const unsigned*>(at - odd);
        stop = static_cast<int>((size + odd + 3) / 4);
        taken = 0, left = 0, buffer = 0;
        now = load(0);
        ahead = load(4);
        for (int k = 0; k < odd / 4; ++k) next();
        fill();
        fill();
        skip(odd % 4 * 8);
    }
    __device__ uint4 load(int k) const {
        if (k + 4 <= stop) return *reinterpret_cast<const uint4*>(words + k);
        return make_uint4(k < stop ? words[k] : 0, k + 1 < stop ? words[k + 1] : 0, k + 2 < stop ? words[k + 2] : 0, 0);
    }
    __device__ unsigned next() {
        const unsigned word = __byte_perm(now.x, 0, 0x0123);
        now.x = now.y, now.y = now.z, now.z = now.w;
        if ((++taken & 3) == 0) {
            now = ahead;
            ahead = load(taken + 4);
        }
        return word;
    }
    __device__ void fill() {
        if (left > 32) return;
        buffer |= static_cast<unsigned long long>(next()) << (32 - left);
        left += 32;
    }
    __device__ unsigned top() const { return static_cast<unsigned>(buffer >> 32); }
    // Skip at most 32 bits.
    __device__ void skip(int count) {
        buffer <<= count;
        left -= count;
        fill();
    }
    __device__ unsigned read(int count) {
        const unsigned value = count ? top() >> (32 - count) : 0;
        skip(count);
        return value;
    }
    __device__ int read_signed(int count) {
        const int value = count ? static_cast<int>(top()) >> (32 - count) : 0;
        skip(count);
        return value;
    }
    // Number of bits since the first word.
    __device__ long long place() const { return 32LL * taken - left; }
    __device__ bool past() const { return taken > stop + 2; }
};

// Read a Rice-coded number with parameter k, at most 30; false if it has more than 32 bits, or the file ends.
__device__ inline bool rice(Bits& in, int k, int& residual) {
    unsigned top = in.top(), value;
    int zeros = __clz(static_cast<int>(top));
    if (zeros + 1 + k <= 32) {
        value = static_cast<unsigned>(zeros) << k | ((top << zeros) & 0x7FFFFFFFu) >> (31 - k);
        in.skip(zeros + 1 + k);
    } else {
        unsigned all = 0;
        for (; top == 0; top = in.top()) {
            if (in.past()) return false;
            all += 32;
            in.skip(32);
        }
        zeros = __clz(static_cast<int>(top));
        all += zeros;
        in.skip(zeros + 1);
        if (all >> (31 - k)) return false;
        value = all << k | in.read(k);
    }
    residual = static_cast<int>(value >> 1) ^ -static_cast<int>(value & 1);
    return true;
}

// Write sample n, the newest of `history`: four at a time if `wide`.
__device__ inline void put(int* out, int n, const int* history, int wasted, bool wide) {
    if (!wide) out[n] = history[0] << wasted;
    else if ((n & 3) == 3)
        *reinterpret_cast<int4*>(out + n - 3) =
            int4{history[3] << wasted, history[2] << wasted, history[1] << wasted, history[0] << wasted};
}

// Decode residuals and add the prediction from at most MOST earlier samples; `kind` is the subframe's. Samples are
// limited to `width` bits, so that no sum differs from the CPU's, whose integers are longer.
template <int MOST>
__device__ bool predicted(Bits& in, int kind, int size, int width, int wasted, int* out) {
    const int order = kind < 32 ? kind - 8 : kind - 31;
    const bool wide = (reinterpret_cast<unsigned long long>(out) & 15) == 0;
    int history[MOST], weights[MOST];
    for (int k = 0; k < MOST; ++k) history[k] = weights[k] = 0;
    for (int n = 0; n < order; ++n) {
#pragma unroll
        for (int k = MOST - 1; k > 0; --k) history[k] = history[k - 1];
        history[0] = in.read_signed(width);
        put(out, n, history, wasted, wide);
    }
    int shift = 0;
    if (kind < 32) {
        weights[0] = order;
        weights[1] = order == 2 ? -1 : order == 3 ? -3 : order == 4 ? -6 : 0;
        weights[2] = order == 3 ? 1 : order == 4 ? 4 : 0;
        weights[3] = order == 4 ? -1 : 0;
    } else {
        const int precision = in.read(4) + 1;
        shift = in.read_signed(5);
        if (precision == 16 || shift < 0) return false;
#pragma unroll
        for (int k = 0; k < MOST; ++k)
            if (k < order) weights[k] = in.read_signed(precision);
    }
    const int method = in.read(2), parts = in.read(4), each = size >> parts;
    if (method > 1 || each << parts != size || each < order) return false;
    const int bits = method ? 5 : 4, escape = (1 << bits) - 1;
    int parameter = in.read(bits), raw = parameter == escape ? static_cast<int>(in.read(5)) : -1, stop = each;
    unsigned long long outside = 0;
    const long long half = 1LL << (width - 1);
    for (int n = order; n < size; ++n) {
        if (n == stop) {
            parameter = in.read(bits);
            raw = parameter == escape ? static_cast<int>(in.read(5)) : -1;
            stop += each;
        }
        int residual;
        if (raw >= 0) residual = in.read_signed(raw);
        else if (!rice(in, parameter, residual)) return false;
        long long sum = 0;
#pragma unroll
        for (int k = MOST - 1; k >= 0; --k) sum += static_cast<long long>(weights[k]) * history[k];
        const long long value = residual + (sum >> shift);
        outside |= static_cast<unsigned long long>(value + half) >> width;
#pragma unroll
        for (int k = MOST - 1; k > 0; --k) history[k] = history[k - 1];
        history[0] = static_cast<int>(value);
        put(out, n, history, wasted, wide);
    }
    if (wide)
        for (int k = 0; k < (size & 3); ++k)
            out[size - 1 - k] = (k == 0 ? history[0] : k == 1 ? history[1] : history[2]) << wasted;
    return outside == 0;
}

__device__ inline bool subframe(Bits& in, int size, int bits, int* out) {
    int kind = in.read(8), wasted = 0;
    if (kind & 0x80) return false;
    if (kind & 1)
        for (wasted = 1; in.read(1) == 0;)
            if (++wasted >= bits) return false;
    kind >>= 1;
    const int width = bits - wasted;
    if (kind == 0) {
        const int value = in.read_signed(width) << wasted;
        for (int n = 0; n < size; ++n) out[n] = value;
        return true;
    }
    if (kind == 1) {
        for (int n = 0; n < size; ++n) out[n] = in.read_signed(width) << wasted;
        return true;
    }
    if (kind < 8 || (kind > 12 && kind < 32) || (kind < 32 ? kind - 8 : kind - 31) > size) return false;
    if (kind < 40) return predicted<8>(in, kind, size, width, wasted, out);
    if (kind < 44) return predicted<12>(in, kind, size, width, wasted, out);
    return predicted<32>(in, kind, size, width, wasted, out);
}

// Return the CRC-16 (polynomial 0x8005) of `count` bytes; tables[k] are for a byte that is followed by k others.
__device__ inline unsigned checksum(const unsigned char* at, long long count, const unsigned short (*tables)[256]) {
    unsigned crc = 0;
    long long k = 0;
    for (; k < count && (reinterpret_cast<unsigned long long>(at + k) & 3); ++k)
        crc = (crc << 8 & 0xFFFF) ^ tables[0][crc >> 8 ^ at[k]];
    for (; k + 4 <= count; k += 4) {
        const unsigned word = *reinterpret_cast<const unsigned*>(at + k);
        crc = tables[3][crc >> 8 ^ (word & 255)] ^ tables[2][(crc & 255) ^ (word >> 8 & 255)] ^
              tables[1][word >> 16 & 255] ^ tables[0][word >> 24];
    }
    for (; k < count; ++k) crc = (crc << 8 & 0xFFFF) ^ tables[0][crc >> 8 ^ at[k]];
    return crc;
}

// One thread per frame; `owners`: the file of each frame. Channels follow each other in `work`, frame by frame.
extern "C" __global__ void __launch_bounds__(THREADS)
    decode(const unsigned char* data, const long long* files, const int* owners, int frames, const int* starts,
           int* work, int* bad) {
    __shared__ unsigned short tables[4][256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) {
        unsigned crc = k << 8;
        for (int many = 0; many < 4; ++many) {
            for (int bit = 0; bit < 8; ++bit) crc = (crc << 1 ^ (crc & 0x8000 ? 0x8005 : 0)) & 0xFFFF;
            tables[many][k] = static_cast<unsigned short>(crc);
        }
    }
    __syncthreads();
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= frames) return;
    const long long* file = files + static_cast<long long>(owners[i]) * FIELDS;
    const long long number = i - file[SLOT], start = starts[i], size = file[SIZE];
    const unsigned char* at = data + file[BASE] + start;
    Head head;
    bool good = start != NOWHERE && (number > 0 || start == file[FIRST]) && parse(at, size - start, file, head);
    if (good) {
        Bits in(at + head.bytes, size - start - head.bytes);
        int* out = work + file[WORK] + number * file[BLOCK] * file[CHANNELS];
        for (int channel = 0; good && channel < file[CHANNELS]; ++channel) {
            const bool side = head.layout == 9 ? channel == 0 : head.layout >= 8 && channel == 1;
            good = subframe(in, head.block, static_cast<int>(file[BITS]) + side, out + channel * head.block);
        }
        const long long odd = reinterpret_cast<unsigned long long>(at + head.bytes) & 15;
        const long long used = head.bytes - odd + (in.place() + 7) / 8;
        good = good && start + used + 2 <= size;
        good = good && checksum(at, used, tables) == (at[used] << 8 | at[used + 1]);
        good = good && (number + 1 == frames_of(file) || starts[i + 1] == start + used + 2);
    }
    if (!good) bad[owners[i]] = 1;
}

// One block per frame: interleave its channels as integers of 16 or 32 bits (WIDE), with the samples in the highest
// bits.
extern "C" __global__ void join(const unsigned char* data, const long long* files, const int* owners, const int* starts,
                                const int* work, unsigned char* out) {
    const long long i = blockIdx.x;
    const long long* file = files + static_cast<long long>(owners[i]) * FIELDS;
    if (starts[i] == NOWHERE) return;
    const long long number = i - file[SLOT];
    const int layout = data[file[BASE] + starts[i] + 3] >> 4, size = block_of(file, number);
    const int channels = static_cast<int>(file[CHANNELS]), shift = static_cast<int>(file[WIDE] - file[BITS]);
    const int* from = work + file[WORK] + number * file[BLOCK] * channels;
    const long long to = number * file[BLOCK] * channels;
    short* narrow = reinterpret_cast<short*>(out + file[OUT]) + to;
    int* wide = reinterpret_cast<int*>(out + file[OUT]) + to;
    for (int n = threadIdx.x; n < size; n += blockDim.x) {
        for (int channel = 0; channel < channels; ++channel) {
            int value = from[channel * size + n];
            if (layout >= 8) {
                const int first = from[n], second = from[size + n];
                const int middle = first << 1 | (second & 1);
                if (layout == 8) value = channel ? first - second : first;
                else if (layout == 9) value = channel ? second : first + second;
                else value = (channel ? middle - second : middle + second) >> 1;
            }
            value = static_cast<int>(static_cast<unsigned>(value) << shift);
            if (file[WIDE] == 16) narrow[n * channels + channel] = static_cast<short>(value);
            else wide[n * channels + channel] = value;
        }
    }
}
